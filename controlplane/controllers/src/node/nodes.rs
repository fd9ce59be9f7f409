//! Node controllers: health, taints, evictions; pod CIDRs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controlplane_plan::node::node_health::{
    self, Marked, Pace, Pulse, Scheduled, Snapshot, Tainted, Zones, is_excluded, is_ready,
};
use controlplane_plan::node::ranges::{self, PodRange, Ranges, Recorded};
use controlplane_plan::objects::target;
use controlplane_plan::pod::Pod;
use controlplane_plan::pod::node_of;
use controlplane_plan::step::{NODES, Note, Plan, Severity, Step};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, on_node};
use crate::machinery::queue::Queue;

const LEASES: &str = "kube-node-lease";

/// Plans nodes' health, and allocates pod CIDRs.
pub(crate) struct Nodes {
    caches: Arc<Caches>,
    start: Instant,
    seen: Mutex<BTreeMap<String, Seen>>,
    ranges: Mutex<Ranges>,
    zones: Mutex<Zones>,
}

/// State of a node between two syncs.
struct Seen {
    about: ObjectReference,
    pulse: Pulse,
    /// Times at which its taints were first seen.
    tainted: Tainted,
    marked: Marked,
    scheduled: Scheduled,
}

impl Nodes {
    pub(crate) fn new(caches: Arc<Caches>, ranges: Vec<PodRange>) -> Self {
        Self {
            caches,
            start: Instant::now(),
            seen: Mutex::new(BTreeMap::new()),
            ranges: Mutex::new(Ranges::new(ranges)),
            zones: Mutex::default(),
        }
    }

    /// Updated state of the node; `None` when it is seen for the first time.
    fn seen(&self, key: &Key) -> Option<Seen> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key.name)
    }

    fn look(&self, before: Option<Seen>, key: &Key, node: &Node, at: Duration) -> Seen {
        let lease = self.caches.leases.get(&Key::new(LEASES, &key.name));
        let (pulse, tainted, marked, scheduled) = before.map_or_else(Default::default, |seen| {
            (Some(seen.pulse), seen.tainted, seen.marked, seen.scheduled)
        });
        Seen {
            about: target(NODES, node).reference(),
            pulse: Pulse::next(pulse, node, lease.as_deref(), at),
            tainted: tainted.next(node, at),
            marked,
            scheduled,
        }
    }

    /// State of the record of nodes' CIDRs, and the step that allocates this node's.
    fn range(&self, node: &Node, at: Duration) -> (Recorded, Option<Step>) {
        let record = Key::new(ranges::NAMESPACE, ranges::RECORD);
        let record = self.caches.config_maps.get(&record);
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.recall(record.as_ref().map(|record| &record.data));
        let range = if ranges.has(node) {
            None
        } else {
            let nodes = self.caches.nodes.all();
            let nodes: Vec<&Node> = nodes.iter().map(Arc::as_ref).collect();
            let pods = self.caches.pods.all();
            let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
            ranges.give(node, &nodes, &pods)
        };
        let there = record.as_ref().map(|record| (&record.metadata, &record.data));
        (ranges.record(node, there, at), range)
    }

    /// Permission to evict the node's pods.
    fn pace(&self, node: &Node, at: Duration) -> Pace {
        let nodes = &self.caches.nodes;
        if !nodes.any(is_sign) && nodes.any(|node| !is_excluded(node)) {
            return Pace::Halted;
        }
        let mut zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        zones.pace(node, &|| self.caches.nodes.all(), at)
    }

    fn keep(&self, key: &Key, seen: Seen) {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(key.name.clone(), seen);
    }
}

impl Controller for Nodes {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let before = self.seen(key);
        let mut plan = Plan::default();
        let Some(node) = self.caches.nodes.get(key) else {
            if let Some(Seen { about, .. }) = before {
                let message = format!("Removing Node {} from Controller", key.name);
                plan.stage(vec![event(about, "RemovingNode", &message)]);
            }
            return plan;
        };
        let at = self.start.elapsed();
        let first = before.is_none();
        let mut seen = self.look(before, key, &node, at);
        let pods = self.caches.pods.indexed(&on_node(&key.name));
        let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        if first {
            let message = format!("Registered Node {} in Controller", key.name);
            plan.stage(vec![event(seen.about.clone(), "RegisteredNode", &message)]);
        }
        let (recorded, range) = self.range(&node, at);
        // A CIDR is recorded before a pod can have an address in it.
        let waits = recorded == Recorded::Later;
        if let Recorded::By(step) = recorded {
            plan.stage(vec![step]);
        }
        if let Some(step) = range {
            plan.stage(if waits { Vec::new() } else { vec![step] });
        } else {
            let snapshot = Snapshot {
                node: &node,
                pulse: &seen.pulse,
                tainted: &seen.tainted,
                pods: &pods,
                pace: self.pace(&node, at),
            };
            let memory = (&mut seen.marked, &mut seen.scheduled);
            let health = node_health::plan(&snapshot, memory, at, now);
            plan.stages.extend(health.stages);
            plan.again = health.again;
        }
        if waits {
            plan.again(ranges::SENT);
        }
        self.keep(key, seen);
        plan
    }
}

