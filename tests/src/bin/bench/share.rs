//! Cost of a pod over containerd beyond containerd's own: after each pod, a container with the same
//! configuration, snapshot and namespaces is created by the four calls that this takes at least.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agent_containerd::{CALL, Client, TASK, within};
use anyhow::Context as _;
use bytes::Bytes;
use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest};
use containerd_client::services::v1::{
    Container, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest, DeleteTaskRequest,
    GetContainerRequest, KillRequest, StartRequest, WaitRequest,
};
use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tests::http::Target;
use tests::parts::Parts;
use tokio::time::interval;

use crate::daemon::Daemon;
use crate::figures::{Table, milliseconds, now, percentiles};
use crate::node::{Pods, is_running};
use crate::started::Started;

/// Pods that are made one a second.
const PACED: usize = 40;
const STEPS: [&str; 4] = ["prepare snapshot", "create container", "create task", "start task"];
const OVERLAYFS: &str = "overlayfs";

/// Measures on a cluster of its own, with a containerd of its own.
pub(crate) async fn measure(archive: &Path, table: &mut Table) -> anyhow::Result<()> {
    if tests::process::run(std::process::Command::new("containerd").arg("--version")).is_err() {
        table.row("pods over containerd", "containerd is not installed");
        return Ok(());
    }
    let parts = Parts {
        containerd: true,
        cni: false,
    };
    let started = Started::with(parts, "share", &[]).await?;
    let home = started.folder.path().join("containerd");
    let client = Client::new(&Daemon::address(&home), &Daemon::namespace(&home))?;
    started.machine.import(archive)?;
    let images = started.machine.skiff(["image", "list"])?;
    let image = images.split_whitespace().find(|word| word.contains("nginx"));
    let target = Target::from_kubeconfig(&started.machine.kubeconfig())?;
    let mut pods = Pods::new(&target, "share", image.context("an nginx image")?).await?;
    let (mut running, mut by_hand) = (Vec::new(), Vec::new());
    let (mut all, mut own) = (Vec::new(), Vec::new());
    let mut steps: [Vec<Duration>; 4] = Default::default();
    let mut seconds = interval(Duration::from_secs(1));
    for number in 0..PACED {
        seconds.tick().await;
        let name = format!("share-{number}");
        let start = now();
        pods.create(&name).await?;
        let pod = pods.until(&name, is_running).await?;
        let whole = start.elapsed();
        let id = pod
            .pointer("/status/containerStatuses/0/containerID")
            .and_then(Value::as_str);
        let id = id
            .and_then(|id| id.strip_prefix("containerd://"))
            .context("a container")?;
        let times = probe(&client, id, &format!("probe-{number}")).await?;
        let sum = times.iter().sum();
        for (step, time) in steps.iter_mut().zip(times) {
            step.push(time);
        }
        running.push(whole);
        by_hand.push(sum);
        all.push(whole.saturating_sub(sum));
        own.push(at_node(&target, &pod).await?.saturating_sub(sum));
        pods.delete(&name).await?;
    }
    pods.end().await?;
    table.row(
        "over containerd: pod created -> running, one a second",
        percentiles(&mut running),
    );
    table.row(
        "its container by hand, from snapshot to start",
        percentiles(&mut by_hand),
    );
    for (what, times) in STEPS.into_iter().zip(&mut steps) {
        times.sort_unstable();
        let middle = times.get(times.len() / 2).copied().unwrap_or_default();
        table.row(format!("… {what}, p50"), milliseconds(middle));
    }
    for (what, mut times) in [
        ("what all of ours adds to that", all),
        ("… of it the agent: from hearing of the pod to finding it ready", own),
    ] {
        let figures = percentiles(&mut times);
        let least = times.first().copied().unwrap_or_default();
        table.row(what, format!("{figures}, least {}", milliseconds(least)));
    }
    started.finish().await
}

