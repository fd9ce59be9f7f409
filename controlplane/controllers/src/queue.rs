//! Keys that wait for a plan: each at most once, so the queue is never longer than there are objects.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

struct State<T> {
    ready: VecDeque<T>,
    listed: BTreeSet<T>,
    later: BTreeMap<T, Instant>,
}

/// A queue of distinct keys, some of them due later.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Notify,
}

impl<T: Ord + Clone> Queue<T> {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            listed: BTreeSet::new(),
            later: BTreeMap::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            filled: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Due now.
    pub(crate) fn push(&self, key: T) {
        {
            let mut state = self.lock();
            if !state.listed.insert(key.clone()) {
                return;
            }
            state.ready.push_back(key);
        }
        self.filled.notify_one();
    }

    /// Due after `delay`, or earlier if it was to be.
    pub(crate) fn push_after(&self, key: T, delay: Duration) {
        let due = Instant::now() + delay;
        {
            let mut state = self.lock();
            let at = state.later.entry(key).or_insert(due);
            *at = due.min(*at);
        }
        self.filled.notify_one();
    }

    /// The next key that is due.
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
                    if state.listed.insert(key.clone()) {
                        state.ready.push_back(key);
                    }
                }
                if let Some(key) = state.ready.pop_front() {
                    state.listed.remove(&key);
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
}
