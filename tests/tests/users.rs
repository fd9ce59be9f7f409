//! Pods in user namespaces (`hostUsers: false`) on a real node: their ids inside and outside, and
//! the owners of their files.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tests::machine::{Machine, eventually};
use tests::{images, process};

const PODS: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: word}
stringData: {word: hush}
---
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {kept: "yes"}}
spec:
  hostUsers: false
  securityContext: {fsGroup: 2000}
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: word, secret: {secretName: word}}
  - {name: host, hostPath: {path: HOST}}
  containers:
  - &shell
    name: root
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "touch /host/made /made; echo spoken > /dev/stdout; exec sleep 100000"]
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: word, mountPath: /word, readOnly: true}
    - {name: host, mountPath: /host}
    - {name: scratch, mountPath: /host/closed/deep}
    securityContext: {capabilities: {add: [SYS_PTRACE]}}
  - <<: *shell
    name: user
    command: [sh, -c, "touch /host/users /scratch/users; exec sleep 100000"]
    securityContext: {runAsUser: 1000, runAsGroup: 1001}
---
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {kept: "yes"}}
spec:
  hostUsers: false
  shareProcessNamespace: true
  containers:
  - name: root
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, "100000"]
    securityContext: {readOnlyRootFilesystem: true, capabilities: {add: [SYS_PTRACE]}, seccompProfile: {type: RuntimeDefault}}
