//! Caches of the objects that watches have shown: one per kind, shared by all controllers.

mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use controlplane_plan::objects::{Meta, Object};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

use self::place::{Kept, Place};
use crate::machinery::queue::Queue;

/// A kind that is cached.
pub(crate) trait Cached: Object + DeserializeOwned + Clone + Send + Sync + 'static {
    /// Pool of parts that objects of the kind share.
    type Pool: Default + Send + Sync;
    /// Drops fields that no controller reads.
    fn trim(&mut self) {}
    /// Deduplicates shared parts of the object.
    fn share(&mut self, _pool: &mut Self::Pool) {}
    /// Index entries of the object.
    fn index(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Key of an object: namespace (empty for cluster-scoped objects) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn of(metadata: &(impl Meta + ?Sized)) -> Self {
        Self::new(metadata.namespace(), metadata.name())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// An object before and after a change.
pub(crate) struct Change<'a, K> {
    pub(crate) old: Option<&'a K>,
    pub(crate) new: Option<&'a K>,
    /// The new object as the cache keeps it.
    pub(crate) kept: Option<&'a Arc<K>>,
}

impl<'a, K> Change<'a, K> {
    /// The old and the new object: a change may concern owners and keys of both.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &'a K> + use<'a, K> {
        self.old.into_iter().chain(self.new)
    }
}

type Listener<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

struct State<K: Cached> {
    objects: BTreeSet<Kept<K>>,
    index: BTreeMap<String, BTreeSet<Kept<K>>>,
    /// Parts that objects share.
    pool: K::Pool,
    revision: u64,
}

/// The objects of one kind.
pub(crate) struct Cache<K: Cached> {
    state: RwLock<State<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    asked: RwLock<u64>,
    pub(crate) refresh: Notify,
    listed: watch::Sender<u64>,
}

impl<K: Cached> Cache<K> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::new(State {
                objects: BTreeSet::new(),
                index: BTreeMap::new(),
                pool: K::Pool::default(),
                revision: 0,
            }),
            listeners: RwLock::new(Vec::new()),
            asked: RwLock::new(1),
            refresh: Notify::new(),
            listed: watch::Sender::new(0),
        })
    }

    /// Calls `listener` after every change, on the watch's task: it must be fast.
    pub(crate) fn listen(&self, listener: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        self.listeners
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(listener));
    }

    /// Queues each object that changes or goes.
    pub(crate) fn wake(&self, queue: &Arc<Queue<Key>>) {
        let queue = queue.clone();
        self.listen(move |change| {
            if let Some(object) = change.sides().last() {
                queue.push(Key::of(object.meta()));
            }
        });
    }

    /// Queues each object that appears or changes such that `concerns` is true for it.
    pub(crate) fn wake_if(&self, queue: &Arc<Queue<Key>>, concerns: impl Fn(&K) -> bool + Send + Sync + 'static) {
        let queue = queue.clone();
        self.listen(move |change| {
            if let Some(object) = change.new.filter(|new| concerns(new)) {
                queue.push(Key::of(object.meta()));
            }
        });
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().get(key).cloned()
    }

    /// All objects, in the order of their keys.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.iter().map(|kept| kept.0.clone()).collect()
    }

    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// True if a predicate holds for one of the objects.
    pub(crate) fn any(&self, mut holds: impl FnMut(&K) -> bool) -> bool {
        self.read().objects.iter().any(|kept| holds(&kept.0))
    }

    /// All objects of a namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let first = Key::new(namespace, "");
        let from = (Bound::Included(&first as &dyn Place), Bound::Unbounded);
        let from = state.objects.range::<dyn Place, _>(from);
        from.take_while(|kept| kept.place().0 == namespace)
            .map(|kept| kept.0.clone())
            .collect()
    }

    /// Objects with the index entry `entry`.
    pub(crate) fn indexed(&self, entry: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let kept = state.index.get(entry).into_iter().flatten();
        kept.map(|kept| kept.0.clone()).collect()
    }

    /// Waits for the first list.
    pub(crate) async fn synced(&self) {
        let mut listed = self.listed.subscribe();
        if listed.wait_for(|listed| *listed > 0).await.is_err() {
            // The sender lives in `self`: it cannot be gone.
            std::future::pending::<()>().await;
        }
    }

    /// Deduplicates the parts of an object that is going to be kept.
    pub(crate) fn share(&self, object: &mut K) {
        object.share(&mut self.write().pool);
    }

    /// Replaces the whole content with a list at once, so that no reader sees half of it; missing
    /// objects are deleted.
    pub(crate) fn replace(&self, objects: Vec<K>, revision: u64, asked: u64) {
        let changes = {
            let mut state = self.write();
            let mut gone: BTreeSet<Key> = state.objects.iter().map(|kept| Key::of(kept.0.meta())).collect();
            let mut changes = Vec::new();
            for object in objects {
                gone.remove(&Key::of(object.meta()));
                changes.push(state.put(object));
            }
            changes.extend(gone.iter().map(|key| (state.remove(key), None)));
            // A database restored from a backup restarts at a lower revision: the list is right.
            state.revision = revision;
            changes
        };
        self.listed.send_modify(|listed| *listed = (*listed).max(asked));
        for (old, new) in changes {
            self.tell(old.as_ref(), new.as_ref());
        }
    }

    /// Applies one change and its revision.
    pub(crate) fn apply(&self, object: K, deleted: bool) {
        let (old, new) = {
            let mut state = self.write();
            state.revision = state.revision.max(object.meta().revision());
            if deleted {
                (state.remove(&Key::of(object.meta())), None)
            } else {
                state.put(object)
            }
        };
        self.tell(old.as_ref(), new.as_ref());
    }

    /// Advances to `revision`, up to which no further changes happened.
    pub(crate) fn progress(&self, revision: u64) {
        let mut state = self.write();
        state.revision = state.revision.max(revision);
    }

    fn tell(&self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        let version = |object: &Arc<K>| object.meta().resource_version();
        if old.map(version) == new.map(version) {
            return;
        }
        let change = Change {
            old: old.map(Arc::as_ref),
            new: new.map(Arc::as_ref),
            kept: new,
        };
        for listener in self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter() {
            listener(&change);
        }
    }
}

