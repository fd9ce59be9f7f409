//! A CSI driver in the test's process, whose volumes are file systems in memory, and one a block device.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use csi::{ExpandRequest, NodeCapabilities, NodeCapability, NodeInfo, PluginInfo, PublishRequest, RpcCapability};
use csi::{RegistrationStatus, StageRequest, Topology, UndoRequest};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt as _, Full};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use prost::Message as _;
use serde_json::Value;
use tests::machine::eventually;

use super::Node;

const NAME: &str = "tmpfs.example.com";
/// Volume that is a block device.
const DEVICE: &str = "b1";
const ZONE: &str = "topology.tmpfs.example.com/zone";
const MANIFEST: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: tmpfs.example.com}
spec:
  attachRequired: false
  podInfoOnMount: true
  requiresRepublish: true
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent, Ephemeral]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: drawer}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  csi: {driver: tmpfs.example.com, volumeHandle: h1, volumeAttributes: {color: red}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: drawer}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  storageClassName: ""
  volumeName: drawer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: slab}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  volumeMode: Block
  csi: {driver: tmpfs.example.com, volumeHandle: b1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: slab}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  storageClassName: ""
  volumeMode: Block
  volumeName: slab
---
apiVersion: v1
kind: Pod
metadata: {name: drawn}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000, fsGroup: 4321}
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "test -b /raw/slab && echo kept > /d/file && echo own > /own/file && sleep 3600"]
    volumeMounts: [{name: d, mountPath: /d}, {name: own, mountPath: /own}]
    volumeDevices: [{name: b, devicePath: /raw/slab}]
  - name: other
    image: IMAGE
    command: [sh, -c, "test -b /dev/slab && exec sleep 3600"]
    volumeDevices: [{name: b, devicePath: /dev/slab}]
  volumes:
  - {name: d, persistentVolumeClaim: {claimName: drawer}}
  - {name: b, persistentVolumeClaim: {claimName: slab}}
  - {name: told, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: own, csi: {driver: tmpfs.example.com}}
"#;

/// Driver and its registrar.
struct Driver {
    socket: PathBuf,
    calls: Mutex<Vec<String>>,
    /// Locked while the driver hangs as it unstages a volume.
    unstaging: Mutex<()>,
}

impl Driver {
    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, call: String) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    fn answer(&self, method: &str, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        match method {
            "GetInfo" => Ok(PluginInfo {
                kind: csi::PLUGIN_TYPE.to_owned(),
                name: NAME.to_owned(),
                endpoint: self.socket.display().to_string(),
                supported_versions: vec!["1.0.0".to_owned()],
            }
            .encode_to_vec()),
            "NotifyRegistrationStatus" => {
                let status = RegistrationStatus::decode(message)?;
                assert!(status.plugin_registered, "{}", status.error);
                Ok(Vec::new())
            }
            "NodeGetInfo" => Ok(NodeInfo {
                node_id: "node-1".to_owned(),
                max_volumes_per_node: 7,
                accessible_topology: Some(Topology {
                    segments: [(ZONE.to_owned(), "z".to_owned())].into(),
                }),
            }
            .encode_to_vec()),
            "NodeGetCapabilities" => {
                // It stages and expands.
                let of = |kind| NodeCapability {
                    rpc: Some(RpcCapability { kind }),
                };
                let capabilities = vec![of(1), of(3)];
                Ok(NodeCapabilities { capabilities }.encode_to_vec())
            }
            "NodeStageVolume" => {
                let request = StageRequest::decode(message)?;
                if !is_device(request.volume_capability.as_ref()) {
                    memory(&request.staging_target_path)?;
                }
                self.note(format!("stage {} {:?}", request.volume_id, request.volume_context));
                Ok(Vec::new())
            }
            "NodePublishVolume" => self.publish(&PublishRequest::decode(message)?),
            "NodeUnpublishVolume" => {
                let request = UndoRequest::decode(message)?;
                if request.volume_id == DEVICE {
                    std::fs::remove_file(&request.path)?;
                } else {
                    umount2(request.path.as_str(), MntFlags::empty())?;
                    std::fs::remove_dir(&request.path)?;
                }
                self.note("unpublish".to_owned());
                Ok(Vec::new())
            }
            "NodeExpandVolume" => {
                let request = ExpandRequest::decode(message)?;
                let bytes = request.capacity_range.unwrap_or_default().required_bytes;
                assert!(Path::new(&request.volume_path).is_dir(), "{}", request.volume_path);
                self.note(format!("expand {} {bytes}", request.volume_id));
                Ok(Vec::new())
            }
            "NodeUnstageVolume" => {
                drop(self.unstaging.lock());
                let request = UndoRequest::decode(message)?;
                if request.volume_id != DEVICE {
                    umount2(request.path.as_str(), MntFlags::empty())?;
                }
                self.note(format!("unstage {}", request.volume_id));
                Ok(Vec::new())
            }
            other => anyhow::bail!("unknown method {other}"),
        }
    }

    fn publish(&self, request: &PublishRequest) -> anyhow::Result<Vec<u8>> {
        let context = |key: &str| {
            let value = request.volume_context.get(&format!("csi.storage.k8s.io/{key}"));
            value.map_or("", String::as_str)
        };
        let target = Path::new(&request.target_path);
        if target.exists() {
            self.note(format!("publish again {}", context("ephemeral")));
            return Ok(Vec::new());
        }
        if is_device(request.volume_capability.as_ref()) {
            let mode = Mode::from_bits_truncate(0o600);
            mknod(target, SFlag::S_IFBLK, mode, makedev(7, 0))?;
            self.note(format!("publish {}", request.volume_id));
            return Ok(Vec::new());
        }
        std::fs::create_dir(target)?;
        if request.staging_target_path.is_empty() {
            memory(&request.target_path)?;
        } else {
            let (from, none) = (request.staging_target_path.as_str(), None::<&str>);
            mount(Some(from), target, none, MsFlags::MS_BIND, none)?;
        }
        self.note(format!("publish {} {}", context("pod.name"), context("ephemeral")));
        Ok(Vec::new())
    }
}

