//! Stock kubectl, every version on this machine, used as people use it against a real cluster.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Output;

use anyhow::Context as _;
use serde_json::Value;
use tests::machine::{Machine, eventually};
use tests::{images, process};

/// A stock kubectl in a namespace of its own.
struct User<'a> {
    machine: &'a Machine,
    kubectl: &'a Path,
    namespace: String,
}

impl User<'_> {
    fn output(&self, words: &[&str]) -> anyhow::Result<Output> {
        let mut command = self.machine.kubectl_command(self.kubectl);
        command
            .args(["-n", &self.namespace])
            .args(words)
            .env("KUBE_EDITOR", "sed -i s/color:.red/color:\\ blue/");
        command.output().with_context(|| format!("{command:?}"))
    }

    /// Returns the output of a command that succeeds.
    fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = self.output(words)?;
        anyhow::ensure!(
            output.status.success(),
            "{} {words:?}: {}",
            self.kubectl.display(),
            process::both(&output)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the output of a command that is refused.
    fn refused(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = self.output(words)?;
        anyhow::ensure!(
            !output.status.success(),
            "{words:?} succeeded: {}",
            process::both(&output)
        );
        Ok(String::from_utf8(output.stderr)?)
    }

    fn json(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut all = words.to_vec();
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.run(&all)?)?)
    }

    #[track_caller]
    fn says(&self, words: &[&str], expected: &str) -> anyhow::Result<()> {
        let said = self.run(words)?;
        anyhow::ensure!(
            said.contains(expected),
            "{} {words:?} said {said:?}, expected {expected:?}",
            self.kubectl.display()
        );
        Ok(())
    }
}

#[test]
fn every_stock_kubectl_does_the_daily_work() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("kubectl")?;
    let nginx = images::nginx(&machine)?;
    let busybox = images::busybox(&machine)?;
    for (number, kubectl) in process::kubectls()?.iter().enumerate() {
        let user = User {
            machine: &machine,
            kubectl,
            namespace: format!("user-{number}"),
        };
        let session = || -> anyhow::Result<()> {
            create(&user, &nginx)?;
            read(&user)?;
            change(&user)?;
            apply_on_the_server(&user)?;
            roll(&user, &nginx)?;
            follow_logs(&user, &busybox)?;
            remove(&user)
        };
        session().with_context(|| kubectl.display().to_string())?;
    }
    machine.finish()
}

fn create(user: &User<'_>, image: &str) -> anyhow::Result<()> {
    user.says(&["create", "namespace", &user.namespace], "created")?;
    let image = format!("--image={image}");
    user.says(
        &["create", "deployment", "web", &image, "--replicas=2", "--port=80"],
        "deployment.apps/web created",
    )?;
    user.says(
        &["create", "configmap", "settings", "--from-literal=color=red"],
        "configmap/settings created",
    )?;
    user.says(
        &["create", "secret", "generic", "key", "--from-literal=password=hidden"],
        "secret/key created",
    )?;
    user.says(&["expose", "deployment", "web", "--port=80"], "service/web exposed")?;
    user.says(
        &["rollout", "status", "deployment/web", "--timeout=60s"],
        "successfully rolled out",
    )?;
    let again = user.refused(&["create", "configmap", "settings"])?;
    anyhow::ensure!(again.contains("configmaps \"settings\" already exists"), "{again}");
    let invalid = user.refused(&["create", "configmap", "Settings"])?;
    anyhow::ensure!(invalid.contains("a lowercase RFC 1123 subdomain"), "{invalid}");
    Ok(())
}

fn read(user: &User<'_>) -> anyhow::Result<()> {
    let table = user.run(&["get", "deployment", "web"])?;
    let mut lines = table.lines();
    let words = |line: Option<&str>| {
        line.unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    anyhow::ensure!(
        words(lines.next()) == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
        "{table}"
    );
    anyhow::ensure!(words(lines.next())[..4] == ["web", "2/2", "2", "2"], "{table}");
    let pods = user.run(&["get", "pods", "-o", "wide"])?;
    anyhow::ensure!(pods.starts_with("NAME ") && pods.contains("NOMINATED NODE"), "{pods}");
    anyhow::ensure!(
        pods.matches("Running").count() == 2 && pods.matches("1/1").count() == 2,
        "{pods}"
    );
    user.says(&["get", "deploy", "web", "-o", "yaml"], "kind: Deployment")?;
    user.says(&["get", "deploy", "web", "-o", "name"], "deployment.apps/web")?;
    user.says(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], "2")?;
    user.says(
        &[
            "get",
            "deploy",
            "-o",
            "custom-columns=N:.metadata.name,R:.spec.replicas",
        ],
        "web",
    )?;
    user.says(&["get", "all"], "replicaset.apps/web-")?;
    user.says(&["get", "nodes"], "Ready")?;
    eventually("an event of the scheduler", || {
        user.says(&["get", "events"], "Scheduled")
            .map_err(|error| format!("{error:#}"))
    })?;
    user.says(
        &["get", "pods", "--sort-by=.metadata.name", "--show-labels"],
        "pod-template-hash=",
    )?;
    user.says(&["describe", "deployment", "web"], "NewReplicaSetAvailable")?;
    user.says(&["describe", "pods", "-l", "app=web"], "Successfully assigned")?;
    user.says(&["describe", "service", "web"], "Selector:")?;
    user.says(&["describe", "node"], "Allocatable:")?;
    user.says(&["describe", "secret", "key"], "password:  6 bytes")?;
    user.says(&["explain", "deployment.spec.strategy"], "Type of deployment")?;
    user.says(&["explain", "pod.spec", "--recursive"], "terminationGracePeriodSeconds")?;
    user.says(&["api-resources"], "replicasets")?;
    user.says(&["api-versions"], "apps/v1")?;
    user.says(&["version"], "v1.36")?;
    let absent = user.refused(&["get", "pod", "absent"])?;
    anyhow::ensure!(
        absent.contains("Error from server (NotFound): pods \"absent\" not found"),
        "{absent}"
    );
    Ok(())
}