impl<K: Cached> State<K> {
    fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key as &dyn Place).map(|kept| &kept.0)
    }

    /// Inserts an object and its index entries; returns the old and the new object.
    fn put(&mut self, mut object: K) -> (Option<Arc<K>>, Option<Arc<K>>) {
        // If a new list shows a known version again, the cache keeps the shared object.
        let known = self.get(&Key::of(object.meta())).filter(|known| {
            let (known, new) = (known.meta(), object.meta());
            new.revision() > 0 && known.revision() == new.revision() && known.uid() == new.uid()
        });
        if let Some(known) = known {
            return (Some(known.clone()), Some(known.clone()));
        }
        object.share(&mut self.pool);
        let object = Arc::new(object);
        let old = self.objects.replace(Kept(object.clone())).map(|kept| kept.0);
        let after = object.index();
        for entry in old.as_deref().map(Cached::index).unwrap_or_default() {
            if !after.contains(&entry) {
                self.strike(&entry, &Kept(object.clone()));
            }
        }
        for entry in after {
            self.index.entry(entry).or_default().replace(Kept(object.clone()));
        }
        (old, Some(object))
    }

    /// Removes an object and its index entries; returns it.
    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let old = self.objects.take(key as &dyn Place)?;
        for entry in old.0.index() {
            self.strike(&entry, &old);
        }
        Some(old.0)
    }

    fn strike(&mut self, entry: &str, object: &Kept<K>) {
        if let Some(kept) = self.index.get_mut(entry) {
            kept.remove(object);
            if kept.is_empty() {
                self.index.remove(entry);
            }
        }
    }
}

/// Progress of a cache, whatever its kind.
pub(crate) trait Progress: Send + Sync {
    /// Revision up to which all changes were seen.
    fn revision(&self) -> u64;
    /// Number of the newest list request that was fulfilled.
    fn listed(&self) -> u64;
    /// Requests a new list and returns the number of the request.
    fn relist(&self) -> u64;
    /// Number of the newest list request.
    fn asked(&self) -> u64;
    /// True if the object is gone, being deleted, or replaced by another one of that name.
    fn is_deleted(&self, key: &Key, uid: &str) -> bool;
}

impl<K: Cached> Progress for Cache<K> {
    fn revision(&self) -> u64 {
        self.read().revision
    }

    fn listed(&self) -> u64 {
        *self.listed.borrow()
    }

    fn relist(&self) -> u64 {
        let number = {
            let mut asked = self.asked.write().unwrap_or_else(PoisonError::into_inner);
            *asked = asked.saturating_add(1);
            *asked
        };
        self.refresh.notify_one();
        number
    }

    fn asked(&self) -> u64 {
        *self.asked.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_deleted(&self, key: &Key, uid: &str) -> bool {
        self.read().get(key).is_none_or(|object| {
            let metadata = object.meta();
            metadata.is_deleting() || metadata.uid() != uid
        })
    }
}

#[cfg(test)]
mod tests {
    use controlplane_plan::pod::Pod;
    use serde_json::json;

    use super::*;
    use crate::machinery::kinds::{on_node, unmanaged};

    fn pod(name: &str, node: &str, revision: u64) -> Pod {
        let metadata =
            json!({ "name": name, "namespace": "default", "uid": name, "resourceVersion": revision.to_string() });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": node, "containers": [] } })).unwrap()
    }

    #[test]
    fn everything_shows_the_newest_and_a_new_list_keeps_what_is_known() {
        let shown = |pods: Vec<Arc<Pod>>| -> String {
            let each = pods
                .iter()
                .map(|pod| format!("{}@{}", pod.metadata.name(), pod.metadata.revision()));
            each.collect::<Vec<_>>().join(" ")
        };
        let cache = Cache::<Pod>::new();
        cache.replace(vec![pod("a", "n1", 1), pod("b", "n1", 2)], 2, 1);
        assert_eq!(shown(cache.indexed(&on_node("n1"))), "a@1 b@2");
        cache.apply(pod("a", "n2", 3), false);
        assert_eq!(shown(cache.indexed(&on_node("n1"))), "b@2");
        assert_eq!(shown(cache.indexed(&on_node("n2"))), "a@3");
        assert_eq!(shown(cache.indexed(&unmanaged("default"))), "a@3 b@2");
        assert_eq!(shown(cache.in_namespace("default")), "a@3 b@2");
        assert_eq!(shown(cache.in_namespace("defaul")), "");
        let known = cache.get(&Key::new("default", "a")).unwrap();
        cache.replace(vec![pod("a", "n2", 3)], 4, 2);
        assert!(Arc::ptr_eq(&known, &cache.get(&Key::new("default", "a")).unwrap()));
        assert_eq!(shown(cache.all()), "a@3");
        assert_eq!(shown(cache.indexed(&on_node("n1"))), "");
        cache.apply(pod("a", "n2", 5), true);
        assert_eq!(shown(cache.all()) + &shown(cache.indexed(&on_node("n2"))), "");
    }
}
