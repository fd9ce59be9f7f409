//! The garbage collector: watches every kind's metadata and keeps the graph of owners.

use std::sync::{Arc, Mutex, PoisonError};

use controlplane_plan::{
    garbage::{Graph, Item},
    rollout::Failure,
    step::{Plan, Resource, Target},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    cache::Key,
    driver::Controller,
    kinds::{Caches, stored_kinds},
    queue::Queue,
};

/// Plans deletions. Its keys are uids, in the place of the name.
pub(crate) struct Garbage(Arc<Mutex<Graph>>);

impl Controller for Garbage {
    fn component(&self) -> &'static str {
        "garbage-collector-controller"
    }

    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .plan(&key.name, resolve, now)
    }

    fn learn(&self, target: &Target, exists: bool, now: Timestamp) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .learn(&target.uid, exists, now);
    }
}

/// The resource of an owner reference's kind, in whatever version of its group we serve.
fn resolve(api_version: &str, kind: &str) -> Option<Resource> {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    stored_kinds().find(|resource| resource.group == group && resource.kind == kind)
}

/// Follows every kind.
pub(crate) fn listen(caches: &Caches) -> (Garbage, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new("garbage_collector_attempt_to_delete");
    let graph = Arc::new(Mutex::new(Graph::default()));
    let (wake, shared) = (queue.clone(), graph.clone());
    caches.listen_to_all(move |resource, turn| {
        let concerned = {
            let mut graph = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let new = turn.new.as_ref().map(|new| new.any_meta().uid());
            let mut concerned = Vec::new();
            if let Some(old) = turn.old.filter(|old| new != Some(*old)) {
                concerned.extend(graph.forget(old));
            }
            if let Some(new) = turn.new {
                concerned.extend(graph.observe(Item::of(resource, new)));
            }
            concerned
        };
        for uid in concerned {
            wake.push(Key::new("", &uid));
        }
    });
    (Garbage(graph), queue)
}
