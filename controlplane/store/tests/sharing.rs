//! Several stores on one ledger: each decides upon the newest state, and all show the same changes
//! in the same order.
#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{create, data, delete, options, pod, pods, update};
use controlplane_store::{
    Backend, BackendError, CommitError, EventKind, Followed, Guard, History, Loaded, Memory, Newest, Peers, Record,
    Store, Wake, WatchError,
};
use tokio::task::JoinSet;

/// The ledger that several backends append to, and their wakers.
#[derive(Default)]
struct Joint {
    memory: Memory,
    records: Vec<Record>,
    wakes: Vec<Wake>,
}

/// The backend of a process.
struct Joined {
    joint: Arc<Mutex<Joint>>,
    seen: usize,
    /// To be returned instead of the changes.
    anew: Arc<Mutex<bool>>,
}

struct Others(Arc<Mutex<Joint>>);

fn lock<T>(joint: &Mutex<T>) -> MutexGuard<'_, T> {
    joint.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers for Others {
    fn newest(&self) -> Newest<'_> {
        let newest = lock(&self.0).records.last().map_or(0, |last| last.revision);
        Box::pin(async move { Ok(newest) })
    }
}

impl Backend for Joined {
    fn load(&mut self) -> Result<Loaded, BackendError> {
        let mut joint = lock(&self.joint);
        self.seen = joint.records.len();
        joint.memory.load()
    }

    fn append(&mut self, records: &[Record]) -> Result<(), BackendError> {
        let wakes = {
            let mut joint = lock(&self.joint);
            if joint.records.len() > self.seen {
                return Err(BackendError::Overtaken);
            }
            joint.memory.append(records)?;
            joint.records.extend_from_slice(records);
            self.seen = joint.records.len();
            joint.wakes.clone()
        };
        for wake in wakes {
            wake();
        }
        Ok(())
    }

    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError> {
        lock(&self.joint).memory.compact(floor, limit)
    }

    fn history(&self) -> Result<Arc<dyn History>, BackendError> {
        lock(&self.joint).memory.history()
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        Some(Arc::new(Others(Arc::clone(&self.joint))))
    }

    fn listen(&mut self, wake: Wake) {
        lock(&self.joint).wakes.push(wake);
    }

    fn follow(&mut self) -> Result<Vec<Followed>, BackendError> {
        let joint = lock(&self.joint);
        let from = std::mem::replace(&mut self.seen, joint.records.len());
        if from == self.seen {
            return Ok(Vec::new());
        }
        if std::mem::take(&mut *lock(&self.anew)) {
            return Ok(vec![Followed::Anew(joint.memory.clone().load()?)]);
        }
        Ok(vec![Followed::Changes(
            joint.records.iter().skip(from).cloned().collect(),
        )])
    }