/// True for a node that shows that the control plane reaches some.
fn is_sign(node: &Node) -> bool {
    is_ready(node) && !is_excluded(node)
}

/// Event about a node (`RecordNodeEvent`, `pkg/controller/util/node/controller_utils.go`).
fn event(about: ObjectReference, reason: &'static str, message: &str) -> Step {
    let name = about.name.as_deref().unwrap_or_default();
    Step::Event(Note {
        message: format!("Node {name} event: {message}"),
        severity: Severity::Normal,
        reason,
        about,
    })
}

/// Wakes nodes on changes of themselves, their leases and their pods; all of them when the first
/// node becomes ready or the last one not ready; those whose entry of the record of CIDRs
/// has changed, or that wait for one.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("node_lifecycle_controller");
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.nodes.listen(move |change| {
        for node in change.sides() {
            wake.push(Key::of(&node.metadata));
        }
        let turned = change.old.is_some_and(is_sign) != change.new.is_some_and(is_sign);
        if let Some(caches) = all.upgrade().filter(|_| turned) {
            let own = |node: &Node| change.sides().any(|side| side.metadata.name == node.metadata.name);
            // While another one is ready, nothing changes for the rest.
            if !caches.nodes.any(|node| is_sign(node) && !own(node)) {
                for node in &caches.nodes.all() {
                    wake.push(Key::of(&node.metadata));
                }
            }
        }
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.config_maps.listen(move |change| {
        if change
            .sides()
            .all(|side| side.metadata.name.as_deref() != Some(ranges::RECORD))
        {
            return;
        }
        let old = change.old.map(|old| &old.data);
        for (node, entry) in change.new.iter().flat_map(|new| &new.data) {
            if old.and_then(|old| old.get(node)) != Some(entry) {
                wake.push(Key::new("", node));
            }
        }
        for node in all.upgrade().iter().flat_map(|caches| caches.nodes.all()) {
            if node.spec.as_ref().is_none_or(|spec| spec.pod_cidr.is_none()) {
                wake.push(Key::of(&node.metadata));
            }
        }
    });
    let wake = queue.clone();
    caches.leases.listen(move |change| {
        for lease in change
            .sides()
            .filter(|lease| lease.metadata.namespace.as_deref() == Some(LEASES))
        {
            wake.push(Key::new("", lease.metadata.name.as_deref().unwrap_or_default()));
        }
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.pods.listen(move |change| {
        // Pods matter only while the node is not healthy.
        let Some(node) = change.new.and_then(node_of) else {
            return;
        };
        let key = Key::new("", node);
        let node = all.upgrade().and_then(|caches| caches.nodes.get(&key));
        let tainted = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_some();
        if node.is_some_and(|node| tainted(&node)) {
            wake.push(key);
        }
    });
    queue
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[tokio::test]
    async fn a_node_is_told_of_when_it_comes_and_when_it_goes() {
        let caches = Arc::new(Caches::new());
        let nodes = Nodes::new(caches.clone(), Vec::new());
        let node: Node = from_value(json!({ "metadata": { "name": "n", "uid": "u" } })).unwrap();
        let planned = || nodes.plan(&Key::new("", "n"), None, Timestamp::UNIX_EPOCH).to_string();
        assert_eq!(planned(), "");
        caches.nodes.apply(node.clone(), false);
        let comes = planned();
        let expected = "event RegisteredNode: Node n event: Registered Node n in Controller";
        assert!(comes.starts_with(expected), "{comes}");
        caches.nodes.apply(node, true);
        assert_eq!(
            planned(),
            "event RemovingNode: Node n event: Removing Node n from Controller"
        );
        assert_eq!(planned(), "");
    }
}
