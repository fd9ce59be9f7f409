//! Storage that outlives pods, on one real node: claims that are bound to volumes, data that are
//! still there, and the end of both.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

#[path = "volumes/driver.rs"]
mod driver;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::images;
use tests::machine::{Machine, eventually};

/// A volume of another node, in a pod that names its node itself.
const ELSEWHERE: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: afar}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  local: {path: /tmp}
  nodeAffinity:
    required:
      nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [another]}]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: afar}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  storageClassName: ""
  volumeName: afar
---
apiVersion: v1
kind: Pod
metadata: {name: astray}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: afar}}]
"#;

struct Node {
    machine: Machine,
    image: String,
}

impl Node {
    fn get(&self, words: &[&str]) -> Result<Value, String> {
        let all = ["get"].iter().chain(words).chain(&["-o", "json"]).copied();
        let said = self.machine.kubectl(all).map_err(|error| format!("{error:#}"))?;
        serde_json::from_str(&said).map_err(|error| error.to_string())
    }

    /// Waits until the object has this value at this path.
    fn until(&self, object: &str, path: &str, wanted: &str) -> anyhow::Result<Value> {
        eventually(&format!("{object} has {wanted} at {path}"), || {
            let found = self.get(&[object])?;
            if found.pointer(path).and_then(Value::as_str) == Some(wanted) {
                return Ok(found);
            }
            Err(found.to_string())
        })
    }

    /// Waits until there is no such object.
    fn gone(&self, object: &str) -> anyhow::Result<()> {
        eventually(&format!("{object} is gone"), || match self.get(&[object]) {
            Err(error) if error.contains("NotFound") => Ok(()),
            Ok(found) => Err(found.to_string()),
            Err(error) => Err(error),
        })
    }

    /// Waits for an event of an object, `Type Reason: message`.
    fn event(&self, kind: &str, name: &str, wanted: &str) -> anyhow::Result<()> {
        let selector = format!("--field-selector=involvedObject.name={name},involvedObject.kind={kind}");
        let format = "-o=jsonpath={range .items[*]}{.type} {.reason}: {.message}{\"\\n\"}{end}";
        eventually(&format!("an event of {kind} {name}: {wanted}"), || {
            let said = self.machine.kubectl(["get", "events", &selector, format]);
            let said = said.map_err(|error| format!("{error:#}"))?;
            if said.contains(wanted) { Ok(()) } else { Err(said) }
        })
    }

    fn apply(&self, home: &Path, manifest: &str) -> anyhow::Result<()> {
        let file = home.join("volumes.yaml");
        std::fs::write(&file, manifest)?;
        self.machine
            .kubectl(["apply", "-f", &file.display().to_string()])
            .map(drop)
    }

    /// The one pod of the Deployment that is ready and not on its way out.
    fn writer(&self, not: &str) -> anyhow::Result<String> {
        eventually("the writer is ready", || {
            let pods = self.get(&["pods", "-l", "app=writer"])?;
            let ready = pods["items"].as_array().into_iter().flatten().find(|pod| {
                let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
                pod["metadata"]["name"] != not && ready.any(|condition| condition["status"] == "True")
            });
            let name = ready.and_then(|pod| pod["metadata"]["name"].as_str());
            name.map(str::to_owned).ok_or_else(|| pods.to_string())
        })
    }
}

#[test]
fn data_outlive_pods_and_go_with_their_claims() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let machine = Machine::start("volumes")?;
    let image = images::busybox(&machine)?;
    let node = Node { machine, image };
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared)?;
    std::fs::write(shared.join("book"), "a story\n")?;
    let manifest = include_str!("volumes.yaml").replace("IMAGE", &node.image);
    node.apply(home.path(), &manifest.replace("SHARED", &shared.display().to_string()))?;
    let directory = assert_kept(&node)?;
    assert_shelf(&node, &shared)?;
    assert_waits(&node)?;
    assert_demands(&node)?;
    driver::assert_driven(&node, home.path())?;
    assert_elsewhere(&node, home.path())?;
    assert_exclusive(&node)?;
    assert_ends(&node, &directory)?;
    assert_recorded(&node)?;
    node.machine.finish()
}

