//! Pod garbage collection (`pkg/controller/podgc/gc_controller.go`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controlplane_plan::node::pod_gc;
use controlplane_plan::objects::{Meta as _, uid};
use controlplane_plan::pod::{Pod, is_finished, node_of};
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::{Caches, on_node};
use crate::machinery::queue::Queue;

/// Time that a node must be missing before its pods are deleted.
const QUARANTINE: Duration = Duration::from_secs(40);
/// Time after which the deletion of a pod that is still there is repeated.
const PERIOD: Duration = Duration::from_secs(20);
/// Keys for counting finished pods and for pods without a node: no node can have these names.
const FINISHED: &str = "*";
const UNBOUND: &str = "-";

/// Plans pod garbage collection; a key is a node.
pub(crate) struct PodGc {
    caches: Arc<Caches>,
    missing: Mutex<BTreeMap<String, Instant>>,
    /// Times of the last deletions, by the pods' uids.
    tried: Mutex<BTreeMap<String, Instant>>,
}

impl PodGc {
    pub(crate) fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            missing: Mutex::default(),
            tried: Mutex::default(),
        }
    }

    /// Time until a node that is missing counts as deleted; `None` if it exists.
    fn missing_in(&self, key: &Key) -> Option<Duration> {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.caches.nodes.get(key).is_some() {
            missing.remove(&key.name);
            return None;
        }
        let since = *missing.entry(key.name.clone()).or_insert_with(Instant::now);
        Some(QUARANTINE.saturating_sub(since.elapsed()))
    }

    /// Pods that were not deleted just now: finalizers may keep them.
    fn due<'a>(&self, pods: impl Iterator<Item = &'a Pod>, plan: &mut Plan) -> Vec<&'a Pod> {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.retain(|_, at| at.elapsed() < PERIOD);
        let now = Instant::now();
        let due: Vec<&Pod> = pods
            .inspect(|_| plan.again(PERIOD))
            .filter(|pod| !tried.contains_key(uid(*pod)))
            .collect();
        tried.extend(due.iter().map(|pod| (uid(*pod).to_owned(), now)));
        due
    }

    /// Pods that are being deleted and that no agent will end.
    fn without_agent(&self, key: &Key, pods: &[Arc<Pod>], plan: &mut Plan) {
        let node = self.caches.nodes.get(key);
        if key.name != UNBOUND && !node.is_some_and(|node| pod_gc::is_out_of_service(&node)) {
            return;
        }
        let going = pods.iter().map(Arc::as_ref).filter(|pod| pod.metadata.is_deleting());
        for stage in pod_gc::of_no_agent(&self.due(going, plan)) {
            plan.stage(stage);
        }
    }
}

impl Controller for PodGc {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if key.name == FINISHED {
            let pods = self.caches.pods.all();
            let pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
            plan.stage(pod_gc::of_the_past(&pods));
            return plan;
        }
        if key.name == UNBOUND {
            let mut pods = self.caches.pods.all();
            pods.retain(|pod| pod_gc::is_unbound(pod));
            self.without_agent(key, &pods, &mut plan);
            return plan;
        }
        let pods = self.caches.pods.indexed(&on_node(&key.name));
        match self.missing_in(key) {
            _ if pods.is_empty() => {
                self.missing
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&key.name);
            }
            None => self.without_agent(key, &pods, &mut plan),
            Some(Duration::ZERO) => {
                let pods = self.due(pods.iter().map(Arc::as_ref), &mut plan);
                for stage in pod_gc::of_gone_node(&pods, now) {
                    plan.stage(stage);
                }
            }
            Some(rest) => plan.again(rest),
        }
        plan
    }
}

/// Wakes deleted nodes and those out of service, and nodes of pods.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("orphaned_pods_nodes");
    let wake = queue.clone();
    caches.nodes.listen(move |change| {
        let lost = match (change.old, change.new) {
            (Some(old), None) => Some(old),
            (_, new) => new.filter(|node| pod_gc::is_out_of_service(node)),
        };
        if let Some(node) = lost {
            wake.push(Key::of(&node.metadata));
        }
    });
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.pods.listen(move |change| {
        let Some(pod) = change.new else { return };
        if is_finished(pod) && !change.old.is_some_and(is_finished) {
            wake.push_after(Key::new("", FINISHED), PERIOD);
        }
        if pod_gc::is_unbound(pod) {
            wake.push(Key::new("", UNBOUND));
        }
        let Some(key) = node_of(pod).map(|node| Key::new("", node)) else {
            return;
        };
        let Some(caches) = all.upgrade() else { return };
        let node = caches.nodes.get(&key);
        if node.is_none_or(|node| pod.metadata.is_deleting() && pod_gc::is_out_of_service(&node)) {
            wake.push(key);
        }
    });
    queue
}
