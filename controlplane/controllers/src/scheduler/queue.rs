//! The scheduling queue: active pods by priority, pods in backoff, and unschedulable pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use controlplane_plan::placement::{follows_pods, priority};
use controlplane_plan::pod::Pod;
use tokio::time::Instant;

use crate::machinery::cache::Key;

const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

#[derive(Debug, Clone, Copy)]
struct Waiting {
    priority: i32,
    /// Position among pods of the same priority.
    number: u64,
    attempts: u32,
    /// Time when the pod was added.
    since: Instant,
    /// Time at which it becomes active; `None` if it is.
    due: Option<Instant>,
    /// End of its backoff, before which no event activates it.
    earliest: Instant,
    /// True if it is unschedulable and a pod that is placed may change that.
    follows: bool,
}

/// Scheduling attempts of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempts {
    pub(super) number: u32,
    /// Time when the pod was added.
    pub(super) since: Instant,
    /// Start of the last attempt.
    pub(super) begun: Instant,
}

/// Numbers of pending pods by queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) active: usize,
    pub(super) backoff: usize,
    pub(super) unschedulable: usize,
    pub(super) gated: usize,
}

/// All pending pods; each is in one queue at most.
#[derive(Default)]
pub(super) struct SchedulingQueue {
    pods: BTreeMap<Key, Waiting>,
    ready: BTreeSet<(Reverse<i32>, u64, Key)>,
    /// Pods that are not active, by the time at which they become so.
    due: BTreeSet<(Instant, Key)>,
    /// Inactive pods that an event may activate earlier.
    unschedulable: BTreeSet<Key>,
    /// Unschedulable pods that a placed pod may activate.
    followers: BTreeSet<Key>,
    attempts: BTreeMap<Key, Attempts>,
    /// Pods with scheduling gates.
    gated: BTreeSet<Key>,
    next: u64,
    /// Number of pods that entered a queue, by queue and event.
    pub(super) incoming: BTreeMap<(&'static str, &'static str), u64>,
}

const FAILED: &str = "ScheduleAttemptFailure";