    fn close(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Two stores on one ledger, and the switch that makes the second one reload it.
fn two() -> (Store, Store, Arc<Mutex<bool>>) {
    let joint = Arc::default();
    let open = |anew: &Arc<Mutex<bool>>| {
        let backend = Joined {
            joint: Arc::clone(&joint),
            seen: 0,
            anew: Arc::clone(anew),
        };
        Store::with_backend(Box::new(backend), options()).unwrap()
    };
    let anew = Arc::default();
    (open(&Arc::default()), open(&anew), anew)
}

/// Increments a counter in an object through a store; returns how often the write was refused.
async fn count_up(store: &Store, name: &str) -> u32 {
    let key = pod(name);
    let mut refused = 0;
    loop {
        store.refresh(Duration::from_mins(1)).await.unwrap();
        let current = store.get(&key).unwrap();
        let next: u32 = data(&current).parse::<u32>().unwrap() + 1;
        match store.commit(update(&key, &next.to_string(), current.revision)).await {
            Ok(_) => return refused,
            Err(CommitError::Conflict { .. }) => refused += 1,
            Err(failure) => panic!("{failure}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_is_lost_and_all_watchers_see_the_same() {
    let (first, second, _) = two();
    for name in ["a", "b"] {
        first.commit(create(&pod(name), "0")).await.unwrap();
    }
    let mut watchers = JoinSet::new();
    for store in [&first, &second] {
        let mut watch = store.watch(&pods(), 0).unwrap();
        watchers.spawn(async move {
            let mut seen = Vec::new();
            let mut versions = BTreeMap::new();
            loop {
                let event = watch.next().await.unwrap();
                let previous = versions.insert(event.entry.key.clone(), event.revision);
                assert_eq!(previous, event.prev().map(|prev| prev.revision), "{event:?}");
                seen.push((event.revision, event.entry.bytes.clone()));
                if event.entry.key == pod("end") {
                    return seen;
                }
            }
        });
    }
    let mut writers = JoinSet::new();
    for writer in 0..16 {
        let store = if writer % 2 == 0 { first.clone() } else { second.clone() };
        writers.spawn(async move {
            for _ in 0..50 {
                count_up(&store, if writer % 4 < 2 { "a" } else { "b" }).await;
            }
        });
    }
    writers.join_all().await;
    for store in [&first, &second] {
        store.refresh(Duration::from_mins(1)).await.unwrap();
        assert_eq!(
            ["a", "b"].map(|name| data(&store.get(&pod(name)).unwrap())),
            ["400", "400"]
        );
    }
    second.commit(create(&pod("end"), "")).await.unwrap();
    let seen = watchers.join_all().await;
    let revisions: Vec<u64> = seen.iter().flatten().take(803).map(|(revision, _)| *revision).collect();
    assert_eq!(revisions, (1..=803).collect::<Vec<_>>(), "each once and in order");
    assert!(
        seen.iter().all(|other| Some(other) == seen.first()),
        "all see the same bytes"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_creates_what_several_want_to() {
    let (first, second, _) = two();
    for round in 0..50 {
        let key = pod(&format!("p{round}"));
        let both = tokio::join!(first.commit(create(&key, "1")), second.commit(create(&key, "2")));
        let made = [&both.0, &both.1].into_iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(made, 1, "{both:?}");
        second.refresh(Duration::from_mins(1)).await.unwrap();
        second.commit(delete(&key, None)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_rests_on_a_resource_is_refused_once_others_have_changed_it() {
    let (first, second, _) = two();
    let unchanged = || {
        let since = *second.last_change(&pods()).borrow();
        vec![Guard::Unchanged { prefix: pods(), since }]
    };
    let guards = unchanged();
    first.commit(create(&pod("a"), "1")).await.unwrap();
    let refused = second.commit_if(create(&pod("b"), "1"), Vec::new(), guards).await;
    assert!(matches!(refused, Err(CommitError::Changed { .. })), "{refused:?}");
    let made = second.commit_if(create(&pod("b"), "1"), Vec::new(), unchanged()).await;
    assert!(made.is_ok(), "{made:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_missed_changes_shows_the_newest_and_ends_watches() {
    let (first, second, anew) = two();
    first.commit(create(&pod("a"), "1")).await.unwrap();
    second.refresh(Duration::from_mins(1)).await.unwrap();
    let mut watch = second.watch(&pods(), 0).unwrap();
    assert!(matches!(
        watch.next().await.unwrap().kind,
        EventKind::Put { prev: None }
    ));
    *lock(&anew) = true;
    first.commit(create(&pod("b"), "1")).await.unwrap();
    second.refresh(Duration::from_mins(1)).await.unwrap();
    assert_eq!(second.present(&pods()).len(), 2);
    let ended = watch.next().await;
    assert!(matches!(ended, Err(WatchError::Expired { after: 1 })), "{ended:?}");
    let mut watch = second.watch(&pods(), second.revision()).unwrap();
    first.commit(update(&pod("b"), "2", 2)).await.unwrap();
    assert_eq!(watch.next().await.unwrap().prev().map(data).as_deref(), Some("1"));
}
