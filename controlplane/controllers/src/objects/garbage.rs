//! Garbage collector: watches the metadata of all kinds and maintains the graph of owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controlplane_plan::garbage::{Graph, Item};
use controlplane_plan::objects::uid;
use controlplane_plan::step::{Plan, Resource, Target};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::machinery::cache::{Cache, Key};
use crate::machinery::driver::{Context, Controller};
use crate::machinery::elsewhere::{self, Elsewhere};
use crate::machinery::kinds::{AnyCache as _, Caches, Listener, Partial, defined, stored_kinds};
use crate::machinery::queue::Queue;
use crate::machinery::reflector;

/// The time between two discoveries of the kinds of aggregated API servers.
const DISCOVERY: Duration = Duration::from_secs(30);

/// The graph, and the kinds in it that are not built in.
#[derive(Default)]
struct Shared {
    graph: Mutex<Graph>,
    defined: Mutex<BTreeSet<Resource>>,
    elsewhere: Mutex<BTreeSet<Resource>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn with_graph<T>(&self, work: impl FnOnce(&mut Graph) -> T) -> T {
        work(&mut locked(&self.graph))
    }

    /// The resource of an owner reference's kind, in any served version of its group.
    fn resolve(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let is_meant = |resource: &Resource| resource.group == group && resource.kind == kind;
        let others = |of: &Mutex<BTreeSet<Resource>>| locked(of).iter().copied().find(is_meant);
        let built_in = stored_kinds().find(is_meant);
        built_in
            .or_else(|| others(&self.defined))
            .or_else(|| others(&self.elsewhere))
    }
}

/// Plans deletions. Its keys contain uids instead of names.
pub(crate) struct Garbage(Arc<Shared>);

impl Controller for Garbage {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let resolve = |api_version: &str, kind: &str| self.0.resolve(api_version, kind);
        self.0.with_graph(|graph| graph.plan(&key.name, resolve, now))
    }

    fn learn(&self, target: &Target, exists: bool, now: Timestamp) {
        self.0.with_graph(|graph| graph.learn(&target.uid, exists, now));
    }
}

/// Kinds that are watched for as long as they are served.
#[derive(Default)]
struct Followed {
    all: BTreeMap<Resource, (CancellationToken, Arc<Cache<Partial>>)>,
    reflectors: JoinSet<()>,
}

impl Followed {
    /// Ends the watches of all other kinds; returns these with their objects.
    fn end_others(&mut self, wanted: &BTreeSet<Resource>) -> Vec<(Resource, Arc<Cache<Partial>>)> {
        let gone = self.all.extract_if(.., |resource, _| !wanted.contains(resource));
        let ended = gone.map(|(resource, (cancel, cache))| {
            cancel.cancel();
            (resource, cache)
        });
        ended.collect()
    }

    /// Begins to watch a kind; false if it is watched already.
    fn begin(&mut self, resource: Resource, client: &kube::Client, listener: &Listener) -> bool {
        if self.all.contains_key(&resource) {
            return false;
        }
        let (cache, cancel) = (Cache::<Partial>::new(), CancellationToken::new());
        cache.hear(resource, listener.clone());
        let reflect = reflector::run(cache.clone(), client.clone(), resource, cancel.clone());
        self.reflectors.spawn(reflect);
        self.all.insert(resource, (cancel, cache));
        while self.reflectors.try_join_next().is_some() {}
        true
    }
}

/// Watches custom resources, for as long as they are served, and the kinds of aggregated API servers.
pub(crate) struct Defined {
    shared: Arc<Shared>,
    listener: Listener,
    queue: Arc<Queue<Key>>,
    changed: Arc<Notify>,
    changed_elsewhere: Arc<Notify>,
}

impl Defined {
    pub(crate) async fn follow(self, context: Context) {
        tokio::join!(self.follow_defined(&context), self.follow_elsewhere(&context));
    }

    async fn follow_defined(&self, context: &Context) {
        let mut followed = Followed::default();
        let listener = self.mourner();
        loop {
            let definitions = context.caches.definitions.all();
            let wanted: BTreeSet<Resource> = definitions.iter().filter_map(|own| defined(own)).collect();
            locked(&self.shared.defined).clone_from(&wanted);
            for (resource, cache) in followed.end_others(&wanted) {
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
                if followed.begin(resource, &context.client, &listener) {
                    // Owners of this kind could not be resolved before.
                    self.wake(|graph| graph.owned_by_kind(resource.group, resource.kind));
                }
            }
            self.changed.notified().await;
        }
    }

