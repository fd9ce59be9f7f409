//! Nodes that register and pods that are bound while they are created, through the API alone: nothing runs on these nodes.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tests::http::{Connection, Target};
use tests::machine::Machine;
use tests::process;

use crate::figures::{Table, milliseconds, now, rate};
use crate::lists::{SENDERS, by_many, create};

const NAMESPACES: &str = "/api/v1/namespaces";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/bound/pods";
const A_ROUND: usize = 3_000;
const MANY: usize = 1_000;
const FEW: usize = 100;
/// Time within which the items of a list are as wanted.
const LIMIT: Duration = Duration::from_mins(10);

pub(crate) async fn measure(machine: &Machine, target: &Target, table: &mut Table) -> anyhow::Result<()> {
    let server = machine.daemon("skiff-controlplane")?;
    let mut connection = target.connect().await?;
    create(&mut connection, NAMESPACES, &json!({ "metadata": { "name": "bound" } })).await?;
    for (nodes, from) in [(FEW, 0), (MANY, FEW)] {
        let before = process::cpu_ticks(server)?;
        let start = now();
        by_many(target, NODES, from..nodes, node).await?;
        let all = format!("{NODES}?labelSelector=bench%3Dyes");
        let is_untainted = |node: &Value| node.pointer("/spec/taints").is_none();
        until(&mut connection, &all, |found| {
            found.len() == nodes && found.iter().all(is_untainted)
        })
        .await?;
        let ticks = process::cpu_ticks(server)?.saturating_sub(before);
        table.row(
            format!("{} nodes registered by {SENDERS} connections", nodes - from),
            format!("{}, {} ms of CPU", milliseconds(start.elapsed()), ticks * 10),
        );
        let before = process::cpu_ticks(server)?;
        let start = now();
        by_many(target, PODS, 0..A_ROUND, pod).await?;
        // One pod at most is read, so that the reader takes no processor from the scheduler.
        let unbound = format!("{PODS}?fieldSelector=spec.nodeName%3D&limit=1");
        until(&mut connection, &unbound, <[Value]>::is_empty).await?;
        let took = start.elapsed();
        let ticks = usize::try_from(process::cpu_ticks(server)?.saturating_sub(before))?;
        table.row(
            format!("pods bound while {SENDERS} connections create them, {nodes} nodes"),
            format!("{}, {} µs of CPU a pod", rate(A_ROUND, took), ticks * 10_000 / A_ROUND),
        );
        let all = format!("{PODS}?gracePeriodSeconds=0");
        connection.expect(Method::DELETE, &all, Bytes::new()).await?;
    }
    let all = format!("{NODES}?labelSelector=bench%3Dyes");
    connection.expect(Method::DELETE, &all, Bytes::new()).await.map(drop)
}

/// Lists until the items are as wanted.
pub(crate) async fn until(
    connection: &mut Connection,
    path: &str,
    is_done: impl Fn(&[Value]) -> bool,
) -> anyhow::Result<()> {
    let mut last = 0;
    let all = async {
        loop {
            let answer: Value = serde_json::from_slice(&connection.expect(Method::GET, path, Bytes::new()).await?)?;
            let items = answer.pointer("/items").and_then(Value::as_array).context("items")?;
            if is_done(items) {
                return anyhow::Ok(());
            }
            last = items.len();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(LIMIT, all).await {
        Ok(done) => done,
        Err(late) => Err(late).with_context(|| format!("{path}: {last} items last")),
    }
}

fn node(number: usize) -> Value {
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": "500" });
    json!({
        "metadata": { "name": format!("bench-{number}"), "labels": { "bench": "yes" } },
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Bench", "message": "ready" }],
        },
    })
}

/// Pods that only those nodes fit.
fn pod(number: usize) -> Value {
    json!({
        "metadata": { "name": format!("bound-{number}"), "labels": { "app": "bound" } },
        "spec": {
            "nodeSelector": { "bench": "yes" },
            "containers": [{
                "name": "web", "image": "nginx:1", "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }],
        },
    })
}
