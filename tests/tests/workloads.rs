//! Stateful and daemon sets on one real node: data that survive their pods, updates, rollbacks,
//! and a node whose label comes and goes.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use serde_json::Value;
use tests::images;
use tests::machine::{Machine, eventually};

const SET: &str = include_str!("workloads.yaml");

struct Node(Machine);

impl Node {
    fn kubectl(&self, words: &str) -> anyhow::Result<String> {
        self.0.kubectl(words.split(' '))
    }

    fn apply(&self, home: &Path, manifest: &str) -> anyhow::Result<()> {
        let file = home.join("workloads.yaml");
        std::fs::write(&file, manifest)?;
        self.0.kubectl(["apply", "-f", &file.display().to_string()]).map(drop)
    }

    fn get(&self, objects: &str) -> Result<Value, String> {
        let said = self.kubectl(&format!("get {objects} -o json"));
        let said = said.map_err(|error| format!("{error:#}"))?;
        serde_json::from_str(&said).map_err(|error| error.to_string())
    }

    /// Waits until kubectl's output contains `wanted`.
    fn says(&self, words: &str, wanted: &str) -> anyhow::Result<()> {
        eventually(&format!("kubectl {words} says {wanted:?}"), || {
            let said = self.kubectl(words).map_err(|error| format!("{error:#}"))?;
            if said.contains(wanted) { Ok(()) } else { Err(said) }
        })
    }

    /// Waits until a pod of another uid than `former` is ready, and returns its uid.
    fn successor(&self, pod: &str, former: &str) -> anyhow::Result<String> {
        eventually(&format!("a new {pod} is ready"), || {
            let found = self.get(&format!("pod/{pod}"))?;
            let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            let ready = conditions
                .filter(|condition| condition["type"] == "Ready")
                .any(|condition| condition["status"] == "True");
            let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
            let here = ready && uid != former && found["metadata"]["deletionTimestamp"].is_null();
            if here {
                Ok(uid.to_owned())
            } else {
                Err(found["status"].to_string())
            }
        })
    }

    /// Waits until there is no object of a kind.
    fn has_no(&self, kind: &str) -> anyhow::Result<()> {
        eventually(&format!("there are no {kind}"), || {
            let left = self.get(kind)?;
            if left["items"].as_array().is_some_and(Vec::is_empty) {
                Ok(())
            } else {
                Err(left.to_string())
            }
        })
    }

    /// Waits until what a pod of a StatefulSet and its predecessors have written to their volume ends like this, and
    /// returns it.
    fn log(&self, pod: &str, end: &str) -> anyhow::Result<String> {
        eventually(&format!("the log of {pod} ends with {end:?}"), || {
            let log = self.kubectl(&format!("exec {pod} -- cat /data/log"));
            let log = log.map_err(|error| format!("{error:#}"))?;
            if log.ends_with(end) { Ok(log) } else { Err(log) }
        })
    }
}

#[test]
fn a_stateful_set_keeps_its_data_through_deletions_and_updates() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let machine = Machine::start("stateful")?;
    let image = images::busybox(&machine)?;
    let node = Node(machine);
    node.apply(home.path(), &SET.replace("IMAGE", &image))?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    for pod in ["web-0", "web-1", "web-2"] {
        for told in [
            format!("Create Pod {pod} in StatefulSet web successful"),
            format!("Create Claim data-{pod} Pod {pod} in StatefulSet web success"),
        ] {
            node.says("describe sts web", &told)?;
        }
    }
    eventually("nothing is wrong with it", || {
        let said = node.0.skiff(["why", "statefulset/web"]);
        let said = said.map_err(|error| format!("{error:#}"))?;
        let well = said.starts_with("StatefulSet default/web (3 of 3 pods well): nothing is wrong");
        well.then_some(()).ok_or(said)
    })?;
    assert_named(&node)?;
    for pod in ["web-2", "web-0", "web-1"] {
        let uid = node.successor(pod, "")?;
        node.kubectl(&format!("delete pod {pod} --wait=false"))?;
        node.successor(pod, &uid)?;
        let wanted = format!("{pod} first\n{pod} first\n");
        assert_eq!(node.log(pod, &wanted)?, wanted);
    }
    assert_updates(&node)?;
    assert_way_out(&node)?;
    node.kubectl("scale sts web --replicas=1")?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    node.says("get pvc -o name", "persistentvolumeclaim/data-web-0")?;
    let patch = r#"{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Delete"}}}"#;
    node.0.kubectl(["patch", "sts", "web", "-p", patch])?;
    node.says("get pvc data-web-0 -o yaml", "kind: StatefulSet")?;
    node.kubectl("delete sts web")?;
    eventually("the claim of the last pod went with the set", || {
        let left = node.kubectl("get pvc -o name").map_err(|error| format!("{error:#}"))?;
        let kept = ["data-web-1", "data-web-2"].iter().all(|claim| left.contains(claim));
        if kept && !left.contains("data-web-0") {
            Ok(())
        } else {
            Err(left)
        }
    })?;
    node.kubectl("delete pvc --all")?;
    node.has_no("pv")?;
    node.0.finish()
}

