//! Volumes that are images, and containers whose beginnings fail.

use anyhow::ensure;
use serde_json::{Value, json};

use super::cluster::{Cluster, container, ended, is_ready};
use super::pods::script;

const WAIT: &str = "sleep 10000";

fn shown(image: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "volumes": [{"name": "site", "image": {"reference": image}}]})
}

fn at(path: &str, part: &str) -> Value {
    json!({"name": "site", "mountPath": path, "subPath": part})
}

/// A container sees the files of another image, whole and in part, read-only; an image that cannot
/// be pulled blocks only the containers that mount it.
pub(crate) fn images_are_volumes(cluster: &Cluster, nginx: &str, busybox: &str) -> anyhow::Result<()> {
    let work = "ls -d /site/usr/sbin/nginx /conf/nginx.conf; head -n 1 /one; \
        touch /site/x /conf/x 2>/dev/null || echo read-only; echo x >> /one; /site/usr/sbin/nginx -v; sleep 10000";
    let mounts = json!({"volumeMounts": [{"name": "site", "mountPath": "/site"}, at("/conf", "etc/nginx"), at("/one", "etc/nginx/nginx.conf")]});
    let absent = json!({"volumeMounts": [at("/site", "no/such")]});
    let mut partly = script("partly", busybox, WAIT, at_root(), shown("skiff.local/none:1"));
    partly["spec"]["volumes"][0]["image"]["pullPolicy"] = json!("Never");
    let beside = json!({"name": "beside", "image": busybox, "command": ["sleep", "10000"]});
    if let Some(containers) = partly["spec"]["containers"].as_array_mut() {
        containers.push(beside);
    }
    cluster.apply(&[
        script("library", busybox, work, mounts, shown(nginx)),
        script("absent", busybox, WAIT, absent, shown(nginx)),
        partly,
    ])?;
    cluster.until("library", "is ready", is_ready)?;
    tests::machine::eventually("it has read", || {
        let said = cluster.logs("library").map_err(|error| error.to_string())?;
        let expected = [
            "/site/usr/sbin/nginx\n",
            "/conf/nginx.conf\n",
            "user www-data;\n",
            "read-only\n",
            "Read-only file system",
        ];
        if expected.iter().all(|line| said.contains(line))
            && said.contains("nginx version") | said.contains("not found")
        {
            return Ok(());
        }
        Err(said)
    })?;
    let waits = |pod: &Value, reason: &str| container(pod)["state"]["waiting"]["reason"] == reason;
    let absent = cluster.until("absent", "waits", |pod| waits(pod, "CreateContainerError"))?;
    let why = "failed to mount subPath \"no/such\" of image volume \"site\": no such file or directory";
    ensure!(container(&absent)["state"]["waiting"]["message"] == why, "{absent:#}");
    let of = |pod: &Value, name: &str| {
        let all = pod["status"]["containerStatuses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.into_iter()
            .find(|status| status["name"] == name)
            .unwrap_or_default()["state"]
            .clone()
    };
    let partly = cluster.until("partly", "runs in part", |pod| {
        of(pod, "main")["waiting"]["reason"] == "ErrImageNeverPull" && of(pod, "beside")["running"].is_object()
    })?;
    let why = "Container image \"skiff.local/none:1\" is not present with pull policy of Never";
    ensure!(of(&partly, "main")["waiting"]["message"] == why, "{partly:#}");
    // A prune leaves the image of a mounted volume; the mount goes away with the pod.
    cluster.machine.skiff(["image", "prune", "--all"])?;
    ensure!(
        cluster.machine.skiff(["image", "list"])?.contains(nginx),
        "the image went"
    );
    cluster.delete(&["library", "absent", "partly"])?;
    tests::machine::eventually("the snapshots are gone", || match cluster.views() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    })?;
    Ok(())
}

fn at_root() -> Value {
    json!({"volumeMounts": [{"name": "site", "mountPath": "/site"}]})
}

/// Variables come from a file that an earlier container wrote; one that lacks them keeps the container from starting.
pub(crate) fn variables_are_in_files(cluster: &Cluster, busybox: &str) -> anyhow::Result<()> {
    let from = |name: &str, key: &str, optional: bool| {
        let file = json!({"volumeName": "made", "path": "all.env", "key": key, "optional": optional});
        json!({"name": name, "valueFrom": {"fileKeyRef": file}})
    };
    let spec = json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "volumes": [{"name": "made", "emptyDir": {}}],
        "initContainers": [{
            "name": "writer", "image": busybox, "volumeMounts": [{"name": "made", "mountPath": "/made"}],
            "command": ["sh", "-c", "printf \"A='one # two'\\nB='first\\nsecond' # said\\n\" > /made/all.env"],
        }],
    });
    let env = |more: Value| json!({"env": [from("FIRST", "A", false), from("SECOND", "B", false), more]});
    let work = "echo \"$FIRST/$SECOND/${THIRD-unset}\"";
    cluster.apply(&[
        script("told", busybox, work, env(from("THIRD", "C", true)), spec.clone()),
        script("untold", busybox, work, env(from("THIRD", "C", false)), spec),
    ])?;
    cluster.until("told", "has ended", ended)?;
    cluster.has_said("told", |said| said == "one # two/first\nsecond/unset\n")?;
    let waits = |pod: &Value| container(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError";
    let untold = cluster.until("untold", "waits", waits)?;
    let why = "environment variable key \"C\" not found in file \"all.env\"";
    ensure!(container(&untold)["state"]["waiting"]["message"] == why, "{untold:#}");
    cluster.delete(&["told", "untold"])
}

/// The reason for a failed start is given in the words of other runtimes.
pub(crate) fn beginnings_fail(cluster: &Cluster, busybox: &str) -> anyhow::Result<()> {
    let never = json!({"restartPolicy": "Never"});
    let cases = [
        (
            "of-a-file",
            json!({"workingDir": "/etc/passwd"}),
            "mkdir /etc/passwd: not a directory",
        ),
        (
            "below-a-file",
            json!({"workingDir": "/etc/passwd/x"}),
            "mkdir /etc/passwd: not a directory",
        ),
        (
            "of-text",
            json!({"command": ["/etc/passwd"]}),
            "exec: \"/etc/passwd\": permission denied",
        ),
        ("of-a-folder", json!({"command": ["/etc"]}), "exec: \"/etc\": "),
        (
            "of-none",
            json!({"command": ["nosuch"]}),
            "exec: \"nosuch\": executable file not found in $PATH",
        ),
    ];
    let pods: Vec<Value> = cases
        .iter()
        .map(|(name, more, _)| script(name, busybox, WAIT, more.clone(), never.clone()))
        .collect();
    cluster.apply(&pods)?;
    for (name, _, why) in &cases {
        let pod = cluster.until(name, "has ended", ended)?;
        let state = &container(&pod)["state"]["terminated"];
        ensure!(
            state["reason"] == "StartError" && state["exitCode"] == 128,
            "{name}: {state}"
        );
        let said = state["message"].as_str().unwrap_or_default();
        let begins = said.starts_with("failed to create ") && said.contains("OCI runtime create failed: ");
        ensure!(
            begins && said.contains("unable to start container process: ") && said.contains(why),
            "{name}: {said}"
        );
    }
    let names: Vec<&str> = cases.iter().map(|(name, _, _)| *name).collect();
    cluster.delete(&names)
}