fn change(user: &User<'_>) -> anyhow::Result<()> {
    user.says(&["edit", "configmap", "settings"], "configmap/settings edited")?;
    user.says(
        &["get", "configmap", "settings", "-o", "jsonpath={.data.color}"],
        "blue",
    )?;
    user.says(&["label", "configmap", "settings", "team=web"], "labeled")?;
    user.says(
        &["annotate", "configmap", "settings", "note=hello"],
        "configmap/settings annotate",
    )?;
    user.says(
        &["get", "configmap", "-l", "team in (web)", "-o", "name"],
        "configmap/settings",
    )?;
    user.says(
        &[
            "patch",
            "configmap",
            "settings",
            "--type=merge",
            "-p",
            r#"{"data":{"size":"big"}}"#,
        ],
        "patched",
    )?;
    let operations = r#"[{"op":"replace","path":"/data/size","value":"small"}]"#;
    user.says(
        &["patch", "configmap", "settings", "--type=json", "-p", operations],
        "patched",
    )?;
    user.says(
        &["patch", "deployment", "web", "-p", r#"{"spec":{"minReadySeconds":0}}"#],
        "patched",
    )?;
    user.says(
        &["get", "configmap", "settings", "-o", "jsonpath={.data.size}"],
        "small",
    )?;
    user.says(
        &["scale", "deployment", "web", "--replicas=3"],
        "deployment.apps/web scaled",
    )?;
    user.says(
        &[
            "wait",
            "deployment/web",
            "--for=jsonpath={.status.readyReplicas}=3",
            "--timeout=60s",
        ],
        "condition met",
    )?;
    apply(user)
}

/// Applies the same file several times, changed and unchanged.
fn apply(user: &User<'_>) -> anyhow::Result<()> {
    let file = user.machine.state().join(format!("{}.yaml", user.namespace));
    let map = |color: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: applied}}\ndata: {{color: {color}}}\n")
    };
    let path = file.display().to_string();
    std::fs::write(&file, map("red"))?;
    user.says(&["apply", "-f", &path], "configmap/applied created")?;
    user.says(&["apply", "-f", &path], "configmap/applied unchanged")?;
    std::fs::write(&file, map("green"))?;
    let difference = user.output(&["diff", "-f", &path])?;
    let difference = process::both(&difference);
    anyhow::ensure!(difference.contains("+  color: green"), "{difference}");
    user.says(&["apply", "-f", &path], "configmap/applied configured")?;
    std::fs::write(
        &file,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: wrong}\ncolour: red\n",
    )?;
    let strict = user.refused(&["apply", "-f", &path])?;
    anyhow::ensure!(strict.contains("unknown field \"colour\""), "{strict}");
    Ok(())
}

