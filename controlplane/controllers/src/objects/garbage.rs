//! Garbage collector: watches the metadata of all kinds and maintains the graph of owners.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use controlplane_plan::garbage::{Graph, Item};
use controlplane_plan::objects::uid;
use controlplane_plan::step::{Plan, Resource, Target};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::{apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, jiff::Timestamp};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::machinery::{
    cache::{Cache, Key},
    driver::{Context, Controller},
    kinds::{AnyCache as _, Caches, Listener, Partial, defined, stored_kinds},
    queue::Queue,
    reflector,
};

/// The graph, and the custom resources in it.
#[derive(Default)]
struct Shared {
    graph: Mutex<Graph>,
    defined: Mutex<BTreeSet<Resource>>,
}

impl Shared {
    fn with_graph<T>(&self, work: impl FnOnce(&mut Graph) -> T) -> T {
        work(&mut self.graph.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The resource of an owner reference's kind, in any served version of its group.
    fn resolve(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let is_meant = |resource: &Resource| resource.group == group && resource.kind == kind;
        let built_in = stored_kinds().find(is_meant);
        built_in.or_else(|| {
            let defined = self.defined.lock().unwrap_or_else(PoisonError::into_inner);
            defined.iter().copied().find(is_meant)
        })
    }
}

/// Plans deletions. Its keys contain uids instead of names.
pub(crate) struct Garbage(Arc<Shared>);

impl Controller for Garbage {
    fn component(&self) -> &'static str {
        "garbage-collector-controller"
    }

    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let resolve = |api_version: &str, kind: &str| self.0.resolve(api_version, kind);
        self.0.with_graph(|graph| graph.plan(&key.name, resolve, now))
    }

    fn learn(&self, target: &Target, exists: bool, now: Timestamp) {
        self.0.with_graph(|graph| graph.learn(&target.uid, exists, now));
    }
}

/// Watches custom resources, for as long as they are served.
pub(crate) struct Defined {
    shared: Arc<Shared>,
    listener: Listener,
    queue: Arc<Queue<Key>>,
    changed: Arc<Notify>,
}

impl Defined {
    pub(crate) async fn follow(self, context: Context) {
        let mut followed: BTreeMap<Resource, (CancellationToken, Arc<Cache<Partial>>)> = BTreeMap::new();
        let mut reflectors = JoinSet::new();
        let listener = self.mourner();
        loop {
            let definitions = context.caches.definitions.all();
            let wanted: BTreeSet<Resource> = definitions.iter().filter_map(|own| defined(own)).collect();
            self.shared
                .defined
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone_from(&wanted);
            let gone = followed.extract_if(.., |resource, _| !wanted.contains(resource));
            for (resource, (cancel, cache)) in gone {
                cancel.cancel();
                // A definition is deleted after its objects; one that is no longer served still has
                // them.
                let names =
                    |own: &Arc<CustomResourceDefinition>| (own.spec.group.clone(), own.spec.names.plural.clone());
                let own = (resource.group.to_owned(), resource.plural.to_owned());
                let ended = !definitions.iter().any(|definition| names(definition) == own);
                for object in cache.all() {
                    let uid = uid(&*object);
                    self.wake(|graph| {
                        if ended {
                            graph.bury(uid);
                        }
                        graph.forget(uid)
                    });
                }
            }
            for resource in wanted {
                if followed.contains_key(&resource) {
                    continue;
                }
                let (cache, cancel) = (Cache::<Partial>::new(), CancellationToken::new());
                cache.hear(resource, listener.clone());
                let client = context.client.clone();
                reflectors.spawn(reflector::run(cache.clone(), client, resource, cancel.clone()));
                followed.insert(resource, (cancel, cache));
                // Owners of this kind could not be resolved before.
                self.wake(|graph| graph.owned_by_kind(resource.group, resource.kind));
            }
            while reflectors.try_join_next().is_some() {}
            self.changed.notified().await;
        }
    }

    /// A listener that also records observed deletions of owners: a lookup may come when the kind
    /// is no longer served.
    fn mourner(&self) -> Listener {
        let (shared, listener) = (self.shared.clone(), self.listener.clone());
        Arc::new(move |resource, turn| {
            let new = turn.new.as_ref().map(|new| new.any_meta().uid());
            if let Some(old) = turn.old.filter(|old| new != Some(*old)) {
                shared.with_graph(|graph| graph.bury(old));
            }
            listener(resource, turn);
        })
    }

    fn wake(&self, concerned: impl FnOnce(&mut Graph) -> Vec<String>) {
        for uid in self.shared.with_graph(concerned) {
            self.queue.push(Key::new("", &uid));
        }
    }
}

/// Watches all kinds.
pub(crate) fn listen(caches: &Caches) -> (Garbage, Arc<Queue<Key>>, Defined) {
    let queue: Arc<Queue<Key>> = Queue::new("garbage_collector_attempt_to_delete");
    let shared = Arc::new(Shared::default());
    let (wake, seen) = (queue.clone(), shared.clone());
    let listener: Listener = Arc::new(move |resource, turn| {
        let concerned = seen.with_graph(|graph| {
            let new = turn.new.as_ref().map(|new| new.any_meta().uid());
            let mut concerned = Vec::new();
            if let Some(old) = turn.old.filter(|old| new != Some(*old)) {
                concerned.extend(graph.forget(old));
            }
            if let Some(new) = turn.new {
                concerned.extend(graph.observe(Item::of(resource, new)));
            }
            concerned
        });
        for uid in concerned {
            wake.push(Key::new("", &uid));
        }
    });
    caches.listen_to_all(&listener);
    let changed = Arc::new(Notify::new());
    let told = changed.clone();
    caches.definitions.listen(move |_| told.notify_one());
    let defined = Defined {
        shared: shared.clone(),
        listener,
        queue: queue.clone(),
        changed,
    };
    (Garbage(shared), queue, defined)
}
