//! What a watch has shown so far: one cache a kind, shared by all controllers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::{Notify, watch};

use crate::kinds::Cached;

/// An object's place: namespace (empty for cluster-scoped objects) and name.
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

    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
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

/// One object before and after.
pub(crate) struct Change<'a, K> {
    pub(crate) old: Option<&'a K>,
    pub(crate) new: Option<&'a K>,
}

impl<'a, K> Change<'a, K> {
    /// Both sides: what either of them belongs to is concerned.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &'a K> + use<'a, K> {
        self.old.into_iter().chain(self.new)
    }
}

type Listener<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    index: BTreeMap<String, BTreeSet<Key>>,
    revision: u64,
}

/// The objects of one kind.
pub(crate) struct Cache<K> {
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
                objects: BTreeMap::new(),
                index: BTreeMap::new(),
                revision: 0,
            }),
            listeners: RwLock::new(Vec::new()),
            asked: RwLock::new(1),
            refresh: Notify::new(),
            listed: watch::Sender::new(0),
        })
    }

    /// Calls `listener` after every change, from the watch's task: it must be quick.
    pub(crate) fn listen(&self, listener: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        self.listeners
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(listener));
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// All objects, in the order of their keys.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects of a namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let from = state.objects.range(Key::new(namespace, "")..);
        from.take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// The objects that the kind's index puts under `entry`.
    pub(crate) fn indexed(&self, entry: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.index.get(entry).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// Waits for the first list.
    pub(crate) async fn synced(&self) {
        let mut listed = self.listed.subscribe();
        if listed.wait_for(|listed| *listed > 0).await.is_err() {
            // The sender lives in `self`: it cannot be gone.
            std::future::pending::<()>().await;
        }
    }

    /// Takes a whole list at once, so that nobody reads half of it; what it lacks is gone.
    pub(crate) fn replace(&self, objects: Vec<K>, revision: u64, asked: u64) {
        let changes = {
            let mut state = self.write();
            let mut gone: BTreeSet<Key> = state.objects.keys().cloned().collect();
            let mut changes = Vec::new();
            for object in objects {
                let key = Key::of(object.metadata());
                gone.remove(&key);
                changes.push(state.put(&key, Some(object)));
            }
            changes.extend(gone.iter().map(|key| state.put(key, None)));
            // A database that was restored from a copy starts again lower: the list is right.
            state.revision = revision;
            changes
        };
        self.listed.send_modify(|listed| *listed = (*listed).max(asked));
        for (old, new) in changes {
            self.tell(old.as_deref(), new.as_deref());
        }
    }

    /// Takes one change and knows of its revision from then on.
    pub(crate) fn apply(&self, object: K, deleted: bool) {
        let (old, new) = {
            let mut state = self.write();
            let key = Key::of(object.metadata());
            state.revision = state.revision.max(revision_of(object.metadata()));
            state.put(&key, (!deleted).then_some(object))
        };
        self.tell(old.as_deref(), new.as_deref());
    }

    /// Nothing of this kind happened up to `revision` that was not shown.
    pub(crate) fn progress(&self, revision: u64) {
        let mut state = self.write();
        state.revision = state.revision.max(revision);
    }

    fn tell(&self, old: Option<&K>, new: Option<&K>) {
        let version = |object: &K| object.metadata().resource_version.clone();
        if old.map(version) == new.map(version) {
            return;
        }
        let change = Change { old, new };
        for listener in self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter() {
            listener(&change);
        }
    }
}

impl<K: Cached> State<K> {
    /// Puts or removes an object and its index entries; gives what was there and what is.
    fn put(&mut self, key: &Key, new: Option<K>) -> (Option<Arc<K>>, Option<Arc<K>>) {
        let new = new.map(Arc::new);
        let old = match &new {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(key),
        };
        let before = old.as_deref().map(Cached::index).unwrap_or_default();
        let after = new.as_deref().map(Cached::index).unwrap_or_default();
        for entry in before.iter().filter(|entry| !after.contains(entry)) {
            if let Some(keys) = self.index.get_mut(entry) {
                keys.remove(key);
                if keys.is_empty() {
                    self.index.remove(entry);
                }
            }
        }
        for entry in after.into_iter().filter(|entry| !before.contains(entry)) {
            self.index.entry(entry).or_default().insert(key.clone());
        }
        (old, new)
    }
}

/// What the driver asks a cache, whatever its kind.
pub(crate) trait Progress: Send + Sync {
    /// Everything up to this revision has been seen.
    fn revision(&self) -> u64;
    /// The number of the newest request for a list that has been met.
    fn listed(&self) -> u64;
    /// Asks for a new list and gives the number of the request.
    fn relist(&self) -> u64;
    /// The number of the newest request for a list.
    fn asked(&self) -> u64;
    /// Whether the object is gone, being deleted, or another one by that name.
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
        self.read().objects.get(key).is_none_or(|object| {
            let metadata = object.metadata();
            metadata.deletion_timestamp.is_some() || metadata.uid.as_deref() != Some(uid)
        })
    }
}

/// The object's revision, 0 where it has none.
pub(crate) fn revision_of(metadata: &ObjectMeta) -> u64 {
    metadata
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}
