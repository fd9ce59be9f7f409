//! Revisions of a resource's newest changes, by the watchers that they concern. A watch of one value
//! of a field is not woken by changes of other objects, as with upstream's triggers
//! (`k8s.io/apiserver/pkg/storage/cacher/cacher.go`).

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::sync::watch::{Receiver, Sender};

use crate::object::entry::{Entry, Event};

/// Most runs that are kept.
const KEPT: usize = 16;
/// Longest distance of two changes that may become one run. Far less than any history, so that it
/// reaches back from a change to the one before it in the same run.
const NEAR: u64 = 64;

/// Revisions of the newest changes that concern a set of watchers.
#[derive(Debug)]
pub(crate) struct News {
    /// Changes up to this revision are unknown.
    floor: u64,
    /// Runs of those after it, oldest first: their first and last changes. A run of several changes
    /// may have more in between; there is none between two runs, however long a silence that was.
    runs: VecDeque<(u64, u64)>,
}

impl News {
    fn new(floor: u64) -> Self {
        Self {
            floor,
            runs: VecDeque::new(),
        }
    }

    /// Revision of the newest change.
    pub(super) fn last(&self) -> u64 {
        self.runs.back().map_or(self.floor, |(_, last)| *last)
    }

    /// Revision from which on there is something new for a watcher that has seen everything up to
    /// another one; `None` if there is nothing.
    pub(super) fn after(&self, seen: u64) -> Option<u64> {
        if self.last() <= seen {
            return None;
        }
        if self.floor > seen {
            return Some(seen);
        }
        let (first, _) = self.runs.iter().find(|(_, last)| *last > seen)?;
        Some(seen.max(first.saturating_sub(1)))
    }

    fn add(&mut self, revision: u64) {
        if self.runs.len() == KEPT {
            self.shorten();
        }
        self.runs.push_back((revision, revision));
    }

    /// Joins the two oldest runs that are near each other, or else drops the oldest.
    fn shorten(&mut self) {
        let mut pairs = self.runs.iter().zip(self.runs.iter().skip(1));
        let near = pairs.position(|(one, next)| next.0.saturating_sub(one.1) <= NEAR);
        if let Some(index) = near
            && let Some((_, last)) = self.runs.remove(index + 1)
            && let Some(run) = self.runs.get_mut(index)
        {
            run.1 = last;
        } else if let Some((_, last)) = self.runs.pop_front() {
            self.floor = last;
        }
    }
}

/// Watchers of a resource.
#[derive(Debug)]
pub(super) struct Watchers {
    all: Sender<News>,
    /// Senders to the watchers of one value of a field, by field and value.
    selective: BTreeMap<Box<str>, HashMap<Box<str>, Sender<News>>>,
}

/// Watchers that must be woken, each once.
pub(crate) type Woken = Vec<Sender<News>>;

impl Watchers {
    pub(super) fn new(revision: u64) -> Self {
        Self {
            all: Sender::new(News::new(revision)),
            selective: BTreeMap::new(),
        }
    }

    /// Subscribes to all changes, or to those of objects that have or had this value in this field.
    pub(super) fn subscribe(&mut self, of: Option<(&str, &str)>) -> Receiver<News> {
        let Some((field, value)) = of else {
            return self.all.subscribe();
        };
        let values = self.selective.entry(field.into()).or_default();
        if values.len() == values.capacity() {
            values.retain(|_, sender| sender.receiver_count() > 0);
        }
        let last = self.all.borrow().last();
        let sender = values
            .entry(value.into())
            .or_insert_with(|| Sender::new(News::new(last)));
        sender.subscribe()
    }

    /// Notes a change without waking anybody.
    pub(super) fn note(&self, event: &Event, before: Option<&Entry>, woken: &mut Woken) {
        add(&self.all, event.revision, woken);
        for (field, values) in &self.selective {
            let now = event.entry.attributes.field(&event.entry.key, field);
            let before = before.and_then(|before| before.attributes.field(&before.key, field));
            for value in [now, before.filter(|before| Some(*before) != now)]
                .into_iter()
                .flatten()
            {
                if let Some(sender) = values.get(value) {
                    add(sender, event.revision, woken);
                }
            }
        }
    }

    /// Wakes all: everything up to a revision is unknown.
    pub(super) fn reset(&self, revision: u64) {
        for sender in self.selective.values().flat_map(HashMap::values).chain([&self.all]) {
            sender.send_replace(News::new(revision));
        }
    }
}

fn add(sender: &Sender<News>, revision: u64, woken: &mut Woken) {
    sender.send_if_modified(|news| {
        news.add(revision);
        false
    });
    if sender.receiver_count() > 0 && woken.iter().all(|other| !other.same_channel(sender)) {
        woken.push(sender.clone());
    }
}

/// Wakes watchers.
pub(crate) fn wake(woken: &Woken) {
    for sender in woken {
        sender.send_modify(|_| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_after_a_long_silence_is_known_to_be_all_there_is() {
        let mut news = News::new(0);
        news.add(5);
        for revision in 10_000..10_100 {
            news.add(revision);
        }
        for (seen, expected) in [
            (5, Some(9_999)),
            (9_000, Some(9_999)),
            (10_050, Some(10_050)),
            (10_098, Some(10_098)),
            (10_099, None),
        ] {
            assert_eq!(news.after(seen), expected, "{seen}");
        }
        for revision in (21_000..=40_000).step_by(1000) {
            news.add(revision);
        }
        assert_eq!(news.runs.len(), KEPT);
        assert_eq!(news.after(5), Some(5), "too many silences ago");
        assert_eq!(news.after(24_500), Some(24_999));
    }
}