impl SchedulingQueue {
    /// Adds a pod, or activates it at once if its spec has `changed`.
    pub(super) fn add(&mut self, key: Key, priority: i32, changed: bool) {
        if self.pods.contains_key(&key) && !changed {
            return;
        }
        // A pod that was refused comes back as an update of its status: that is no change.
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
                follows: false,
            },
        );
    }

    fn count(&mut self, queue: &'static str, event: &'static str) {
        *self.incoming.entry((queue, event)).or_default() += 1;
    }

    /// Numbers of pending pods.
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

    /// Puts a pod with scheduling gates aside until they are removed.
    pub(super) fn gate(&mut self, key: &Key) {
        if self.gated.insert(key.clone()) {
            self.count("gated", "UnschedulablePodAdd");
        }
    }

    /// Puts a pod that is in no queue into its queue.
    fn put(&mut self, key: Key, mut waiting: Waiting) {
        self.next = self.next.saturating_add(1);
        waiting.number = self.next;
        match waiting.due {
            None => {
                let place = (Reverse(waiting.priority), waiting.number, key.clone());
                self.ready.insert(place);
            }
            Some(due) => {
                self.due.insert((due, key.clone()));
                if due > waiting.earliest {
                    self.unschedulable.insert(key.clone());
                    if waiting.follows {
                        self.followers.insert(key.clone());
                    }
                }
            }
        }
        self.pods.insert(key, waiting);
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, key: &Key) {
        self.forget(key);
        self.attempts.remove(key);
        self.gated.remove(key);
    }

    /// Takes a pod out of its queue, with its attempts so far.
    fn forget(&mut self, key: &Key) -> Option<Waiting> {
        let waiting = self.pods.remove(key)?;
        match waiting.due {
            None => {
                let place = (Reverse(waiting.priority), waiting.number, key.clone());
                self.ready.remove(&place);
            }
            Some(due) => {
                self.due.remove(&(due, key.clone()));
                self.unschedulable.remove(key);
                self.followers.remove(key);
            }
        }
        Some(waiting)
    }

    /// Forgets the attempts of a bound pod.
    pub(super) fn settled(&mut self, key: &Key) {
        self.attempts.remove(key);
    }

    /// Attempts so far of a pod that was taken.
    pub(super) fn attempts(&self, key: &Key) -> Option<Attempts> {
        self.attempts.get(key).copied()
    }

    /// Takes the next active pod.
    pub(super) fn take(&mut self) -> Option<Key> {
        let now = Instant::now();
        while let Some((_, key)) = self.due.first().filter(|(due, _)| *due <= now).cloned() {
            let waiting = self.forget(&key);
            if let Some(waiting) = waiting {
                self.count("active", "BackoffComplete");
                self.put(key, Waiting { due: None, ..waiting });
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

    /// Time at which the next pod becomes active.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// State of a pod after a failed attempt, with its backoff.
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
            follows: false,
        }
    }

    /// Puts an unschedulable pod aside until an event may make room, for at most `forgotten`. One
    /// that was added again during the attempt stays where it is (`AddUnschedulableIfNotPresent`,
    /// `pkg/scheduler/backend/queue/scheduling_queue.go`).
    pub(super) fn refuse(&mut self, key: Key, pod: &Pod, forgotten: Duration) {
        if self.pods.contains_key(&key) {
            return;
        }
        let now = Instant::now();
        let mut waiting = self.failed(&key, priority(pod), now);
        waiting.due = Some(now + forgotten);
        waiting.follows = follows_pods(pod);
        self.count("unschedulable", FAILED);
        self.put(key, waiting);
    }

    /// Puts a pod into backoff after an error, unless it was added again during the attempt.
    pub(super) fn back_off(&mut self, key: Key, priority: i32) {
        if self.pods.contains_key(&key) {
            return;
        }
        let mut waiting = self.failed(&key, priority, Instant::now());
        waiting.due = Some(waiting.earliest);
        self.count("backoff", FAILED);
        self.put(key, waiting);
    }

    /// Activates unschedulable pods after their backoff, because an event may have made room.
    pub(super) fn stir(&mut self) {
        let all = std::mem::take(&mut self.unschedulable);
        self.activate(all);
    }

    /// The same for the pods that follow others, because a pod was placed.
    pub(super) fn stir_followers(&mut self) {
        let all = std::mem::take(&mut self.followers);
        self.activate(all);
    }

    fn activate(&mut self, keys: BTreeSet<Key>) {
        for key in keys {
            if let Some(waiting) = self.forget(&key) {
                let due = Some(waiting.earliest);
                self.put(key, Waiting { due, ..waiting });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORGOTTEN: Duration = Duration::from_mins(5);

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    fn pod() -> Pod {
        serde_json::from_str("{}").unwrap()
    }

    fn taken(queue: &mut SchedulingQueue) -> Vec<Key> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_changed_during_its_attempt_is_tried_at_once() {
        let mut queue = SchedulingQueue::default();
        for name in ["bound", "refused"] {
            queue.add(key(name), 0, false);
        }
        assert_eq!(taken(&mut queue), [key("bound"), key("refused")]);
        for name in ["bound", "refused"] {
            queue.add(key(name), 0, true);
        }
        queue.back_off(key("bound"), 0);
        queue.refuse(key("refused"), &pod(), FORGOTTEN);
        assert_eq!(queue.next_due(), None);
        assert_eq!(taken(&mut queue), [key("bound"), key("refused")]);
        tokio::time::advance(FORGOTTEN).await;
        assert!(taken(&mut queue).is_empty());
        assert_eq!(queue.pending(), Pending::default());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_ends_the_wait_of_the_unschedulable_but_no_backoff() {
        let mut queue = SchedulingQueue::default();
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 0)] {
            queue.add(key(name), priority, false);
        }
        assert_eq!(taken(&mut queue), [key("b"), key("a"), key("c"), key("d")]);
        let counts = |queue: &SchedulingQueue| (queue.pending().unschedulable, queue.pending().backoff);
        for name in ["c", "a"] {
            queue.refuse(key(name), &pod(), FORGOTTEN);
        }
        queue.back_off(key("b"), 5);
        queue.refuse(key("d"), &pod(), FORGOTTEN);
        assert_eq!(counts(&queue), (3, 1));
        queue.remove(&key("d"));
        queue.stir_followers();
        assert_eq!(counts(&queue), (2, 1));
        queue.stir();
        queue.stir();
        assert_eq!(counts(&queue), (0, 3));
        assert!(taken(&mut queue).is_empty());
        assert_eq!(queue.next_due(), Some(Instant::now() + BACKOFF.0));
        tokio::time::advance(BACKOFF.0).await;
        assert_eq!(taken(&mut queue), [key("b"), key("a"), key("c")]);
        // The second backoff is twice as long.
        queue.back_off(key("a"), 0);
        assert_eq!(queue.next_due(), Some(Instant::now() + 2 * BACKOFF.0));
    }
}