fn roll(user: &User<'_>, image: &str) -> anyhow::Result<()> {
    let before = user.json(&["get", "deployment", "web"])?;
    let name = before["spec"]["template"]["spec"]["containers"][0]["name"]
        .as_str()
        .context("a container")?
        .to_owned();
    let wrong = format!("{name}=skiff.invalid/absent:1");
    user.says(&["set", "image", "deployment/web", &wrong], "image updated")?;
    eventually("the new pod cannot have its image", || {
        let pods = user.run(&["get", "pods"]).map_err(|error| error.to_string())?;
        if pods.contains("ErrImagePull") || pods.contains("ImagePullBackOff") {
            Ok(())
        } else {
            Err(pods)
        }
    })?;
    user.says(&["rollout", "history", "deployment/web"], "2")?;
    user.says(&["rollout", "undo", "deployment/web"], "rolled back")?;
    user.says(
        &["rollout", "status", "deployment/web", "--timeout=60s"],
        "successfully rolled out",
    )?;
    let after = user.json(&["get", "deployment", "web"])?;
    anyhow::ensure!(
        after["spec"]["template"]["spec"]["containers"][0]["image"] == image,
        "{after:#}"
    );
    anyhow::ensure!(
        after["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3",
        "{after:#}"
    );
    user.says(&["rollout", "restart", "deployment/web"], "restarted")?;
    user.says(
        &["rollout", "status", "deployment/web", "--timeout=60s"],
        "successfully rolled out",
    )
}

fn follow_logs(user: &User<'_>, busybox: &str) -> anyhow::Result<()> {
    let image = format!("--image={busybox}");
    // Two streams have no order between them but that of time.
    let script = "for n in 1 2 3; do echo line $n; sleep 0.2; done; sleep 1; echo end >&2";
    user.says(
        &[
            "run",
            "talker",
            &image,
            "--restart=Never",
            "--",
            "/bin/sh",
            "-c",
            script,
        ],
        "pod/talker created",
    )?;
    eventually("the container has started", || {
        let phase = user
            .run(&["get", "pod", "talker", "-o", "jsonpath={.status.phase}"])
            .map_err(|error| error.to_string())?;
        if phase == "Pending" { Err(phase) } else { Ok(()) }
    })?;
    let followed = user.run(&["logs", "-f", "talker"])?;
    anyhow::ensure!(followed == "line 1\nline 2\nline 3\nend\n", "{followed:?}");
    anyhow::ensure!(user.run(&["logs", "talker", "--tail=1"])? == "end\n");
    let stamped = user.run(&["logs", "talker", "--timestamps", "--tail=2"])?;
    anyhow::ensure!(
        stamped
            .lines()
            .all(|line| line.starts_with("20") && line.contains("Z ")),
        "{stamped}"
    );
    user.says(
        &[
            "wait",
            "pod/talker",
            "--for=jsonpath={.status.phase}=Succeeded",
            "--timeout=60s",
        ],
        "condition met",
    )?;
    user.says(&["get", "pod", "talker"], "Completed")
}

/// Client-side apply first, then the server's: kubectl moves the entries over by itself.
fn apply_on_the_server(user: &User<'_>) -> anyhow::Result<()> {
    let path = user.machine.state().join("paint.yaml");
    let file = path.to_string_lossy();
    let write = |colour: &str| {
        let object =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: paint}}\ndata: {{colour: {colour}}}\n");
        std::fs::write(&path, object)
    };
    let apply = ["apply", "--server-side", "-f", &*file];
    write("red")?;
    user.says(&["apply", "-f", &file], "configmap/paint created")?;
    user.says(&["apply", "view-last-applied", "configmap/paint"], "colour: red")?;
    user.says(&apply, "configmap/paint serverside-applied")?;
    let before = user.json(&["get", "configmap", "paint", "--show-managed-fields"])?;
    let entries = &before["metadata"]["managedFields"];
    anyhow::ensure!(
        entries[0]["manager"] == "kubectl" && entries[1]["manager"] == "kubectl-last-applied" && entries[2].is_null(),
        "{entries:#}"
    );
    user.says(&apply, "configmap/paint serverside-applied")?;
    let again = user.json(&["get", "configmap", "paint", "--show-managed-fields"])?;
    anyhow::ensure!(again == before, "a second apply changed {before:#} to {again:#}");
    user.says(
        &[
            "patch",
            "configmap",
            "paint",
            "--type=merge",
            "-p",
            r#"{"data":{"colour":"blue"}}"#,
        ],
        "patched",
    )?;
    let refused = user.refused(&apply)?;
    anyhow::ensure!(
        refused.contains("Apply failed with 1 conflict: conflict with \"kubectl-patch\" using v1: .data.colour"),
        "{refused}"
    );
    let forced = [&["diff", "--server-side", "--force-conflicts", "-f"][..], &[&*file]].concat();
    let difference = user.output(&forced)?;
    anyhow::ensure!(difference.status.code() == Some(1), "{}", process::both(&difference));
    user.says(
        &["apply", "--server-side", "--force-conflicts", "-f", &file],
        "serverside-applied",
    )?;
    user.says(&["get", "configmap", "paint", "-o", "jsonpath={.data.colour}"], "red")?;
    user.says(&["delete", "configmap", "paint"], "deleted")
}

fn remove(user: &User<'_>) -> anyhow::Result<()> {
    user.says(&["delete", "pod", "talker"], "deleted")?;
    user.says(&["delete", "deployment", "web"], "deleted")?;
    user.says(&["delete", "namespace", &user.namespace], "deleted")?;
    let gone = user.refused(&["get", "namespace", &user.namespace])?;
    anyhow::ensure!(gone.contains("NotFound"), "{gone}");
    Ok(())
}