fn assert_named(node: &Node) -> anyhow::Result<()> {
    let pod = node.get("pod/web-1").map_err(anyhow::Error::msg)?;
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "web-1");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "1");
    assert_eq!(pod["spec"]["subdomain"], "web");
    let set = node.get("sts/web").map_err(anyhow::Error::msg)?;
    assert_eq!(labels["controller-revision-hash"], set["status"]["currentRevision"]);
    assert_eq!(node.kubectl("exec web-1 -- hostname")?, "web-1\n");
    Ok(())
}

/// A rolling update with and without a partition, its history, and the rollback.
fn assert_updates(node: &Node) -> anyhow::Result<()> {
    let partition = r#"{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}"#;
    node.0.kubectl(["patch", "sts", "web", "-p", partition])?;
    node.kubectl("set env sts/web VERSION=second")?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    node.log("web-2", "web-2 second\n")?;
    node.log("web-1", "web-1 first\n")?;
    let whole = r#"{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}"#;
    node.0.kubectl(["patch", "sts", "web", "-p", whole])?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    node.log("web-0", "web-0 second\n")?;
    let history = node.kubectl("rollout history sts/web")?;
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    let second = node.kubectl("rollout history sts/web --revision=2")?;
    assert!(second.contains("VERSION:\tsecond"), "{second}");
    node.kubectl("rollout undo sts/web")?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    node.log("web-0", "web-0 second\nweb-0 first\n")?;
    let history = node.kubectl("rollout history sts/web")?;
    assert!(history.contains("\n2 ") && history.contains("\n3 "), "{history}");
    let former = node.successor("web-0", "")?;
    node.kubectl("rollout restart sts/web")?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    node.successor("web-0", &former).map(drop)
}

/// A revision whose pods never become ready is left by bringing back the one before and deleting the broken pod.
fn assert_way_out(node: &Node) -> anyhow::Result<()> {
    node.kubectl("set image sts/web main=nowhere.invalid/missing:1")?;
    node.says("get pod web-2", "ImagePull")?;
    eventually("skiff why tells of the image", || {
        let said = node.0.skiff(["why", "statefulset/web"]).err();
        let said = said.map(|error| error.to_string()).unwrap_or_default();
        let told = said.contains("cannot be pulled: nowhere.invalid/missing:1");
        told.then_some(()).ok_or(said)
    })?;
    node.kubectl("rollout undo sts/web")?;
    node.kubectl("delete pod web-2")?;
    node.kubectl("rollout status sts/web --timeout=120s")?;
    node.successor("web-2", "").map(drop)
}

/// The one pod that is not on its way out.
fn daemon(node: &Node) -> Result<Value, String> {
    let pods = node.get("pods")?;
    let items = pods["items"].as_array().into_iter().flatten();
    let mut lasting = items.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    lasting.next().cloned().ok_or_else(|| pods.to_string())
}

/// Waits until the pod is of a version.
fn of_version(node: &Node, wanted: &str) -> anyhow::Result<Value> {
    eventually(&format!("the pod has VERSION={wanted}"), || {
        let found = daemon(node)?;
        let is = found["spec"]["containers"][0]["env"][0]["value"] == wanted;
        if is { Ok(found) } else { Err(found["spec"].to_string()) }
    })
}