---
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  shareProcessNamespace: true
  containers:
  - name: root
    image: IMAGE
    imagePullPolicy: Never
    command: [sleep, "100000"]
    securityContext: {capabilities: {add: [SYS_PTRACE]}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostUsers: false
  containers:
  - {name: nginx, image: NGINX, imagePullPolicy: Never, ports: [{containerPort: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec:
  hostUsers: false
  restartPolicy: Never
  containers:
  - {name: a, image: IMAGE, imagePullPolicy: Never, command: [id], securityContext: {runAsUser: 70000}}
"#;

struct Node {
    machine: Machine,
    home: tempfile::TempDir,
}

impl Node {
    fn start() -> anyhow::Result<Self> {
        let machine = Machine::start("users")?;
        let home = tempfile::Builder::new().prefix("skiff-users-").tempdir()?;
        let (image, nginx) = (images::busybox(&machine)?, images::nginx(&machine)?);
        let node = Self { machine, home };
        std::fs::create_dir(node.host())?;
        std::fs::set_permissions(node.host(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        // Only the owner may enter it, or root, which need not be the machine's root.
        let closed = node.host().join("closed");
        std::fs::create_dir(&closed)?;
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        std::os::unix::fs::chown(&closed, Some(1000), Some(1001))?;
        let file = node.home.path().join("pods.yaml");
        let manifest = PODS.replace("IMAGE", &image).replace("NGINX", &nginx);
        std::fs::write(&file, manifest.replace("HOST", &node.host().display().to_string()))?;
        node.machine.kubectl(["apply", "-f", &file.display().to_string()])?;
        Ok(node)
    }

    fn host(&self) -> PathBuf {
        self.home.path().join("host")
    }

    fn pod(&self, name: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(
            &self.machine.kubectl(["get", "pod", name, "-o", "json"])?,
        )?)
    }

    fn ready(&self, name: &str) -> anyhow::Result<Value> {
        eventually(&format!("{name} is ready"), || {
            let pod = self.pod(name).map_err(|error| format!("{error:#}"))?;
            let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
            let ready = pod["status"]["phase"] == "Running" && statuses.all(|status| status["ready"] == true);
            if ready { Ok(pod) } else { Err(pod["status"].to_string()) }
        })
    }

    fn says(&self, pod: &str, container: &str, script: &str) -> anyhow::Result<String> {
        let words = ["exec", pod, "-c", container, "--", "sh", "-c", script];
        Ok(self.machine.kubectl(words)?.trim().to_owned())
    }

    /// Returns the node's id of the pod's root user.
    fn first(&self, pod: &str) -> anyhow::Result<u32> {
        let map = self.says(pod, "root", "cat /proc/self/uid_map")?;
        ensure!(map == self.says(pod, "root", "cat /proc/self/gid_map")?, "{map}");
        let fields: Vec<u32> = map.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        ensure!(matches!(fields.as_slice(), [0, _, 65_536]), "{map}");
        ensure!(fields[1] >= 65_536 && fields[1].is_multiple_of(65_536), "{map}");
        Ok(fields[1])
    }
}

fn owner(path: &Path) -> anyhow::Result<(u32, u32)> {
    let found = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    Ok((found.uid(), found.gid()))
}

/// The real users, on the machine, of the processes of a pod's containers.
fn users(pod: &Value) -> anyhow::Result<Vec<u32>> {
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let folder = entry?.path();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let status = read("status");
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        if read("cgroup").contains(uid) {
            all.extend(users.and_then(|users| users.split_whitespace().next()?.parse::<u32>().ok()));
        }
    }
    all.sort_unstable();
    Ok(all)
}

fn files_belong_to_who_they_should(node: &Node, first: u32) -> anyhow::Result<()> {
    for file in ["hosts", "resolv.conf", "hostname"] {
        let mode = node.says(
            "one",
            "user",
            &format!("cat /etc/{file} > /dev/null && stat -c %a /etc/{file}"),
        )?;
        ensure!(mode == "644", "/etc/{file} is {mode} for who is not root");
    }
    let inside = "stat -c '%n %u:%g' /etc/hostname /bin /made /scratch /word/..data/word /host/made /host/users /dev/termination-log";
    let seen = eventually("both containers have made their files", || {
        node.says("one", "root", inside).map_err(|error| format!("{error:#}"))
    })?;
    for expected in [
        "/etc/hostname 0:0",
        "/bin 0:0",
        "/made 0:0",
        "/scratch 0:2000",
        "/host/made 0:0",
        "/host/users 1000:1001",
    ] {
        ensure!(seen.lines().any(|line| line == expected), "{expected} in {seen}");
    }
    ensure!(seen.contains("/word/..data/word 0:2000"), "{seen}");
    ensure!(node.says("one", "root", "cat /word/word")? == "hush", "the secret");
    let look = "! touch /x 2>/dev/null && ! touch /srv/x 2>/dev/null && touch /srv/made/x && stat -c %u:%g /srv/made /srv/made/x";
    let seen = node.says("two", "root", look)?;
    ensure!(seen == "0:0\n0:0", "what the image declares: {seen}");
    let user = node.says("one", "user", "cat /word/word; id -u; id -g; id -G")?;
    ensure!(user == "hush1000\n1001\n1001 2000", "{user}");
    // A volume's files keep their ids on the machine; those of the image belong to no user there.
    ensure!(owner(&node.host().join("made"))? == (0, 0), "made");
    ensure!(owner(&node.host().join("users"))? == (1000, 1001), "users");
    ensure!(
        owner(&node.host().join("closed/deep"))? == (0, 0),
        "a place for a mount"
    );
    ensure!(
        node.says("one", "root", "ls /host/closed/deep")? == "users",
        "a mount in a closed directory"
    );
    let found = process::run(
        std::process::Command::new("find")
            .arg(node.machine.state())
            .args(["-path", "*/upper/made"]),
    )?;
    ensure!(owner(Path::new(found.trim()))? == (first, first), "{found}");
    Ok(())
}

fn nothing_of_the_machine_can_be_reached(node: &Node) -> anyhow::Result<()> {
    // The capabilities are those of a pod, over what is the pod's alone.
    let secret = node.home.path().join("secret");
    std::fs::write(&secret, "the machine's")?;
    let refused = [
        "mknod /tmp/disk b 7 0",
        "dmesg -n 1",
        "echo 1 > /proc/sys/kernel/panic",
        "mount -o remount,rw /sys",
    ];
    for script in refused {
        ensure!(
            node.says(
                "one",
                "root",
                &format!("{script} 2>/dev/null && echo done || echo refused")
            )? == "refused",
            "{script}"
        );
    }
    // The first process of a shared pid namespace gives no access to the machine's files, even to a
    // process that may trace it.
    let look = format!("ls /proc/1/root/ 2>&1; cat /proc/1/root{} 2>&1; true", secret.display());
    for pod in ["two", "shared"] {
        let seen = node.says(pod, "root", &look)?;
        ensure!(
            !seen.contains("the machine's") && !seen.contains("boot"),
            "{pod}: {seen}"
        );
    }
    Ok(())
}

#[test]
fn root_of_a_pod_is_nobody_on_the_node() -> anyhow::Result<()> {
    tests::logging();
    let node = Node::start()?;
    let (one, two) = (node.ready("one")?, node.ready("two")?);
    node.ready("shared")?;
    let (first, second) = (node.first("one")?, node.first("two")?);
    ensure!(first != second, "both are {first}");
    // What they begin with, and what was executed, may still be ending.
    for (pod, expected) in [(&one, vec![first, first + 1000]), (&two, vec![second])] {
        eventually(&format!("its users are {expected:?}"), || {
            let seen = users(pod).map_err(|error| format!("{error:#}"))?;
            (seen == expected).then_some(()).ok_or_else(|| format!("{seen:?}"))
        })?;
    }
    files_belong_to_who_they_should(&node, first)?;
    nothing_of_the_machine_can_be_reached(&node)?;
    eventually("the first words are in the log", || {
        match node.machine.kubectl(["logs", "one", "-c", "root"]) {
            Ok(text) if text == "spoken\n" => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })?;
    ensure!(
        node.says("one", "root", "tty; id -u; hostname")?.contains("0\none"),
        "an exec"
    );
    // Its root may use its network namespace as root: a port below 1024.
    let web = node.ready("web")?;
    let page = node.machine.page(&format!(
        "http://{}/",
        web["status"]["podIP"].as_str().unwrap_or_default()
    ))?;
    ensure!(page.contains("nginx"), "{page}");
    let stranger = eventually("the stranger is refused", || {
        let pod = node.pod("stranger").map_err(|error| format!("{error:#}"))?;
        let waiting = pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
        if waiting["reason"] == "CreateContainerError" {
            Ok(waiting)
        } else {
            Err(pod["status"].to_string())
        }
    })?;
    ensure!(
        stranger["message"]
            .as_str()
            .is_some_and(|text| text.contains("0 to 65535")),
        "{stranger}"
    );
    // A restarted agent knows the allocated ids.
    node.machine.kill("skiff-agent")?;
    node.machine.skiff(["up"])?;
    node.machine.kubectl(["delete", "pod", "web", "stranger", "--now"])?;
    let file = node.home.path().join("pods.yaml");
    node.machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    node.ready("web")?;
    let pid = process::container_of(node.pod("web")?["metadata"]["uid"].as_str().context("a uid")?)?;
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map"))?;
    let third = map.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    ensure!(
        third.is_some_and(|third: u32| third != first && third != second),
        "{map} {first} {second}"
    );
    ensure!(
        (node.first("one")?, node.first("two")?) == (first, second),
        "they changed"
    );
    node.machine.finish()
}
