//! Controller of the annotation with the TTL of the agents' caches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use controlplane_plan::node::ttl;
use controlplane_plan::objects::annotation;
use controlplane_plan::step::Plan;
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::Key;
use crate::machinery::driver::Controller;
use crate::machinery::kinds::Caches;
use crate::machinery::queue::Queue;

/// Plans the annotation of each node.
pub(crate) struct Ttl {
    caches: Arc<Caches>,
    /// Index of the cluster's size.
    size: Arc<AtomicUsize>,
}

impl Controller for Ttl {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        match self.caches.nodes.get(key) {
            Some(node) => ttl::plan(&node, self.size.load(Ordering::Relaxed)),
            None => Plan::default(),
        }
    }
}

/// Wakes new nodes and those whose annotation has changed, and all when the cluster's size class
/// changes.
pub(crate) fn listen(caches: &Arc<Caches>) -> (Ttl, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new("ttlcontroller");
    let controller = Ttl {
        caches: caches.clone(),
        size: Arc::default(),
    };
    let (wake, all, size) = (queue.clone(), Arc::downgrade(caches), controller.size.clone());
    caches.nodes.listen(move |change| {
        let told = |node: &Node| annotation(&node.metadata, ttl::ANNOTATION).map(str::to_owned);
        if let Some(node) = change.new
            && change.old.is_none_or(|old| told(old) != told(node))
        {
            wake.push(Key::of(&node.metadata));
        }
        if change.old.is_some() == change.new.is_some() {
            return;
        }
        let Some(caches) = all.upgrade() else { return };
        let before = size.load(Ordering::Relaxed);
        let after = ttl::next(before, caches.nodes.len());
        if after != before {
            size.store(after, Ordering::Relaxed);
            for node in caches.nodes.all() {
                wake.push(Key::of(&node.metadata));
            }
        }
    });
    (controller, queue)
}