/// A drain names the pods of a DaemonSet, and leaves them where they are if told so; it waits for a
/// disruption budget.
fn assert_drains(node: &Node, name: &str) -> anyhow::Result<()> {
    node.kubectl("rollout status deployment/web --timeout=120s")?;
    node.says("get pdb web -o jsonpath={.status.disruptionsAllowed}", "1")?;
    let drain = |flags: &str| node.kubectl(&format!("drain {name} {flags}"));
    let refusal = |flags: &str| {
        let error = drain(flags).err();
        error.map(|error| format!("{error:#}")).unwrap_or_default()
    };
    let said = refusal("--timeout=60s");
    assert!(
        said.contains("cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): default/log-"),
        "{said}"
    );
    let said = refusal("--ignore-daemonsets --timeout=10s");
    let because = "Cannot evict pod as it would violate the pod's disruption budget.";
    assert!(said.contains(because), "{said}");
    node.kubectl("delete pdb web")?;
    drain("--ignore-daemonsets --timeout=60s").map(drop)
}

#[test]
fn a_daemon_set_follows_its_node_and_its_template() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let machine = Machine::start("daemons")?;
    let image = images::busybox(&machine)?;
    let node = Node(machine);
    let manifest = include_str!("daemons.yaml").replace("IMAGE", &image);
    node.apply(home.path(), &manifest)?;
    node.says(
        "get ds log",
        "log    0         0         0       0            0           disk=ssd",
    )?;
    node.kubectl("label nodes --all disk=ssd")?;
    node.says(
        "get ds log",
        "log    1         1         1       1            1           disk=ssd",
    )?;
    let first = daemon(&node).map_err(anyhow::Error::msg)?;
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let field = first.pointer(&format!("{required}/0/matchFields/0/values/0"));
    assert_eq!(field, Some(&first["spec"]["nodeName"]));
    node.says(
        "describe ds log",
        &format!(
            "Created pod: {}",
            first["metadata"]["name"].as_str().unwrap_or_default()
        ),
    )?;
    node.kubectl("set env ds/log VERSION=second")?;
    node.kubectl("rollout status ds/log --timeout=120s")?;
    of_version(&node, "second")?;
    let history = node.kubectl("rollout history ds/log")?;
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    node.kubectl("rollout undo ds/log")?;
    node.kubectl("rollout status ds/log --timeout=120s")?;
    let back = of_version(&node, "first")?;
    let history = node.kubectl("rollout history ds/log")?;
    assert!(history.contains("\n2 ") && history.contains("\n3 "), "{history}");
    // With surge the new pod is created before the old one is deleted.
    let surge = r#"{"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}}}}"#;
    node.0.kubectl(["patch", "ds", "log", "-p", surge])?;
    node.kubectl("rollout restart ds/log")?;
    node.kubectl("rollout status ds/log --timeout=120s")?;
    let restarted = eventually("another pod takes its place", || {
        let found = daemon(&node)?;
        let is_other = found["metadata"]["uid"] != back["metadata"]["uid"];
        if is_other {
            Ok(found)
        } else {
            Err(found["metadata"].to_string())
        }
    })?;
    let name = restarted["spec"]["nodeName"].as_str().unwrap_or_default();
    node.apply(home.path(), &include_str!("budget.yaml").replace("IMAGE", &image))?;
    assert_drains(&node, name)?;
    let drained = node.get("pods -l app=log").map_err(anyhow::Error::msg)?;
    assert_eq!(drained["items"][0]["metadata"]["uid"], restarted["metadata"]["uid"]);
    node.kubectl("delete deployment web")?;
    node.kubectl(&format!("uncordon {name}"))?;
    node.kubectl("label nodes --all disk-")?;
    node.has_no("pods")?;
    node.kubectl("delete ds log")?;
    node.0.finish()
}

#[test]
fn an_autoscaler_follows_the_load() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let machine = Machine::start("scaler")?;
    let image = images::busybox(&machine)?;
    let node = Node(machine);
    let switch = home.path().join("switch");
    std::fs::create_dir(&switch)?;
    std::fs::write(switch.join("on"), "")?;
    let manifest = include_str!("scaler.yaml").replace("IMAGE", &image);
    node.apply(home.path(), &manifest.replace("SWITCH", &switch.display().to_string()))?;
    // Each step waits for a measurement and for the autoscaler's next look.
    let sized = |count: u32| {
        node.kubectl(&format!(
            "wait deployment/load --for=jsonpath={{.spec.replicas}}={count} --timeout=180s"
        ))
    };
    sized(4)?;
    node.says(
        "describe hpa load",
        "cpu resource utilization (percentage of request) above target",
    )?;
    std::fs::remove_file(switch.join("on"))?;
    sized(1)?;
    node.says("describe hpa load", "New size: 1; reason: All metrics below target")?;
    node.kubectl("delete hpa,deployment load")?;
    node.has_no("pods")?;
    node.0.finish()
}
