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
    /// When it came.
    since: Instant,
    /// Not before; `None` when it may go.
    due: Option<Instant>,
    /// Not before this even if something happens.
    earliest: Instant,
}

/// Attempts at a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempts {
    pub(super) number: u32,
    /// When the pod came.
    pub(super) since: Instant,
    /// When the last attempt began.
    pub(super) begun: Instant,
}

/// Numbers of pods that wait, by reason.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) active: usize,
    pub(super) backoff: usize,
    pub(super) unschedulable: usize,
    pub(super) gated: usize,
}

/// Everything that waits; each pod is in it at most once.
#[derive(Default)]
pub(super) struct Line {
    pods: BTreeMap<Key, Waiting>,
    ready: BTreeSet<(Reverse<i32>, u64, Key)>,
    attempts: BTreeMap<Key, Attempts>,
    /// Pods that wait for somebody to open a gate.
    gated: BTreeSet<Key>,
    next: u64,
    /// Pods that came into a queue: which queue, by what, how many.
    pub(super) incoming: BTreeMap<(&'static str, &'static str), u64>,
}

const FAILED: &str = "ScheduleAttemptFailure";

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
        let now = Instant::now();
        self.count("active", "UnschedulablePodAdd");
        self.put(
            key,
            Waiting {
                priority,
                number: 0,
                attempts: 0,
                since: now,
                due: None,
                earliest: now,
            },
        );
    }

    fn count(&mut self, queue: &'static str, event: &'static str) {
        *self.incoming.entry((queue, event)).or_default() += 1;
    }

    /// Numbers of pods that wait.
    pub(super) fn pending(&self) -> Pending {
        let mut pending = Pending {
            active: self.ready.len(),
            gated: self.gated.len(),
            ..Pending::default()
        };
        for waiting in self.pods.values() {
            match waiting.due {
                Some(due) if due > waiting.earliest => pending.unschedulable += 1,
                Some(_) => pending.backoff += 1,
                None => {}
            }
        }
        pending
    }

    /// The pod has gates: nothing is done for it until they are gone.
    pub(super) fn gate(&mut self, key: &Key) {
        if self.gated.insert(key.clone()) {
            self.count("gated", "UnschedulablePodAdd");
        }
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
        self.gated.remove(key);
    }

    /// The pod is bound.
    pub(super) fn settled(&mut self, key: &Key) {
        self.attempts.remove(key);
    }

    /// Attempts so far at a pod that was taken.
    pub(super) fn attempts(&self, key: &Key) -> Option<Attempts> {
        self.attempts.get(key).copied()
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
                self.count("active", "BackoffComplete");
                self.put(key, waiting);
            }
        }
        let (_, _, key) = self.ready.pop_first()?;
        if let Some(waiting) = self.pods.remove(&key) {
            let attempts = Attempts {
                number: waiting.attempts.saturating_add(1),
                since: waiting.since,
                begun: now,
            };
            self.attempts.insert(key.clone(), attempts);
        }
        Some(key)
    }

    /// When a pod may go next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pods.values().filter_map(|waiting| waiting.due).min()
    }

    /// A pod whose attempt failed, and how long it has to pause.
    fn failed(&self, key: &Key, priority: i32, now: Instant) -> Waiting {
        let known = self.attempts.get(key);
        let attempts = known.map_or(1, |known| known.number);
        let delay = BACKOFF
            .0
            .saturating_mul(1 << attempts.saturating_sub(1).min(8))
            .min(BACKOFF.1);
        Waiting {
            priority,
            number: 0,
            attempts,
            since: known.map_or(now, |known| known.since),
            due: None,
            earliest: now + delay,
        }
    }

    /// The pod fits nowhere: it waits for something to happen, at most `forgotten`.
    pub(super) fn refuse(&mut self, key: Key, priority: i32, forgotten: Duration) {
        let now = Instant::now();
        let mut waiting = self.failed(&key, priority, now);
        waiting.due = Some(now + forgotten);
        self.count("unschedulable", FAILED);
        self.put(key, waiting);
    }

    /// Something went wrong with the pod: it goes again after a while.
    pub(super) fn back_off(&mut self, key: Key, priority: i32) {
        let mut waiting = self.failed(&key, priority, Instant::now());
        waiting.due = Some(waiting.earliest);
        self.count("backoff", FAILED);
        self.put(key, waiting);
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