    /// Kinds of a server that does not answer are watched on; those that cannot be deleted or watched are left out
    /// (`GetDeletableResources` of `pkg/controller/garbagecollector/garbagecollector.go`).
    async fn follow_elsewhere(&self, context: &Context) {
        context.caches.api_services.synced().await;
        let mut followed = Followed::default();
        let listener = self.stranger();
        loop {
            let services = context.caches.api_services.all();
            let is_any = services.iter().any(|own| has_service(own));
            let known: BTreeSet<Resource> = followed.all.keys().copied().collect();
            let wanted = if is_any {
                kinds_elsewhere(context, &known).await
            } else {
                BTreeSet::new()
            };
            locked(&self.shared.elsewhere).clone_from(&wanted);
            for (resource, cache) in followed.end_others(&wanted) {
                for object in cache.all() {
                    self.wake(|graph| forget(graph, &resource, uid(&*object)));
                }
            }
            for resource in wanted {
                if followed.begin(resource, &context.client, &listener) {
                    self.wake(|graph| graph.owned_by_kind(resource.group, resource.kind));
                }
            }
            tokio::select! {
                () = self.changed_elsewhere.notified() => {}
                () = tokio::time::sleep(DISCOVERY), if is_any => {}
            }
        }
    }

    /// A listener for kinds of aggregated API servers. Some show objects of other kinds with the uids that these have: the
    /// kind that was there first is right.
    fn stranger(&self) -> Listener {
        let (shared, queue) = (self.shared.clone(), self.queue.clone());
        Arc::new(move |resource, turn| {
            let new = turn.new.as_ref().map(|new| new.any_meta().uid());
            let concerned = shared.with_graph(|graph| {
                let old = turn.old.filter(|old| new != Some(*old));
                let mut concerned = old.map(|old| forget(graph, resource, old)).unwrap_or_default();
                let is_own = |uid: &str| {
                    let known = graph.resource(uid);
                    !uid.is_empty() && known.is_none_or(|known| known == **resource)
                };
                if let Some(new) = turn.new.as_ref().filter(|new| is_own(new.any_meta().uid())) {
                    concerned.extend(graph.observe(Item::of(resource, Arc::clone(new))));
                }
                concerned
            });
            for uid in concerned {
                queue.push(Key::new("", &uid));
            }
        })
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

fn has_service(own: &APIService) -> bool {
    own.spec.as_ref().is_some_and(|spec| spec.service.is_some())
}

/// Removes an object that is known by this resource.
fn forget(graph: &mut Graph, resource: &Resource, uid: &str) -> Vec<String> {
    if graph.resource(uid) == Some(*resource) {
        graph.forget(uid)
    } else {
        Vec::new()
    }
}

/// Kinds of aggregated API servers, including known ones of servers that do not answer.
async fn kinds_elsewhere(context: &Context, known: &BTreeSet<Resource>) -> BTreeSet<Resource> {
    let (kinds, unknown) = match elsewhere::kinds(context).await {
        Ok(found) => found,
        Err(error) => {
            debug!(%error, "the groups are not known");
            return known.clone();
        }
    };
    let owning = kinds.iter().filter(|kind| kind.supports(&["delete", "list", "watch"]));
    let mut wanted: BTreeSet<Resource> = owning.filter_map(Elsewhere::resource).collect();
    wanted.extend(
        known
            .iter()
            .filter(|resource| unknown.contains(&resource.api_version())),
    );
    wanted
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
    let changed_elsewhere = Arc::new(Notify::new());
    let told = changed_elsewhere.clone();
    caches.api_services.listen(move |change| {
        if change.sides().any(has_service) {
            told.notify_one();
        }
    });
    let defined = Defined {
        shared: shared.clone(),
        listener,
        queue: queue.clone(),
        changed,
        changed_elsewhere,
    };
    (Garbage(shared), queue, defined)
}

#[cfg(test)]
mod tests;
