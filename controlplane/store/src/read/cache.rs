//! Cache for all reads: the newest version of every object and a ring of recent changes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use crate::object::entry::{Entry, Event, EventKind};
use crate::object::key::{Key, Prefix};
use crate::read::news::{News, Watchers, Woken};

/// The state behind one lock; readers hold it only while they copy a few pointers.
#[derive(Debug)]
pub(crate) struct Cache {
    /// The newest published revision.
    pub(crate) revision: u64,
    /// The compaction floor: versions superseded up to this revision may be gone, and watches from
    /// before it end if their resource has changed since.
    pub(crate) floor: u64,
    /// Exact lists before this revision are refused because of their age, whether or not their
    /// resource has changed. Never above the floor, which also rises by size.
    pub(crate) aged: u64,
    pub(crate) closed: bool,
    base: u64,
    resources: BTreeMap<Box<str>, Resource>,
    ring: VecDeque<Slot>,
    ring_bytes: usize,
    limits: RingLimits,
}

/// Limits of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingLimits {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
struct Resource {
    entries: BTreeMap<Key, Entry>,
    /// Revision of the newest change; at start, the loaded revision.
    last: watch::Sender<u64>,
    watchers: Watchers,
    /// Revisions of the newest change that has left the ring, and of the one before it; zeros if
    /// there is none.
    left: (u64, u64),
}

#[derive(Debug)]
struct Slot {
    event: Arc<Event>,
    /// Revision of the previous change of the same resource: a watcher follows only its own
    /// resource.
    link: u64,
}

/// Recent changes of one resource, as far back as the ring goes.
#[derive(Debug)]
pub(crate) struct Recent {
    /// Newest first.
    pub(crate) events: Vec<Arc<Event>>,
    /// Changes up to this revision must be read from the ledger; 0 if none are missing.
    pub(crate) gap_until: u64,
}

impl Cache {
    pub(crate) fn new(revision: u64, floor: u64, limits: RingLimits) -> Self {
        Self {
            revision,
            floor,
            aged: floor,
            closed: false,
            base: revision,
            resources: BTreeMap::new(),
            ring: VecDeque::new(),
            ring_bytes: 0,
            limits,
        }
    }

    pub(crate) fn load(&mut self, entry: Entry) {
        let base = self.base;
        resource(&mut self.resources, base, entry.key.resource())
            .entries
            .insert(entry.key.clone(), entry);
    }