fn is_device(capability: Option<&csi::VolumeCapability>) -> bool {
    capability.is_some_and(|capability| capability.block.is_some())
}

fn memory(target: &str) -> anyhow::Result<()> {
    let kind = Some("tmpfs");
    Ok(mount(kind, target, kind, MsFlags::empty(), Some("size=1m"))?)
}

/// Answers a gRPC request.
async fn serve(State(driver): State<Arc<Driver>>, request: Request) -> Response {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.expect("a request").to_bytes();
    let outcome = driver.answer(&method, body.get(5..).unwrap_or_default());
    let mut trailers = HeaderMap::new();
    let (code, message) = match outcome {
        Ok(message) => ("0", message),
        Err(error) => {
            driver.note(format!("{method}: {error:#}"));
            ("13", Vec::new())
        }
    };
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).expect("a short message").to_be_bytes());
    framed.extend(message);
    let body = Full::new(Bytes::from(framed)).with_trailers(async move { Some(Ok(trailers)) });
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(Body::new(body)).expect("a response")
}

/// A driver mounts the volumes of claims and of the pod itself, keeps them up to date, and unmounts
/// them in order, also for an agent that did not see them mounted.
pub(crate) fn assert_driven(node: &Node, home: &Path) -> anyhow::Result<()> {
    let kubelet = node.machine.state().join("agent/kubelet");
    let registration = kubelet.join("plugins_registry/tmpfs-reg.sock");
    let driver = Arc::new(Driver {
        socket: kubelet.join("plugins/csi.sock"),
        calls: Mutex::default(),
        unstaging: Mutex::default(),
    });
    let runtime = tokio::runtime::Runtime::new()?;
    let nodes = node.get(&["nodes"]).map_err(anyhow::Error::msg)?;
    let name = nodes["items"][0]["metadata"]["name"].as_str().unwrap_or_default();
    node.until(&format!("csinode/{name}"), "/metadata/ownerReferences/0/name", name)?;
    for path in [&driver.socket, &registration] {
        let _inside = runtime.enter();
        let listener = tokio::net::UnixListener::bind(path)?;
        let router = Router::new().fallback(serve).with_state(Arc::clone(&driver));
        runtime.spawn(async move { axum::serve(listener, router).await });
    }
    assert_registered(node, name)?;
    node.apply(home, &MANIFEST.replace("IMAGE", &node.image))?;
    let staged = eventually("the pod writes into its volume", || {
        let drivers = kubelet.join("plugins/kubernetes.io/csi").join(NAME);
        let found = std::fs::read_dir(&drivers).map_err(|error| error.to_string())?;
        let staged = found.flatten().next().ok_or("nothing is staged")?.path();
        let text = std::fs::read_to_string(staged.join("globalmount/file"));
        let text = text.map_err(|error| format!("{error}: {:?}", driver.calls()))?;
        if text == "kept\n" { Ok(staged) } else { Err(text) }
    })?;
    assert_eq!(std::fs::metadata(staged.join("globalmount"))?.gid(), 4321);
    let data: Value = serde_json::from_slice(&std::fs::read(staged.join("vol_data.json"))?)?;
    assert_eq!(data["volumeHandle"], "h1");
    node.until("pod/drawn", "/status/phase", "Running")?;
    let calls = driver.calls();
    let wanted = [
        "stage h1 {\"color\": \"red\"}",
        "publish drawn false",
        "stage b1 {}",
        "publish b1",
        "publish drawn true",
    ];
    assert_eq!(calls, wanted);

    assert_kept(node, &driver)?;

    node.machine.kill("skiff-agent")?;
    node.machine.skiff(["up"])?;
    let hangs = driver.unstaging.lock().unwrap_or_else(PoisonError::into_inner);
    // The pod is gone without it.
    node.machine
        .kubectl(["delete", "pod/drawn", "--grace-period=1", "--timeout=30s"])?;
    drop(hangs);
    assert_undone(&driver, &kubelet, &staged)?;
    std::fs::remove_file(&registration)?;
    eventually("the driver is gone from the node", || {
        let found = node.get(&[&format!("csinode/{name}")])?;
        let drivers = found["spec"]["drivers"].as_array().map_or(0, Vec::len);
        (drivers == 0).then_some(()).ok_or_else(|| found.to_string())
    })?;
    node.machine.kubectl(["delete", "pvc/drawer", "pvc/slab"])?;
    node.machine
        .kubectl(["delete", "pv/drawer", "pv/slab", "csidriver/tmpfs.example.com"])
        .map(drop)
}

