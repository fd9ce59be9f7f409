//! Node lifecycle: unknown conditions, taints, and eviction of pods on unreachable nodes.
//!
//! Silence is measured on a monotonic clock from when this process last saw a heartbeat or a lease
//! renewal, never by comparing the node's clock with ours: a clock that jumps evicts no pods.

mod eviction;
mod marked;
#[cfg(test)]
mod tests;
mod zones;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::objects::{name, seconds, target};
use crate::pod::Pod;
use crate::step::{NODES, Plan, Severity, Step};
use eviction::Clock;
pub use eviction::{EVICTED, Scheduled, Tainted};
pub use marked::Marked;
pub use zones::{Pace, Zones, is_excluded};

/// Time without a heartbeat after which a node is unknown.
pub const GRACE: Duration = Duration::from_secs(50);

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The last heartbeat or lease renewal that was seen of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Pulse {
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
    at: Duration,
}

impl Pulse {
    /// Reads node and lease; returns a new pulse if either changed. `at` is read on a monotonic
    /// clock.
    #[must_use]
    pub fn next(before: Option<Self>, node: &Node, lease: Option<&Lease>, at: Duration) -> Self {
        let renewed = lease
            .and_then(|lease| lease.spec.as_ref())
            .and_then(|spec| spec.renew_time.clone());
        let heartbeat = condition(node, "Ready")
            // A status that this controller wrote is no heartbeat.
            .filter(|ready| ready.status != "Unknown")
            .and_then(|ready| ready.last_heartbeat_time.clone());
        match before {
            Some(before) if before.renewed == renewed && (heartbeat.is_none() || before.heartbeat == heartbeat) => {
                before
            }
            Some(_) | None => Self { renewed, heartbeat, at },
        }
    }

    fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }
}

/// Input of the node controller.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The node.
    pub node: &'a Node,
    /// Its last heartbeat.
    pub pulse: &'a Pulse,
    /// Times at which its taints were first seen.
    pub tainted: &'a Tainted,
    /// The pods bound to it.
    pub pods: &'a [&'a Pod],
    /// Permission to evict its pods.
    pub pace: Pace,
}

/// Makes the plan. `at` is read on the pulse's clock.
pub fn plan(
    snapshot: &Snapshot<'_>,
    (marked, scheduled): (&mut Marked, &mut Scheduled),
    at: Duration,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let node = snapshot.node;
    if node.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let silent = snapshot.pulse.silence(at);
    if silent > GRACE {
        if let Some(step) = unknown(node, now) {
            plan.stage(vec![step]);
            return plan;
        }
    } else {
        plan.again(GRACE.saturating_sub(silent).saturating_add(Duration::from_millis(100)));
    }
    if let Pace::Waiting(rest) = snapshot.pace {
        plan.again(rest);
    }
    if let Some(step) = taint(node, snapshot.pace, now) {
        plan.stage(vec![step]);
        return plan;
    }
    plan.stage(marked.steps(node, snapshot.pods, now));
    let tainted = snapshot.tainted;
    eviction::plan(node, snapshot.pods, Clock { tainted, at, now }, scheduled, &mut plan);
    plan
}

/// A node's condition by type.
pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// True if the node's Ready condition is True.
pub fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "True")
}

/// True if the node's Ready condition is Unknown: its heartbeats stopped.
pub(crate) fn is_unknown(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "Unknown")
}

/// Sets conditions that the node no longer reports to Unknown.
fn unknown(node: &Node, now: Timestamp) -> Option<Step> {
    let changes: Vec<_> = REPORTED
        .iter()
        .filter_map(|kind| {
            let old = condition(node, kind);
            if old.is_some_and(|old| old.status == "Unknown") {
                return None;
            }
            let (reason, message) = match old {
                Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
                None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
            };
            let heartbeat = old.and_then(|old| old.last_heartbeat_time.clone());
            Some(NodeCondition {
                type_: (*kind).to_owned(),
                status: "Unknown".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_heartbeat_time: heartbeat.or_else(|| node.metadata.creation_timestamp.clone()),
                last_transition_time: Some(seconds(now)),
            })
        })
        .collect();
    let silenced = changes.iter().any(|change| change.type_ == "Ready");
    let about = target(NODES, node);
    let event = about.note(
        Severity::Normal,
        "NodeNotReady",
        format!("Node {} status is now: NodeNotReady", name(node)),
    );
    (!changes.is_empty()).then(|| {
        about
            .strategic_status(json!({
                "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
                "status": { "conditions": changes },
            }))
            .with(silenced.then_some(event))
    })
}

/// True if this controller sets the taint; users may set its key with another effect.
fn is_managed(taint: &Taint) -> bool {
    let of_ready = [NOT_READY, UNREACHABLE].contains(&taint.key.as_str());
    let of_others = taint.key == UNSCHEDULABLE || PRESSURES.iter().any(|(_, key)| taint.key == *key);
    match taint.effect.as_str() {
        "NoSchedule" => of_ready || of_others,
        "NoExecute" => of_ready,
        _ => false,
    }
}

/// True if a node that is not ready has the taint that evicts its pods.
fn is_driven(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let mut taints = taints.unwrap_or_default().iter();
    taints.any(|taint| taint.effect == "NoExecute" && is_managed(taint))
}

/// Sets the taints that this controller manages according to the conditions; others are kept.
fn taint(node: &Node, pace: Pace, now: Timestamp) -> Option<Step> {
    let old = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    let trouble = match condition(node, "Ready").map(|ready| ready.status.as_str()) {
        Some("True") => None,
        Some("Unknown") => Some(UNREACHABLE),
        Some(_) | None => Some(NOT_READY),
    };
    if let Some(key) = trouble {
        wanted.push((key, "NoSchedule"));
        // A node that has not reported yet has nothing to evict.
        if pace == Pace::Free && condition(node, "Ready").is_some() {
            wanted.push((key, "NoExecute"));
        }
    }
    let pressed = |kind| condition(node, kind).is_some_and(|pressure| pressure.status == "True");
    wanted.extend(
        PRESSURES
            .iter()
            .filter(|(kind, _)| pressed(kind))
            .map(|(_, key)| (*key, "NoSchedule")),
    );
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let mut taints: Vec<Taint> = old
        .iter()
        .filter(|taint| !is_managed(taint) || wanted.contains(&(taint.key.as_str(), taint.effect.as_str())))
        .cloned()
        .collect();
    for (key, effect) in wanted {
        if !taints.iter().any(|taint| taint.key == key && taint.effect == effect) {
            taints.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: Some(seconds(now)),
                value: None,
            });
        }
    }
    if taints == old {
        return None;
    }
    let taints = if taints.is_empty() {
        serde_json::Value::Null
    } else {
        json!(taints)
    };
    Some(target(NODES, node).merge(json!({
        "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints },
    })))
}
