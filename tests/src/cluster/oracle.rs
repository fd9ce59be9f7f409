//! Reads a cluster's whole history from a watch that began with it, and reports violated
//! invariants.

use std::collections::BTreeMap;

use serde_json::Value;
use store::{Prefix, Store};

/// Something that must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// Bounds of one workload.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// `replicas + maxSurge`.
    pub most: usize,
    /// `replicas − maxUnavailable`, once that many were available.
    pub least: usize,
}

struct Seen {
    node: String,
    uid: String,
    alive: bool,
    ready: bool,
}

/// Goes through every change of pods since revision 0: a pod never moves, never are more alive than `bounds.most`, and
/// once `bounds.least` were ready, never fewer are.
///
/// # Errors
/// The first violation, with its revision.
pub async fn check_history(store: &Store, bounds: Bounds) -> Result<usize, Violation> {
    let mut watch = store
        .watch(&Prefix::resource("", "pods"), 0)
        .map_err(|error| Violation(error.to_string()))?;
    let mut pods: BTreeMap<String, Seen> = BTreeMap::new();
    let (mut changes, mut reached) = (0, false);
    let newest = store.revision();
    // The history ends where no more events come; a broken watch is incomplete.
    while let Ok(told) = tokio::time::timeout(std::time::Duration::from_millis(1), watch.next()).await {
        let event = told.map_err(|error| Violation(error.to_string()))?;
        let revision = event.entry.revision;
        let pod: Value = serde_json::from_slice(&event.entry.bytes).map_err(|error| Violation(error.to_string()))?;
        changes += 1;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if matches!(event.kind, store::EventKind::Delete { .. }) {
            pods.remove(&name);
        } else {
            let now = read(&pod);
            if let Some(before) = pods.get(&name).filter(|before| before.uid == now.uid)
                && !before.node.is_empty()
                && before.node != now.node
            {
                return Err(Violation(format!(
                    "revision {revision}: {name} moved from {} to {}",
                    before.node, now.node
                )));
            }
            pods.insert(name, now);
        }
        let alive = pods.values().filter(|pod| pod.alive).count();
        let ready = pods.values().filter(|pod| pod.alive && pod.ready).count();
        reached |= ready >= bounds.least;
        if alive > bounds.most {
            return Err(Violation(format!(
                "revision {revision}: {alive} pods alive, {} allowed",
                bounds.most
            )));
        }
        if reached && ready < bounds.least {
            return Err(Violation(format!(
                "revision {revision}: {ready} pods ready, {} needed",
                bounds.least
            )));
        }
        if revision >= newest {
            break;
        }
    }
    Ok(changes)
}

fn read(pod: &Value) -> Seen {
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let conditions = pod["status"]["conditions"].as_array();
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    Seen {
        node: pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned(),
        uid: pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        alive: !finished && pod["metadata"]["deletionTimestamp"].is_null(),
        ready,
    }
}
