//! A device plugin in this process, and pods that ask for its devices.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::machine::eventually;
use tests::process;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::cluster::{Cluster, container, is_ready, uid};

const RESOURCE: &str = "example.com/dongle";
/// The kernel's log, which no container may open without being given it.
const DEVICE: (u64, u64) = (1, 11);
/// The plugin's devices.
const IDS: [&str; 2] = ["a", "b"];

/// Field of a protobuf message, shorter than 128 bytes.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    [&[(number << 3) | 2, length][..], value].concat()
}

/// Message with its gRPC prefix.
fn framed(message: &[u8]) -> Bytes {
    let length = u8::try_from(message.len()).unwrap();
    [&[0, 0, 0, 0, length][..], message].concat().into()
}

fn answer(message: &[u8]) -> Response {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from(0_u16));
    let trailers = std::future::ready(Some(Ok::<_, Infallible>(trailers)));
    told(Body::new(Full::new(framed(message)).with_trailers(trailers)))
}

fn told(body: Body) -> Response {
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(body).unwrap()
}

/// What the plugin's methods know: which devices are healthy, and where their node is.
#[derive(Clone)]
struct Known {
    healthy: watch::Receiver<Vec<&'static str>>,
    node: PathBuf,
}

/// `ListAndWatch`.
async fn list(State(mut known): State<Known>) -> Response {
    known.healthy.mark_changed();
    let lists = futures::stream::unfold(known.healthy, |mut healthy| async move {
        healthy.changed().await.ok()?;
        let seen = healthy.borrow_and_update().clone();
        let devices = IDS.map(|id| {
            let health: &[u8] = if seen.contains(&id) { b"Healthy" } else { b"Unhealthy" };
            field(1, &[field(1, id.as_bytes()), field(2, health)].concat())
        });
        Some((Ok::<_, Infallible>(framed(&devices.concat())), healthy))
    });
    told(Body::from_stream(lists))
}

/// `Allocate`, for one device: the last byte of the request is its name.
async fn allocate(State(known): State<Known>, body: Body) -> Response {
    let request = to_bytes(body, 1024).await.unwrap_or_default();
    let id = request.last().map(|id| vec![*id]).unwrap_or_default();
    let path = [&b"/dev/skiff-"[..], id.as_slice()].concat();
    let node = known.node.display().to_string();
    let device = [field(1, &path), field(2, node.as_bytes()), field(3, b"rw")].concat();
    let variable = [field(1, b"DEVICE"), field(2, &id)].concat();
    let container = [field(1, &variable), field(3, &device)].concat();
    answer(&field(1, &container))
}

/// Calls `Register` at the agent's socket.
async fn register(folder: &Path) -> anyhow::Result<()> {
    let stream = UnixStream::connect(folder.join("kubelet.sock")).await?;
    let stream = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let fields: [&[u8]; 3] = [b"v1beta1", b"dongle.sock", RESOURCE.as_bytes()];
    let fields: Vec<Vec<u8>> = (1..).zip(fields).map(|(number, value)| field(number, value)).collect();
    let request = http::Request::post("http://localhost/v1beta1.Registration/Register")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(framed(&fields.concat())))?;
    let answer = sender.send_request(request).await?.into_body().collect().await?;
    let status = answer.trailers().and_then(|trailers| trailers.get("grpc-status"));
    ensure!(status.is_some_and(|status| status == "0"), "{answer:?}");
    Ok(())
}

