//! Life of pods on a real node: Deployments of 1, 3 and 30 replicas, a restart after an exit, and a
//! deletion.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::http::{Connection, Target};
use tests::machine::TIMEOUT;
use tests::process;

use crate::figures::{Table, milliseconds, now};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Measures with this image of nginx.
pub(crate) async fn measure(target: &Target, image: &str, table: &mut Table) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    for replicas in [1, 3, 30] {
        let mut times = Vec::new();
        for round in 0..5 {
            let name = format!("bench-{replicas}-{round}");
            times.push(deploy(target, &mut connection, &name, image, replicas).await?);
            if replicas == 1 && round == 4 {
                table.row(
                    "container killed -> running again",
                    restart(target, &mut connection, &name).await?,
                );
                table.row("delete of a pod -> gone", gone(target, &mut connection, &name).await?);
            }
            remove(target, &mut connection, &name).await?;
        }
        times.sort_unstable();
        let middle = times.get(times.len() / 2).copied().unwrap_or_default();
        let (least, most) = (
            times.first().copied().unwrap_or_default(),
            times.last().copied().unwrap_or_default(),
        );
        table.row(
            format!("create of a Deployment -> {replicas} replicas Ready"),
            format!(
                "{} (of 5: {} to {})",
                milliseconds(middle),
                milliseconds(least),
                milliseconds(most)
            ),
        );
    }
    Ok(())
}

async fn deploy(
    target: &Target,
    connection: &mut Connection,
    name: &str,
    image: &str,
    replicas: u32,
) -> anyhow::Result<Duration> {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80}]}],
                },
            },
        },
    });
    let start = now();
    connection
        .expect(Method::POST, DEPLOYMENTS, Bytes::from(deployment.to_string()))
        .await?;
    let path = format!("{DEPLOYMENTS}?fieldSelector=metadata.name%3D{name}&watch=true&resourceVersion=0");
    watch(target, &path, |event| {
        event.pointer("/object/status/readyReplicas").and_then(Value::as_u64) == Some(u64::from(replicas))
    })
    .await
    .with_context(|| format!("{name}: {replicas} replicas Ready"))?;
    Ok(start.elapsed())
}

async fn remove(target: &Target, connection: &mut Connection, name: &str) -> anyhow::Result<()> {
    connection
        .expect(Method::DELETE, &format!("{DEPLOYMENTS}/{name}"), Bytes::new())
        .await?;
    let path = format!("{PODS}?labelSelector=app%3D{name}");
    let all_gone = async {
        loop {
            let list: Value = serde_json::from_slice(&connection.expect(Method::GET, &path, Bytes::new()).await?)?;
            if list
                .pointer("/items")
                .and_then(Value::as_array)
                .is_some_and(Vec::is_empty)
            {
                return anyhow::Ok(());
            }
            let version = text(&list, "/metadata/resourceVersion")?;
            let path = format!("{path}&watch=true&resourceVersion={version}");
            watch(target, &path, |event| event.pointer("/type") == Some(&json!("DELETED"))).await?;
        }
    };
    tokio::time::timeout(TIMEOUT, all_gone)
        .await
        .with_context(|| format!("the pods of {name} are gone"))?
}

async fn first_pod(connection: &mut Connection, app: &str) -> anyhow::Result<Value> {
    let list = connection
        .expect(Method::GET, &format!("{PODS}?labelSelector=app%3D{app}"), Bytes::new())
        .await?;
    let mut list: Value = serde_json::from_slice(&list)?;
    list.pointer_mut("/items/0").map(Value::take).context("a pod")
}

/// Kills the container's first process and waits until the API shows its successor running.
async fn restart(target: &Target, connection: &mut Connection, app: &str) -> anyhow::Result<String> {
    let pod = first_pod(connection, app).await?;
    let (name, uid) = (text(&pod, "/metadata/name")?, text(&pod, "/metadata/uid")?);
    let pid = process::container_of(uid)?;
    let version = text(&pod, "/metadata/resourceVersion")?;
    let path = format!("{PODS}?fieldSelector=metadata.name%3D{name}&watch=true&resourceVersion={version}");
    let start = now();
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    watch(target, &path, |event| {
        event
            .pointer("/object/status/containerStatuses/0/restartCount")
            .and_then(Value::as_u64)
            == Some(1)
            && event
                .pointer("/object/status/containerStatuses/0/state/running")
                .is_some()
    })
    .await?;
    Ok(milliseconds(start.elapsed()))
}

/// Deletes a pod and waits for its DELETED event.
async fn gone(target: &Target, connection: &mut Connection, app: &str) -> anyhow::Result<String> {
    let pod = first_pod(connection, app).await?;
    let name = text(&pod, "/metadata/name")?;
    let version = text(&pod, "/metadata/resourceVersion")?;
    let path = format!("{PODS}?fieldSelector=metadata.name%3D{name}&watch=true&resourceVersion={version}");
    let start = now();
    connection
        .expect(Method::DELETE, &format!("{PODS}/{name}"), Bytes::new())
        .await?;
    watch(target, &path, |event| event.pointer("/type") == Some(&json!("DELETED"))).await?;
    Ok(milliseconds(start.elapsed()))
}

/// Reads a watch until an event satisfies `done`.
pub(crate) async fn watch(target: &Target, path: &str, done: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    let mut events = connection.events(path).await?;
    let mut last = Value::Null;
    let found = async {
        while let Some(event) = events.next().await? {
            if done(&event) {
                return anyhow::Ok(());
            }
            last = event;
        }
        anyhow::bail!("the watch ended")
    };
    match tokio::time::timeout(TIMEOUT, found).await {
        Ok(found) => found,
        Err(late) => Err(late).with_context(|| format!("{path}: the last event was {last}")),
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> anyhow::Result<&'a str> {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .with_context(|| format!("{pointer} in {object}"))
}
