//! An image that was pulled with credentials is not for pods that have none.

use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tests::images;
use tests::machine::{Machine, Namespace, Setup, eventually};

const REGISTRY: &str = "127.0.0.1:5000";
/// User and bcrypt hash; the password is `secret`.
const USER: &str = "me:$2y$05$CL3a3zbpujbdtr1uthCWc.TZ05io93iolYColijXWo.XaM7M5XlDe\n";

struct Registry(Child);

impl Registry {
    fn start(namespace: &Namespace, home: &Path) -> anyhow::Result<Self> {
        let (users, file) = (home.join("users"), home.join("registry.yaml"));
        std::fs::write(&users, USER)?;
        let storage = json!({"filesystem": {"rootdirectory": home.join("storage")}});
        let auth = json!({"htpasswd": {"realm": "test", "path": users}});
        let text = json!({"version": "0.1", "storage": storage, "http": {"addr": REGISTRY}, "auth": auth});
        std::fs::write(&file, text.to_string())?;
        let mut command = namespace.command("docker-registry");
        command
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn push(namespace: &Namespace, name: &str) -> anyhow::Result<()> {
    let archive = images::archive("busybox")?;
    eventually("the registry takes an image", || {
        let mut skopeo = namespace.command("skopeo");
        skopeo.args([
            "copy",
            "--insecure-policy",
            "--dest-tls-verify=false",
            "--dest-creds",
            "me:secret",
        ]);
        skopeo.arg(format!("oci-archive:{}", archive.display()));
        let done = skopeo.arg(format!("docker://{name}")).output();
        let done = done.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(said) }
    })
}

/// Runs a pod with or without a pull secret; returns its container's waiting reason, or nothing
/// once it runs.
fn run(machine: &Machine, pod: &str, image: &str, policy: &str, secret: Option<&str>) -> anyhow::Result<String> {
    let secrets: Vec<Value> = secret.iter().map(|name| json!({"name": name})).collect();
    let overrides = json!({"spec": {"imagePullSecrets": secrets, "terminationGracePeriodSeconds": 0}});
    let (image, policy) = (format!("--image={image}"), format!("--image-pull-policy={policy}"));
    let overrides = format!("--overrides={overrides}");
    machine.kubectl(["run", pod, &image, &policy, &overrides, "--", "sleep", "1000"])?;
    let format = "-o=jsonpath={.status.phase} {.status.containerStatuses[0].state.waiting.reason}";
    eventually(&format!("{pod} runs or cannot"), || {
        let said = machine.kubectl(["get", "pod", pod, format]);
        let said = said.map_err(|error| error.to_string())?;
        match said.split_once(' ') {
            Some(("Running", _)) => Ok(String::new()),
            Some((_, reason)) if !["", "ContainerCreating"].contains(&reason) => Ok(reason.to_owned()),
            _ => Err(said),
        }
    })
}

#[test]
fn a_private_image_is_for_pods_that_have_its_credentials() -> anyhow::Result<()> {
    tests::logging();
    let (namespace, home) = (Namespace::new("private")?, tempfile::tempdir()?);
    let registry = Registry::start(&namespace, home.path())?;
    let image = &format!("{REGISTRY}/team/busybox:1");
    let other = &format!("{REGISTRY}/other/busybox:1");
    push(&namespace, image)?;
    push(&namespace, other)?;
    let words = ["--registry-plain-http".to_owned(), REGISTRY.to_owned()];
    let setup = Setup {
        words: &words,
        ..Setup::default()
    };
    let machine = Machine::start_with(namespace, setup)?;
    for (name, password) in [("mine", "secret"), ("alike", "secret"), ("wrong", "guessed")] {
        let (server, password) = (
            format!("--docker-server={REGISTRY}"),
            format!("--docker-password={password}"),
        );
        machine.kubectl([
            "create",
            "secret",
            "docker-registry",
            name,
            &server,
            "--docker-username=me",
            &password,
        ])?;
    }
    let refused = |reason: &str| ["ErrImagePull", "ImagePullBackOff"].contains(&reason);
    assert_eq!(run(&machine, "first", image, "IfNotPresent", Some("mine"))?, "");
    for (pod, secret) in [("none", None), ("wrong", Some("wrong"))] {
        let waits = run(&machine, pod, image, "IfNotPresent", secret)?;
        assert!(refused(&waits), "{pod}: {waits}");
        let never = format!("{pod}-never");
        assert_eq!(run(&machine, &never, image, "Never", secret)?, "ErrImageNeverPull");
    }
    // The node's own credentials are for all pods.
    let own = json!({"auths": {REGISTRY: {"username": "me", "password": "secret"}}});
    std::fs::write(machine.state().join("agent/config.json"), own.to_string())?;
    for policy in ["Always", "Never"] {
        let pod = format!("node-{}", policy.to_lowercase());
        assert_eq!(run(&machine, &pod, other, policy, None)?, "", "{policy}");
    }
    // Without a request to the registry, the contents of the pull secret decide.
    drop(registry);
    for (pod, secret) in [("same", "mine"), ("alike", "alike")] {
        assert_eq!(run(&machine, pod, image, "Never", Some(secret))?, "", "{pod}");
    }
    // The same image, imported without a registry; a pod that waits for it begins.
    let (early, archive) = ("skiff.local/early:1", images::archive("busybox")?);
    assert_eq!(run(&machine, "early", early, "Never", None)?, "ErrImageNeverPull");
    machine.import(&archive)?;
    machine.skiff(["image", "import", "--name", early, &archive.display().to_string()])?;
    eventually("the pod that was early runs", || {
        let said = machine.kubectl(["get", "pod", "early", "-o=jsonpath={.status.phase}"]);
        let said = said.map_err(|error| error.to_string())?;
        if said == "Running" { Ok(()) } else { Err(said) }
    })?;
    let list = machine.skiff(["image", "list"])?;
    let mut words = list.split_whitespace();
    let imported = words.find(|word| word.starts_with("skiff.local/busybox:"));
    assert_eq!(
        run(&machine, "imported", imported.unwrap_or_default(), "Never", None)?,
        "",
        "{list}"
    );
    machine.finish()
}
