//! The pods that wait: those that may go now, most important first; those that back off; those that fit nowhere.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::cache::Key;

const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

#[derive(Debug, Clone, Copy)]
struct Waiting {
    priority: i32,
    /// Its place among equals.
    number: u64,
    attempts: u32,
    /// Not before; `None` when it may go.
    due: Option<Instant>,
    /// Not before this even if something happens.
    earliest: Instant,
}

/// Everything that waits; each pod is in it at most once.
#[derive(Default)]
pub(super) struct Line {
    pods: BTreeMap<Key, Waiting>,
    ready: BTreeSet<(Reverse<i32>, u64, Key)>,
    attempts: BTreeMap<Key, u32>,
    next: u64,
}

impl Line {
    /// Adds a pod, or lets it go at once if what it asks for has `changed`.
    pub(super) fn add(&mut self, key: Key, priority: i32, changed: bool) {
        if self.pods.contains_key(&key) && !changed {
            return;
        }
        // A pod that was refused and reported on comes back as an update of its status: that is no news.
        if self.attempts.contains_key(&key) && !changed {
            return;
        }
        self.remove(&key);
        self.put(
            key,
            Waiting {
                priority,
                number: 0,
                attempts: 0,
                due: None,
                earliest: Instant::now(),
            },
        );
    }

    fn put(&mut self, key: Key, mut waiting: Waiting) {
        self.next = self.next.saturating_add(1);
        waiting.number = self.next;
        if waiting.due.is_none() {
            self.ready
                .insert((Reverse(waiting.priority), waiting.number, key.clone()));
        }
        self.pods.insert(key, waiting);
    }

    /// Forgets a pod.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(waiting) = self.pods.remove(key) {
            self.ready
                .remove(&(Reverse(waiting.priority), waiting.number, key.clone()));
        }
        self.attempts.remove(key);
    }

    /// The pod is bound.
    pub(super) fn settled(&mut self, key: &Key) {
        self.attempts.remove(key);
    }

    /// The next pod that may go.
    pub(super) fn take(&mut self) -> Option<Key> {
        let now = Instant::now();
        let due: Vec<Key> = self
            .pods
            .iter()
            .filter(|(_, waiting)| waiting.due.is_some_and(|due| due <= now))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            if let Some(mut waiting) = self.pods.remove(&key) {
                waiting.due = None;
                self.put(key, waiting);
            }
        }
        let (_, _, key) = self.ready.pop_first()?;
        if let Some(waiting) = self.pods.remove(&key) {
            self.attempts.insert(key.clone(), waiting.attempts.saturating_add(1));
        }
        Some(key)
    }

    /// When a pod may go next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pods.values().filter_map(|waiting| waiting.due).min()
    }

    fn delay(&self, key: &Key) -> (u32, Duration) {
        let attempts = self.attempts.get(key).copied().unwrap_or(1);
        (
            attempts,
            BACKOFF
                .0
                .saturating_mul(1 << attempts.saturating_sub(1).min(8))
                .min(BACKOFF.1),
        )
    }

    /// The pod fits nowhere: it waits for something to happen, at most `forgotten`.
    pub(super) fn refuse(&mut self, key: Key, priority: i32, forgotten: Duration) {
        let (attempts, delay) = self.delay(&key);
        let now = Instant::now();
        self.put(
            key,
            Waiting {
                priority,
                number: 0,
                attempts,
                due: Some(now + forgotten),
                earliest: now + delay,
            },
        );
    }

    /// Something went wrong with the pod: it goes again after a while.
    pub(super) fn back_off(&mut self, key: Key, priority: i32) {
        let (attempts, delay) = self.delay(&key);
        let due = Instant::now() + delay;
        self.put(
            key,
            Waiting {
                priority,
                number: 0,
                attempts,
                due: Some(due),
                earliest: due,
            },
        );
    }

    /// Something happened that may make room: whoever was refused may go when its time comes.
    pub(super) fn stir(&mut self) {
        for waiting in self.pods.values_mut() {
            if let Some(due) = waiting.due.as_mut() {
                *due = waiting.earliest.min(*due);
            }
        }
    }
}