/// Mounted volumes become larger, and are mounted again.
fn assert_kept(node: &Node, driver: &Driver) -> anyhow::Result<()> {
    let larger = r#"{"spec": {"capacity": {"storage": "2Gi"}}}"#;
    node.machine.kubectl(["patch", "pv/drawer", "--patch", larger])?;
    // Otherwise, it is looked at every minute.
    node.machine.kubectl(["label", "pod/drawn", "looked=at"])?;
    node.until("pvc/drawer", "/status/capacity/storage", "2Gi")?;
    for call in ["publish again false", "publish again true", "expand h1 2147483648"] {
        eventually(call, || {
            let calls = driver.calls();
            calls
                .iter()
                .any(|known| known == call)
                .then_some(())
                .ok_or_else(|| format!("{calls:?}"))
        })?;
    }
    let events = node.get(&["events"]).map_err(anyhow::Error::msg)?;
    let mut events = events["items"].as_array().into_iter().flatten();
    let failed = events.find(|event| event["reason"] == "FailedMount" && event["involvedObject"]["name"] == "drawn");
    assert_eq!(failed, None);
    Ok(())
}

/// The volumes are unmounted in order, and nothing is left of them.
fn assert_undone(driver: &Driver, kubelet: &Path, staged: &Path) -> anyhow::Result<()> {
    eventually("the volumes are unmounted in order", || {
        let calls = driver.calls();
        let ends = calls.iter().filter(|call| call.starts_with("un"));
        let (mut ends, mut last) = (ends.cloned().collect::<Vec<_>>(), Vec::new());
        if ends.len() == 5 {
            last = ends.split_off(3);
            last.sort();
        }
        let told = ends == ["unpublish"; 3] && last == ["unstage b1", "unstage h1"];
        told.then_some(()).ok_or_else(|| format!("{calls:?}"))
    })?;
    eventually("nothing is left of them", || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let mounted = mounts.contains(&kubelet.display().to_string());
        let pods = std::fs::read_dir(kubelet.join("pods")).map_err(|error| error.to_string())?;
        let (pods, staged) = (pods.count(), staged.exists());
        let is_clean = !mounted && pods == 0 && !staged;
        is_clean
            .then_some(())
            .ok_or_else(|| format!("{mounted} {pods} {staged}"))
    })
}

/// The node's objects tell of the driver.
fn assert_registered(node: &Node, name: &str) -> anyhow::Result<()> {
    let found = node.until(&format!("csinode/{name}"), "/spec/drivers/0/name", NAME)?;
    let driver = &found["spec"]["drivers"][0];
    assert_eq!(driver["nodeID"], "node-1");
    assert_eq!(driver["allocatable"]["count"], 7);
    assert_eq!(driver["topologyKeys"], serde_json::json!([ZONE]));
    assert_eq!(found["metadata"]["ownerReferences"][0]["name"], name);
    let shown = node.get(&["node", name]).map_err(anyhow::Error::msg)?;
    let metadata = &shown["metadata"];
    assert_eq!(metadata["labels"][ZONE], "z");
    let ids = &metadata["annotations"]["csi.volume.kubernetes.io/nodeid"];
    assert_eq!(*ids, "{\"tmpfs.example.com\":\"node-1\"}");
    Ok(())
}