/// A pod that asks for a driver or a runtime that the node lacks waits, and reports which.
fn assert_demands(node: &Node) -> anyhow::Result<()> {
    node.event(
        "Pod",
        "driven",
        "driver name disk.example.com not found in the list of registered CSI drivers",
    )?;
    let other = "no runtime for \"other-handler\" is configured";
    node.event("Pod", "other", other)?;
    let pod = node.until("pod/other", "/status/phase", "Pending")?;
    assert_eq!(pod["spec"]["overhead"]["cpu"], "10m");
    node.until("pod/usual", "/status/phase", "Running").map(drop)
}

/// A volume is not mounted on a node that its affinity excludes.
fn assert_elsewhere(node: &Node, home: &Path) -> anyhow::Result<()> {
    let nodes = node.get(&["nodes"]).map_err(anyhow::Error::msg)?;
    let name = nodes["items"][0]["metadata"]["name"].as_str().unwrap_or_default();
    let manifest = ELSEWHERE.replace("NODE", name).replace("IMAGE", &node.image);
    node.apply(home, &manifest)?;
    let refused = "Warning FailedMount: MountVolume.NodeAffinity check failed for volume \"afar\" : no matching NodeSelectorTerms";
    node.event("Pod", "astray", refused)?;
    node.machine.kubectl(["delete", "pod/astray", "pvc/afar"])?;
    node.machine.kubectl(["delete", "pv/afar"]).map(drop)
}

/// Files in the volume outlive the pod and the agent. The volume belongs to the group.
fn assert_kept(node: &Node) -> anyhow::Result<PathBuf> {
    let classes = node.machine.kubectl(["get", "storageclasses"])?;
    assert!(
        classes.contains("skiff-local (default)") && classes.contains("skiff.dev/local-path"),
        "{classes}"
    );
    let first = node.writer("")?;
    let claim = node.until("pvc/data", "/status/phase", "Bound")?;
    assert_eq!(claim["status"]["capacity"]["storage"], "64Mi");
    assert_eq!(claim["spec"]["storageClassName"], "skiff-local");
    let name = claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned();
    node.event(
        "PersistentVolumeClaim",
        "data",
        "Normal ProvisioningSucceeded: Successfully provisioned volume pvc-",
    )?;
    let volume = node.until(&format!("pv/{name}"), "/status/phase", "Bound")?;
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    let directory = PathBuf::from(volume["spec"]["local"]["path"].as_str().unwrap_or_default());
    assert!(
        directory.starts_with(std::fs::canonicalize(node.machine.state())?),
        "{}",
        directory.display()
    );
    eventually("the writer tells the log's owners", || {
        let said = node.machine.kubectl(["logs", &first]);
        let said = said.map_err(|error| format!("{error:#}"))?;
        let told = said
            .lines()
            .any(|line| line.contains(" 1000     4321 ") && line.ends_with("/data/log"));
        told.then_some(()).ok_or(said)
    })?;

    node.machine.kubectl(["delete", "pod", &first])?;
    let second = node.writer(&first)?;
    // A container that an agent starts which did not mount the volume finds it all the same.
    node.machine.kill("skiff-agent")?;
    node.machine.skiff(["up"])?;
    node.machine.kubectl(["exec", &second, "--", "kill", "1"]).ok();
    let log = directory.join("log");
    let wanted = format!("{first}\n{second}\n");
    eventually("the log of both", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.starts_with(&wanted) { Ok(()) } else { Err(text) }
    })?;
    assert!(directory.join("part").is_dir(), "the subPath");
    Ok(directory)
}

/// A static read-only volume, chosen by its labels.
fn assert_shelf(node: &Node, shared: &Path) -> anyhow::Result<()> {
    node.until("pod/reader", "/status/phase", "Running")?;
    eventually("the reader reads", || {
        let said = node
            .machine
            .kubectl(["logs", "reader"])
            .map_err(|error| error.to_string())?;
        if said.contains("a story") && said.contains("refused") {
            Ok(())
        } else {
            Err(said)
        }
    })?;
    assert!(!shared.join("new").exists());
    let claim = node.until("pvc/shelf", "/status/phase", "Bound")?;
    assert_eq!(claim["spec"]["volumeName"], "shelf");
    assert_eq!(
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"],
        "yes"
    );
    Ok(())
}