/// Serves in the folder, and registers again whenever the agent has removed the plugin's socket.
async fn serve(folder: PathBuf, known: Known, mut end: oneshot::Receiver<()>) {
    let router = Router::new()
        .route(
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            post(|| async { answer(&[]) }),
        )
        .route("/v1beta1.DevicePlugin/ListAndWatch", post(list))
        .route("/v1beta1.DevicePlugin/Allocate", post(allocate))
        .with_state(known);
    let socket = folder.join("dongle.sock");
    loop {
        fs::remove_file(&socket).ok();
        let listener = UnixListener::bind(&socket).unwrap();
        let mut tasks = JoinSet::new();
        let own = router.clone();
        tasks.spawn(async move { axum::serve(listener, own).await });
        let mut registered = false;
        while socket.exists() {
            registered = registered || register(&folder).await.is_ok();
            tokio::select! {
                _ = &mut end => return,
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

/// A running plugin; dropped, it ends.
struct Plugin {
    healthy: watch::Sender<Vec<&'static str>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Plugin {
    fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let node = cluster.folder.path().join("dongle");
        mknod(
            &node,
            SFlag::S_IFCHR,
            Mode::from_bits_truncate(0o666),
            makedev(DEVICE.0, DEVICE.1),
        )?;
        let folder = cluster.machine.state().join("agent/kubelet/device-plugins");
        let (healthy, receiver) = watch::channel(IDS.to_vec());
        let (end, ended) = oneshot::channel();
        let known = Known {
            healthy: receiver,
            node,
        };
        // kubectl blocks the test's own thread.
        let thread = std::thread::spawn(move || {
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build();
            executor.unwrap().block_on(serve(folder, known, ended));
        });
        Ok(Self {
            healthy,
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Waits until the node has so many devices, of which so many are healthy.
fn counts(cluster: &Cluster, capacity: &str, allocatable: &str) -> anyhow::Result<()> {
    eventually(&format!("{capacity} devices, {allocatable} healthy"), || {
        let nodes = cluster.machine.kubectl(["get", "nodes", "-o", "json"]);
        let nodes = nodes.map_err(|error| format!("{error:#}"))?;
        let nodes: Value = serde_json::from_str(&nodes).map_err(|error| error.to_string())?;
        let status = &nodes["items"][0]["status"];
        let seen = [&status["capacity"][RESOURCE], &status["allocatable"][RESOURCE]];
        let wanted = seen[0] == capacity && seen[1] == allocatable;
        wanted.then_some(()).ok_or_else(|| format!("{seen:?}"))
    })
}

fn pod(name: &str, image: &str) -> Value {
    let script = "echo $DEVICE; : > /dev/skiff-$DEVICE && echo used; exec sleep 100000";
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": image, "command": ["sh", "-c", script],
                        "resources": {"limits": {RESOURCE: "1"}}}],
    }})
}

/// Waits until a pod has used its device; returns the device.
fn used(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    cluster.until(name, "is ready", is_ready)?;
    let whole = |said: &str| said.ends_with("used\n");
    cluster.has_said(name, whole)?;
    Ok(cluster.logs(name)?.lines().next().unwrap_or_default().to_owned())
}

/// Pods have the devices that a plugin offers, one each, over restarts of container and agent.
pub(crate) fn plugins_offer_devices(cluster: &Cluster, image: &str) -> anyhow::Result<()> {
    let plugin = Plugin::start(cluster)?;
    counts(cluster, "2", "2")?;
    cluster.apply(&[pod("dongle-1", image), pod("dongle-2", image)])?;
    let mut owners = [
        (used(cluster, "dongle-1")?, "dongle-1"),
        (used(cluster, "dongle-2")?, "dongle-2"),
    ];
    owners.sort();
    let [(first, keeper), (second, leaver)] = owners;
    ensure!([&first, &second] == ["a", "b"], "{first} {second}");
    cluster.apply(&[pod("dongle-3", image)])?;
    cluster.until("dongle-3", "waits for a device", |pod| {
        let conditions = pod["status"]["conditions"].to_string();
        pod["status"]["phase"] == "Pending" && conditions.contains("Insufficient example.com/dongle")
    })?;
    plugin.healthy.send_replace(vec!["a"]);
    counts(cluster, "2", "1")?;
    plugin.healthy.send_replace(IDS.to_vec());
    counts(cluster, "2", "2")?;
    cluster.machine.kill("skiff-agent")?;
    cluster.machine.skiff(["up"])?;
    counts(cluster, "2", "2")?;
    // Had the agent forgotten whose the first device is, the next pod would get that one.
    cluster.delete(&[leaver])?;
    ensure!(used(cluster, "dongle-3")? == second, "the device that was freed");
    let before = cluster.until(keeper, "is ready", is_ready)?;
    ensure!(container(&before)["restartCount"] == 0, "{before}");
    kill(Pid::from_raw(process::container_of(uid(&before))?), Signal::SIGKILL)?;
    cluster.until(keeper, "was restarted", |pod| {
        container(pod)["restartCount"] == 1 && is_ready(pod)
    })?;
    ensure!(used(cluster, keeper)? == first, "the device that it had");
    // Without its plugin, a device is given to nobody.
    drop(plugin);
    counts(cluster, "2", "0")?;
    cluster.delete(&[keeper, "dongle-3"])
}