    /// Replaces the whole state; the changes in between are unknown. All watches from before end.
    pub(crate) fn reset(&mut self, revision: u64, entries: Vec<Entry>) {
        (self.revision, self.floor, self.aged, self.base) = (revision, revision, revision, revision);
        self.ring.clear();
        self.ring_bytes = 0;
        for resource in self.resources.values_mut() {
            resource.entries.clear();
            resource.left = (0, 0);
        }
        for entry in entries {
            self.load(entry);
        }
        for resource in self.resources.values() {
            resource.last.send_replace(revision);
            resource.watchers.reset(revision);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.resources.get(key.resource())?.entries.get(key)
    }

    /// Names and entries of all resources.
    pub(crate) fn resources(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &Entry>)> {
        self.resources
            .iter()
            .map(|(name, resource)| (&**name, resource.entries.values()))
    }

    /// Entries under the prefix, after a key.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &'a Prefix,
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = &'a Entry> + use<'a> {
        let start = match after {
            Some(key) if key.as_str() >= prefix.as_str() => Bound::Excluded(key.as_str()),
            _ => Bound::Included(prefix.as_str()),
        };
        self.resources
            .get(prefix.resource_name())
            .into_iter()
            .flat_map(move |resource| resource.entries.range::<str, _>((start, Bound::Unbounded)))
            .map(|(_, entry)| entry)
            .take_while(move |entry| prefix.contains(&entry.key))
    }

    /// The revision of the last change of a prefix's resource.
    pub(crate) fn last_change(&self, prefix: &Prefix) -> u64 {
        self.resources
            .get(prefix.resource_name())
            .map_or(self.base, |resource| *resource.last.borrow())
    }

    pub(crate) fn subscribe(&mut self, prefix: &Prefix) -> watch::Receiver<u64> {
        let base = self.base;
        resource(&mut self.resources, base, prefix.resource_name())
            .last
            .subscribe()
    }

    /// Subscribes a watcher of a resource, or of the objects in it that have a value in a field.
    pub(crate) fn subscribe_to_news(&mut self, prefix: &Prefix, of: Option<(&str, &str)>) -> watch::Receiver<News> {
        let base = self.base;
        resource(&mut self.resources, base, prefix.resource_name())
            .watchers
            .subscribe(of)
    }

    /// Makes committed changes visible to readers. Returns the watchers, which are woken after the
    /// writers have been answered.
    pub(crate) fn publish(&mut self, events: Vec<Event>) -> Woken {
        let base = self.base;
        let mut woken = Woken::new();
        for event in events {
            let resource = resource(&mut self.resources, base, event.entry.key.resource());
            let before = match event.kind {
                EventKind::Put { .. } => resource.entries.insert(event.entry.key.clone(), event.entry.clone()),
                EventKind::Delete { .. } => resource.entries.remove(&event.entry.key),
            };
            resource.watchers.note(&event, before.as_ref(), &mut woken);
            self.revision = event.revision;
            let link = resource.last.send_replace(event.revision);
            self.ring_bytes += event.entry.bytes.len();
            self.ring.push_back(Slot {
                event: Arc::new(event),
                link,
            });
        }
        while self.ring.len() > self.limits.events || self.ring_bytes > self.limits.bytes {
            let Some(slot) = self.ring.pop_front() else { break };
            self.ring_bytes -= slot.event.entry.bytes.len();
            if let Some(resource) = self.resources.get_mut(slot.event.entry.key.resource()) {
                resource.left = (slot.event.revision, slot.link);
            }
        }
        woken
    }

    /// True if all changes of the prefix's resource after a revision are still available, from the
    /// ring or the ledger: none of them is at or below the floor. A resource without changes stays
    /// complete however far the floor has risen.
    pub(crate) fn is_complete(&self, prefix: &Prefix, after: u64) -> bool {
        if after >= self.floor {
            return true;
        }
        let Some(resource) = self.resources.get(prefix.resource_name()) else {
            return self.base <= after;
        };
        let mut at = *resource.last.borrow();
        while at > self.floor {
            at = match self.slot(at) {
                Some(slot) => slot.link,
                None if at == resource.left.0 => resource.left.1,
                // The changes in between are unknown, so they may be gone.
                None => return false,
            };
        }
        at <= after
    }

    /// The changes of the prefix's resource after a revision, followed back through the ring.
    pub(crate) fn recent(&self, prefix: &Prefix, after: u64) -> Recent {
        let mut events = Vec::new();
        let mut at = self.last_change(prefix);
        while at > after {
            let Some(slot) = self.slot(at) else {
                return Recent { events, gap_until: at };
            };
            if prefix.contains(&slot.event.entry.key) {
                events.push(Arc::clone(&slot.event));
            }
            at = slot.link;
        }
        Recent { events, gap_until: 0 }
    }

    /// Every revision is one change, so the ring is indexed by revision.
    fn slot(&self, revision: u64) -> Option<&Slot> {
        let first = self.ring.front()?.event.revision;
        self.ring.get(usize::try_from(revision.checked_sub(first)?).ok()?)
    }

    /// Ends all watches. Reads still work.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for resource in self.resources.values_mut() {
            let last = *resource.last.borrow();
            resource.last = watch::Sender::new(last);
            resource.watchers = Watchers::new(last);
        }
    }
}

fn resource<'a>(resources: &'a mut BTreeMap<Box<str>, Resource>, base: u64, name: &str) -> &'a mut Resource {
    resources.entry(name.into()).or_insert_with(|| Resource {
        entries: BTreeMap::new(),
        last: watch::Sender::new(base),
        watchers: Watchers::new(base),
        left: (0, 0),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object::entry::Attributes;
    use crate::read::news::wake;

    fn put(revision: u64) -> Event {
        let key = Key::new("", "pods", "default", &format!("p{revision}")).unwrap();
        Event {
            revision,
            kind: EventKind::Put { prev: None },
            entry: Entry::new(key, revision, Bytes::new(), Attributes::default()),
        }
    }

    #[test]
    fn watchers_are_woken_once_for_all_and_readers_need_no_waking() {
        let limits = RingLimits { events: 8, bytes: 1024 };
        let mut cache = Cache::new(0, 0, limits);
        let prefix = Prefix::resource("", "pods");
        let (mut news, last) = (cache.subscribe_to_news(&prefix, None), cache.subscribe(&prefix));
        let woken = cache.publish(vec![put(1), put(2)]);
        assert_eq!(woken.len(), 1, "one resource");
        assert_eq!(
            (cache.revision, *last.borrow(), cache.range(&prefix, None).count()),
            (2, 2, 2)
        );
        assert!(!news.has_changed().unwrap(), "nobody is woken yet");
        wake(&woken);
        assert!(news.has_changed().unwrap());
        assert_eq!(news.borrow_and_update().last(), 2);
        assert!(!news.has_changed().unwrap(), "once");
    }
}