/// Failures have upstream's messages.
fn assert_waits(node: &Node) -> anyhow::Result<()> {
    let nothing = "Normal FailedBinding: no persistent volumes available for this claim and no storage class is set";
    node.event("PersistentVolumeClaim", "nowhere", nothing)?;
    let missing = "Warning FailedScheduling: 0/1 nodes are available: persistentvolumeclaim \"missing\" not found. \
                   no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    node.event("Pod", "lost", missing)?;
    let claims = node.machine.kubectl(["get", "pvc", "nowhere"])?;
    assert!(claims.contains("Pending"), "{claims}");
    let more = r#"{"spec":{"resources":{"requests":{"storage":"1Gi"}}}}"#;
    node.machine.kubectl(["patch", "pvc", "data", "-p", more])?;
    node.event(
        "PersistentVolumeClaim",
        "data",
        "Normal VolumeResizeSuccessful: Resize volume succeeded",
    )?;
    let claim = node.until("pvc/data", "/status/capacity/storage", "1Gi")?;
    let name = claim["spec"]["volumeName"].as_str().unwrap_or_default();
    node.until(&format!("pv/{name}"), "/spec/capacity/storage", "1Gi")?;
    let fixed = node.machine.kubectl(["patch", "pvc", "shelf", "-p", more]);
    let fixed = fixed.err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(
        fixed.contains("only dynamically provisioned pvc can be resized"),
        "{fixed}"
    );
    Ok(())
}

/// A claim for one pod alone.
fn assert_exclusive(node: &Node) -> anyhow::Result<()> {
    node.until("pod/first", "/status/phase", "Running")?;
    let overrides = r#"{"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"main","image":"IMAGE","command":["sleep","3600"],"volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"alone"}}]}}"#;
    let overrides = overrides.replace("IMAGE", &node.image);
    node.machine
        .kubectl(["run", "second", "--image", &node.image, "--overrides", &overrides])?;
    let taken = "1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.";
    node.event("Pod", "second", taken)?;
    node.machine.kubectl(["delete", "pod", "first"])?;
    node.until("pod/second", "/status/phase", "Running")?;
    // The claim that the pod brought along went with it.
    node.gone("pvc/first-scratch")
}

/// The claim waits for its pods; then its directory goes with it, and the other's path stays.
fn assert_ends(node: &Node, directory: &Path) -> anyhow::Result<()> {
    let claim = node.until("pvc/data", "/status/phase", "Bound")?;
    let name = claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned();
    node.machine
        .kubectl(["delete", "pvc", "data", "shelf", "--wait=false"])?;
    let shown = node.machine.kubectl(["get", "pvc", "data"])?;
    assert!(shown.contains("Terminating"), "{shown}");
    assert!(directory.join("log").exists());
    node.machine
        .kubectl(["delete", "deployment/writer", "pod/reader", "pod/second", "pod/lost"])?;
    node.gone("pvc/data")?;
    node.gone(&format!("pv/{name}"))?;
    assert!(!directory.exists(), "{}", directory.display());
    node.until("pv/shelf", "/status/phase", "Released")?;
    let shelf = node.get(&["pv/shelf"]).map_err(anyhow::Error::msg)?;
    assert_eq!(shelf["spec"]["claimRef"]["name"], "shelf");
    node.machine.kubectl(["delete", "pvc", "--all"])?;
    node.machine.kubectl(["delete", "pv", "shelf"])?;
    eventually("no volume is left", || {
        let left = node.get(&["pv"])?;
        if left["items"].as_array().is_some_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(left.to_string())
        }
    })
}

/// Everybody acted under a name of their own.
fn assert_recorded(node: &Node) -> anyhow::Result<()> {
    for (account, verb, resource) in [
        ("persistent-volume-binder", "patch", "persistentvolumes"),
        ("persistent-volume-binder", "patch", "persistentvolumeclaims"),
        ("local-path-provisioner", "create", "persistentvolumes"),
        ("ephemeral-volume-controller", "create", "persistentvolumeclaims"),
        ("pvc-protection-controller", "update", "persistentvolumeclaims"),
        ("pv-protection-controller", "update", "persistentvolumes"),
    ] {
        let user = format!("system:serviceaccount:kube-system:{account}");
        eventually(&format!("{user} {verb} {resource}"), || {
            let lines = node.machine.audit().map_err(|error| format!("{error:#}"))?;
            let found = lines.iter().any(|line| {
                line["user"]["username"] == user.as_str()
                    && line["verb"] == verb
                    && line["objectRef"]["resource"] == resource
            });
            found.then_some(()).ok_or_else(|| format!("not among {}", lines.len()))
        })?;
    }
    Ok(())
}
