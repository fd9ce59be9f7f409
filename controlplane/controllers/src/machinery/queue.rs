//! Work queue of keys: each is in it at most once, so it is never longer than the number of
//! objects, and is processed by one at a time (`client-go/util/workqueue/queue.go`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::machinery::metrics::page::Buckets;

/// Longest delay of a key, whatever time an object specifies: a plan that comes too early asks for
/// another one. The wall clock, which schedules follow, may jump, and the timers' clock stops while
/// the machine sleeps.
const LATEST: Duration = Duration::from_mins(10);

struct State<T> {
    /// Ready keys with the times since which they are.
    ready: VecDeque<(T, Instant)>,
    /// Ready keys, and those among the taken ones that must be processed again.
    listed: BTreeSet<T>,
    later: BTreeMap<T, Instant>,
    /// Keys that are being processed, with their start times.
    taken: BTreeMap<T, Instant>,
    counts: Counts,
}

#[derive(Clone)]
struct Counts {
    adds: u64,
    retries: u64,
    waited: Buckets,
    worked: Buckets,
}

impl<T: Ord + Clone> State<T> {
    fn add(&mut self, key: T, now: Instant) -> bool {
        let is_new = self.listed.insert(key.clone());
        if is_new {
            self.counts.adds += 1;
            if !self.taken.contains_key(&key) {
                self.ready.push_back((key, now));
            }
        }
        is_new
    }
}

/// A queue of distinct keys, some of them with a delay.
pub(crate) struct Queue<T> {
    name: &'static str,
    state: Mutex<State<T>>,
    filled: Notify,
}

/// Metrics of a queue.
pub(crate) struct Measures {
    pub(crate) name: &'static str,
    pub(crate) depth: usize,
    pub(crate) adds: u64,
    pub(crate) retries: u64,
    pub(crate) waited: Buckets,
    pub(crate) worked: Buckets,
    /// Sum of the processing times so far, in seconds.
    pub(crate) unfinished: f64,
    /// Longest processing time so far, in seconds.
    pub(crate) longest: f64,
}

/// A source of queue metrics.
pub(crate) trait Measured: Send + Sync {
    fn measure(&self) -> Measures;
}

impl<T: Ord + Clone + Send> Measured for Queue<T> {
    fn measure(&self) -> Measures {
        let now = Instant::now();
        let state = self.lock();
        let taken = state.taken.values();
        let seconds: Vec<f64> = taken
            .map(|since| now.saturating_duration_since(*since).as_secs_f64())
            .collect();
        let counts = state.counts.clone();
        Measures {
            name: self.name,
            depth: state.ready.len(),
            adds: counts.adds,
            retries: counts.retries,
            waited: counts.waited,
            worked: counts.worked,
            unfinished: seconds.iter().sum(),
            longest: seconds.into_iter().fold(0.0, f64::max),
        }
    }
}

impl<T: Ord + Clone> Queue<T> {
    /// Creates a queue with its name in upstream's metrics.
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            listed: BTreeSet::new(),
            later: BTreeMap::new(),
            taken: BTreeMap::new(),
            counts: Counts {
                adds: 0,
                retries: 0,
                waited: Buckets::new(Buckets::QUEUE),
                worked: Buckets::new(Buckets::QUEUE),
            },
        };
        Arc::new(Self {
            name,
            state: Mutex::new(state),
            filled: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key without delay.
    pub(crate) fn push(&self, key: T) {
        if self.lock().add(key, Instant::now()) {
            self.filled.notify_one();
        }
    }

    /// Adds a key after `delay`; an earlier time of the same key wins.
    pub(crate) fn push_after(&self, key: T, delay: Duration) {
        let due = Instant::now() + delay.min(LATEST);
        {
            let mut state = self.lock();
            let at = state.later.entry(key).or_insert(due);
            *at = due.min(*at);
            state.counts.retries += 1;
        }
        self.filled.notify_one();
    }

    /// Returns the next key that is due. It is not returned again until the caller reports it as
    /// [done](Self::done).
    pub(crate) async fn next(&self) -> T {
        loop {
            let wake = {
                let mut state = self.lock();
                let now = Instant::now();
                let due: Vec<T> = state
                    .later
                    .iter()
                    .filter(|(_, at)| **at <= now)
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in due {
                    state.later.remove(&key);
                    state.add(key, now);
                }
                if let Some((key, since)) = state.ready.pop_front() {
                    state.listed.remove(&key);
                    state.counts.waited.took(now.saturating_duration_since(since));
                    state.taken.insert(key.clone(), now);
                    return key;
                }
                state.later.values().min().copied()
            };
            match wake {
                Some(at) => {
                    tokio::select! {
                        () = self.filled.notified() => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => self.filled.notified().await,
            }
        }
    }

    /// Marks a key as processed. If it was added in the meantime, it is ready.
    pub(crate) fn done(&self, key: &T) {
        let mut state = self.lock();
        let Some(since) = state.taken.remove(key) else { return };
        state.counts.worked.took(since.elapsed());
        if state.listed.contains(key) {
            state.ready.push_back((key.clone(), Instant::now()));
            self.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_processed_by_one_at_a_time() {
        let queue = Queue::new("deployment");
        queue.push("a");
        assert_eq!(queue.next().await, "a");
        queue.push("a");
        queue.push_after("a", Duration::from_secs(1));
        queue.push("b");
        assert_eq!(queue.next().await, "b");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(queue.next().now_or_never(), None);
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert_eq!(queue.next().now_or_never(), None);
    }
}
