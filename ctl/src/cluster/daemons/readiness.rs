//! Readiness of the daemons that were started here, and of their node.

use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use serde_json::Value;

use super::process::Daemon;
use crate::client::api::{Api, text_at, with_query};

/// Path of the nodes' Leases.
pub(in crate::cluster) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Longest time for a daemon to start.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Starts the daemon unless it runs: a running one may have been about to end. Fails with the last
/// log lines of one that was started here and has ended.
pub(in crate::cluster) fn keep(
    child: &mut Option<Child>,
    daemon: &Daemon,
    start: impl Fn() -> anyhow::Result<Child>,
) -> anyhow::Result<()> {
    let Some(started) = child else {
        if daemon.running().is_none() {
            *child = Some(start()?);
        }
        return Ok(());
    };
    match started.try_wait().context("look after a daemon")? {
        None => Ok(()),
        Some(status) => bail!("it ended with {status}; {}", daemon.last_words()),
    }
}

pub(in crate::cluster) async fn within<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    daemon: &Daemon,
    problem: &str,
) -> anyhow::Result<T> {
    match tokio::time::timeout(TIMEOUT, work).await {
        Ok(done) => done,
        Err(_) => bail!("{problem} after {TIMEOUT:?}; {}", daemon.last_words()),
    }
}

/// Waits with a watch until an object meets a condition. A watch that ends is restarted.
pub(in crate::cluster) async fn until(
    api: &Api,
    collection: &str,
    name: &str,
    holds: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    let field = format!("metadata.name={name}");
    let path = with_query(collection, &[("fieldSelector", Some(field.as_str()))]);
    loop {
        let list = api.get(&path).await?;
        let version = text_at(&list, "/metadata/resourceVersion").to_owned();
        if list
            .get("items")
            .and_then(Value::as_array)
            .is_some_and(|found| found.iter().any(&holds))
        {
            return Ok(());
        }
        let from = [("watch", Some("true")), ("resourceVersion", Some(version.as_str()))];
        let mut lines = api.stream(&with_query(&path, &from), false).await?.lines();
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_str(&line?)?;
            if event.get("object").is_some_and(&holds) {
                return Ok(());
            }
        }
    }
}

/// Returns the time at which a Lease was renewed.
pub(in crate::cluster) fn renewed(lease: &Value) -> String {
    text_at(lease, "/spec/renewTime").to_owned()
}

pub(in crate::cluster) fn is_ready(node: &Value) -> bool {
    readiness(node).is_some_and(|ready| text_at(ready, "/status") == "True")
}

/// True if a node is only waiting for a network plugin, which may be installed through the cluster.
pub(in crate::cluster) fn lacks_network(node: &Value) -> bool {
    readiness(node).is_some_and(|ready| text_at(ready, "/message").contains("reason:NetworkPluginNotReady"))
}

fn readiness(node: &Value) -> Option<&Value> {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .find(|condition| text_at(condition, "/type") == "Ready")
}