/// Time between the agent's receipt of the pod and its readiness.
async fn at_node(target: &Target, pod: &Value) -> anyhow::Result<Duration> {
    let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (node, uid) = (text("/spec/nodeName"), text("/metadata/uid"));
    let path = format!("/api/v1/nodes/{node}/proxy/milestones?uid={uid}");
    let answer = target.connect().await?.expect(Method::GET, &path, Bytes::new()).await?;
    let times: BTreeMap<String, Timestamp> = serde_json::from_slice(&answer)?;
    let at = |step| times.get(step).context("a step that the agent noted");
    Ok(Duration::try_from(at("ready")?.duration_since(*at("seen")?))?)
}

/// Makes a container as another one is, in a shim of its own, and removes it. How long each step took.
async fn probe(client: &Client, of: &str, id: &str) -> anyhow::Result<[Duration; 4]> {
    let id = id.to_owned();
    let request = client.request(GetContainerRequest { id: of.to_owned() });
    let found = within(CALL, "get container", client.containers().get(request)).await?;
    let mut container = found.container.context("a container")?;
    let request = client.request(StatSnapshotRequest {
        snapshotter: OVERLAYFS.to_owned(),
        key: of.to_owned(),
    });
    let snapshot = within(CALL, "stat snapshot", client.snapshots().stat(request)).await?;
    let parent = snapshot.info.context("a snapshot")?.parent;
    adapt(&mut container, &id)?;
    let start = now();
    let request = client.request(PrepareSnapshotRequest {
        snapshotter: OVERLAYFS.to_owned(),
        key: id.clone(),
        parent,
        labels: [("containerd.io/gc.root".to_owned(), "true".to_owned())].into(),
    });
    let prepared = within(TASK, "prepare snapshot", client.snapshots().prepare(request)).await?;
    let after_prepare = start.elapsed();
    let request = client.request(CreateContainerRequest {
        container: Some(container),
    });
    within(CALL, "create container", client.containers().create(request)).await?;
    let after_create = start.elapsed();
    let request = client.request(CreateTaskRequest {
        container_id: id.clone(),
        rootfs: prepared.mounts,
        ..CreateTaskRequest::default()
    });
    within(TASK, "create task", client.tasks().create(request)).await?;
    let after_task = start.elapsed();
    let request = client.request(StartRequest {
        container_id: id.clone(),
        exec_id: String::new(),
    });
    within(TASK, "start task", client.tasks().start(request)).await?;
    let after_start = start.elapsed();
    remove(client, id).await?;
    Ok([
        after_prepare,
        after_create.saturating_sub(after_prepare),
        after_task.saturating_sub(after_create),
        after_start.saturating_sub(after_task),
    ])
}

/// Another name, a control group beside, and no label or annotation by which it would be one of the agent's.
fn adapt(container: &mut Container, id: &str) -> anyhow::Result<()> {
    id.clone_into(&mut container.id);
    id.clone_into(&mut container.snapshot_key);
    container.labels.clear();
    let spec = container.spec.as_mut().context("a specification")?;
    let mut words: Value = serde_json::from_slice(&spec.value)?;
    let group = words.pointer_mut("/linux/cgroupsPath").context("a control group")?;
    let beside = Path::new(group.as_str().unwrap_or_default()).with_file_name(id);
    *group = json!(beside);
    if let Some(annotations) = words.pointer_mut("/annotations") {
        *annotations = json!({});
    }
    spec.value = serde_json::to_vec(&words)?;
    Ok(())
}

async fn remove(client: &Client, id: String) -> anyhow::Result<()> {
    let request = client.request(KillRequest {
        container_id: id.clone(),
        signal: 9,
        all: true,
        ..KillRequest::default()
    });
    within(CALL, "kill", client.tasks().kill(request)).await?;
    let request = client.request(WaitRequest {
        container_id: id.clone(),
        exec_id: String::new(),
    });
    within(CALL, "wait", client.tasks().wait(request)).await?;
    let request = client.request(DeleteTaskRequest {
        container_id: id.clone(),
    });
    within(TASK, "delete task", client.tasks().delete(request)).await?;
    let request = client.request(DeleteContainerRequest { id: id.clone() });
    within(CALL, "delete container", client.containers().delete(request)).await?;
    let request = client.request(RemoveSnapshotRequest {
        snapshotter: OVERLAYFS.to_owned(),
        key: id,
    });
    within(TASK, "remove snapshot", client.snapshots().remove(request)).await?;
    Ok(())
}
