//! Pace at which nodes that are not ready get the taint that evicts their pods. Where many of a zone
//! fail at once, the fault is likelier in the network (`handleDisruption` in
//! `pkg/controller/nodelifecycle/node_lifecycle_controller.go`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;

use super::{condition, is_driven, is_ready};

/// Labels of a node's zone.
const LABELS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];
/// Label of nodes that do not count (`isNodeExcludedFromDisruptionChecks`, there).
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// Interval between two nodes of a zone, and of a large zone most of which is not ready (defaults of
/// `--node-eviction-rate` and `--secondary-node-eviction-rate`).
const INTERVAL: Duration = Duration::from_secs(10);
const REDUCED: Duration = Duration::from_secs(100);
/// Number of nodes above which a zone is large.
const LARGE: usize = 50;
/// Percentage of a zone's nodes, and their number, that are not ready when most are.
const MOST: usize = 55;
const FEWEST: usize = 3;

/// Permission to give a node the taint that evicts its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// It gets the taint, or keeps it.
    Free,
    /// No further node of its zone gets the taint for this time.
    Waiting(Duration),
    /// No node is ready: the fault is likelier in the control plane, and no node keeps the taint.
    Halted,
}

/// Times at which a node of each zone got the taint last, on a monotonic clock.
#[derive(Debug, Default)]
pub struct Zones(BTreeMap<[String; 2], Duration>);

impl Zones {
    /// Returns the pace of a node while some node is ready. One that is free counts as tainted at
    /// this time.
    pub fn pace(&mut self, node: &Node, nodes: &dyn Fn() -> Vec<Arc<Node>>, at: Duration) -> Pace {
        let is_deleted = node.metadata.deletion_timestamp.is_some();
        if is_deleted || condition(node, "Ready").is_none() || is_ready(node) || is_driven(node) {
            return Pace::Free;
        }
        self.0.retain(|_, last| at.saturating_sub(*last) < REDUCED);
        let own = zone(node);
        let since = self.0.get(&own).map(|last| at.saturating_sub(*last));
        let left = |interval: Duration| since.map_or(Duration::ZERO, |since| interval.saturating_sub(since));
        let mut rest = left(INTERVAL);
        if rest.is_zero() {
            let mut all = nodes();
            all.retain(|other| zone(other) == own && !is_excluded(other));
            let ready = all.iter().filter(|other| is_ready(other)).count();
            rest = interval(ready, all.len()).map_or(INTERVAL, left);
        }
        if rest.is_zero() {
            self.0.insert(own, at);
            Pace::Free
        } else {
            Pace::Waiting(rest)
        }
    }
}

/// Interval between two nodes of a zone; `None` if no further one gets the taint (`ComputeZoneState`
/// and `ReducedQPSFunc`, there).
fn interval(ready: usize, all: usize) -> Option<Duration> {
    let others = all.saturating_sub(ready);
    let is_disrupted = ready > 0 && others >= FEWEST && others * 100 >= all * MOST;
    if !is_disrupted {
        Some(INTERVAL)
    } else if all > LARGE {
        Some(REDUCED)
    } else {
        None
    }
}

/// True for a node that its labels keep out of what its zone tells.
pub fn is_excluded(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(EXCLUDED))
}

fn zone(node: &Node) -> [String; 2] {
    let labels = node.metadata.labels.as_ref();
    LABELS.map(|label| labels.and_then(|labels| labels.get(label)).cloned().unwrap_or_default())
}
