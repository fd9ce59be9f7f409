//! Watchers see every change once and in order, or get an error.
#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{create, data, delete, options, pod, pods, stores, update, value};
use controlplane_store::{
    Attributes, EventKind, Key, ListAt, ListError, Options, Prefix, Store, Watch, WatchError, Write,
};
use tokio::task::JoinSet;

fn lease() -> Key {
    Key::new("coordination.k8s.io", "leases", "kube-node-lease", "n1").unwrap()
}

fn leases() -> Prefix {
    Prefix::resource("coordination.k8s.io", "leases")
}

fn resident(name: &str) -> Key {
    Key::new("", "events", "default", name).unwrap()
}

/// The next change as `+name=data`, `~name=data` or `-name`.
async fn next(watch: &mut Watch) -> String {
    let event = watch.next().await.unwrap();
    let name = event.entry.key.name();
    match &event.kind {
        EventKind::Put { prev: None } => format!("+{name}={}", data(&event.entry)),
        EventKind::Put { prev: Some(prev) } => format!("~{name}={}>{}", data(prev), data(&event.entry)),
        EventKind::Delete { prev } => format!("-{name}={}", prev.as_ref().map(data).unwrap()),
    }
}

/// Concurrent writers that change three pods each.
async fn storm(store: &Store, rounds: u32) {
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            for round in 0..rounds {
                let key = pod(&format!("p{writer}-{}", round % 3));
                match store.get(&key) {
                    None => store.commit(create(&key, &round.to_string())).await.unwrap(),
                    Some(entry) if round % 7 == 0 => store.commit(delete(&key, Some(entry.revision))).await.unwrap(),
                    Some(entry) => store
                        .commit(update(&key, &round.to_string(), entry.revision))
                        .await
                        .unwrap(),
                };
                if round % 5 == 0 {
                    let other = Key::new("", "podtemplates", "default", &format!("t{writer}-{round}")).unwrap();
                    store.commit(create(&other, "x")).await.unwrap();
                }
            }
        });
    }
    writers.join_all().await;
}

#[tokio::test]
async fn a_watch_up_to_a_revision_ends_there_from_behind_the_ring() {
    let options = Options {
        ring_events: 4,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        let mut watch = store.watch(&pods(), 0).unwrap();
        for number in 0..100 {
            store.commit(create(&pod(&format!("p{number}")), "x")).await.unwrap();
        }
        let other = Key::new("", "podtemplates", "default", "t").unwrap();
        store.commit(create(&other, "x")).await.unwrap();
        let until_end = async {
            let mut told = 0;
            while watch.next_until(store.revision()).await.unwrap().is_some() {
                told += 1;
            }
            told
        };
        let told = tokio::time::timeout(Duration::from_secs(30), until_end).await;
        assert_eq!(told, Ok(100), "{kind}");
    }
}

/// Writes a pod that is on a node.
async fn place(store: &Store, name: &str, node: &str) -> u64 {
    let (key, attributes) = (
        pod(name),
        Attributes {
            fields: Arc::from([("spec.nodeName", node.into())]),
            ..Attributes::default()
        },
    );
    let value = value(&key, node);
    let write = match store.get(&key) {
        None => Write::Create {
            key,
            value,
            attributes,
            within: None,
        },
        Some(before) => Write::Update {
            key,
            value,
            attributes,
            expected: before.revision,
        },
    };
    store.commit(write).await.unwrap().revision
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_watch_of_one_nodes_pods_is_woken_by_those_alone() {
    // The ring holds fewer changes than the other nodes make meanwhile.
    let options = Options {
        ring_events: 8,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        let field = Some(("spec.nodeName", "n1"));
        let mut watch = store.watch_field(&pods(), field, store.revision()).unwrap();
        let mut named = store.watch_field(&pods(), Some(("metadata.name", "a")), 0).unwrap();
        place(&store, "a", "n1").await;
        assert_eq!(next(&mut watch).await, "+a=n1", "{kind}");
        assert_eq!(next(&mut named).await, "+a=n1", "{kind}");
        // Watchers are woken after the writer is answered, but before maintenance.
        store.maintain().await;
        let woken = Arc::new(Wakes::default());
        {
            let waker = Waker::from(Arc::clone(&woken));
            let mut waiting = pin!(watch.next());
            assert!(
                waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
                "{kind}"
            );
            for number in 0..50 {
                place(&store, &format!("other{number}"), "n2").await;
            }
            store.maintain().await;
            assert_eq!(woken.0.load(Ordering::SeqCst), 0, "{kind}: another node's pods woke it");
            place(&store, "a", "n2").await;
            store.maintain().await;
        }
        assert!(
            watch.progress() < store.revision(),
            "{kind}: a change is not returned yet"
        );
        assert_eq!(next(&mut watch).await, "~a=n1>n2", "{kind}");
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "{kind}: its pod has left");
        assert_eq!(next(&mut named).await, "~a=n1>n2", "{kind}");
        place(&store, "other0", "n3").await;
        assert_eq!(watch.progress(), store.revision(), "{kind}: bookmarks go on");
        // More changes than are kept for it, and others between them.
        for number in 0..40 {
            place(&store, &format!("b{number}"), "n1").await;
            place(&store, &format!("other{number}"), "n4").await;
        }
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != "+b39=n1") {
            let event = next(&mut watch).await;
            if event.ends_with("n1") {
                seen.push(event);
            }
        }
        let expected: Vec<String> = (0..40).map(|number| format!("+b{number}=n1")).collect();
        assert_eq!(seen, expected, "{kind}");
        // One from before has everything since then, whoever subscribed when.
        let mut late = store.watch_field(&pods(), field, 0).unwrap();
        assert_eq!(next(&mut late).await, "+a=n1", "{kind}");
    }
}

/// Versions of other nodes' pods are compacted before more changes come than are kept for it.
#[tokio::test(start_paused = true)]
async fn a_quiet_watch_of_one_nodes_pods_outlives_compaction() {
    let options = Options {
        ring_events: 8,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        let mut watch = store.watch_field(&pods(), Some(("spec.nodeName", "n1")), 0).unwrap();
        for number in 0..20 {
            place(&store, &format!("other{number}"), "n2").await;
        }
        assert_eq!(watch.progress(), 20, "{kind}");
        for wait in [10, 300] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            store.maintain().await;
        }
        assert_eq!(store.floor(), 20, "{kind}");
        for number in 0..40 {
            place(&store, &format!("b{number}"), "n1").await;
        }
        for number in 0..40 {
            assert_eq!(next(&mut watch).await, format!("+b{number}=n1"), "{kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_once_and_in_order() {
    // With a ring this small watchers read from the ledger repeatedly.
    let options = Options {
        ring_events: 16,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        let mut watchers = JoinSet::new();
        let last = pod("last");
        for _ in 0..4 {
            let (mut watch, last) = (store.watch(&pods(), 0).unwrap(), last.clone());
            watchers.spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let event = watch.next().await.unwrap();
                    let deleted = matches!(event.kind, EventKind::Delete { .. });
                    let previous = event.prev().map(|prev| prev.revision);
                    seen.push((event.revision, event.entry.key.clone(), previous, deleted));
                    if event.entry.key == last {
                        return seen;
                    }
                }
            });
        }
        storm(&store, 100).await;
        store.commit(create(&last, "end")).await.unwrap();
        let seen = watchers.join_all().await;
        let first = seen.first().unwrap();
        assert_eq!(
            first.len(),
            8 * 100 + 1,
            "{kind}: nothing is missing and nothing comes twice"
        );
        assert!(first.is_sorted_by_key(|(revision, _, _, _)| *revision), "{kind}");
        assert!(
            seen.iter().all(|other| other == first),
            "{kind}: all watchers see the same"
        );
        let mut versions = std::collections::BTreeMap::new();
        for (revision, key, previous, deleted) in first {
            assert_eq!(
                versions.get(key),
                previous.as_ref(),
                "{kind}: {key} at {revision} follows its last version"
            );
            if *deleted {
                versions.remove(key)
            } else {
                versions.insert(key.clone(), *revision)
            };
        }
    }
}

#[tokio::test]
async fn begins_anywhere_in_the_past() {
    let options = Options {
        ring_events: 2,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        store.commit(create(&pod("a"), "1")).await.unwrap();
        store.commit(update(&pod("a"), "2", 1)).await.unwrap();
        store.commit(create(&pod("b"), "1")).await.unwrap();
        store.commit(delete(&pod("a"), None)).await.unwrap();
        store
            .commit(create(&Key::new("", "pods", "other", "c").unwrap(), "1"))
            .await
            .unwrap();
        let all = ["+a=1", "~a=1>2", "+b=1", "-a=2", "+c=1"];
        for from in 0..5 {
            let mut watch = store.watch(&pods(), from).unwrap();
            for expected in &all[usize::try_from(from).unwrap()..] {
                assert_eq!(next(&mut watch).await, *expected, "{kind} from {from}");
            }
            assert_eq!(watch.progress(), 5);
        }
        let mut namespace = store.watch(&Prefix::namespace("", "pods", "other"), 0).unwrap();
        assert_eq!(next(&mut namespace).await, "+c=1", "{kind}");
    }
}

#[tokio::test]
async fn progress_promises_only_what_was_seen() {
    for (kind, store, _directory) in stores(&options()) {
        let mut watch = store.watch(&pods(), 0).unwrap();
        store.commit(create(&pod("a"), "1")).await.unwrap();
        store.commit(create(&pod("b"), "1")).await.unwrap();
        assert_eq!(watch.progress(), 0, "{kind}");
        next(&mut watch).await;
        assert_eq!(watch.progress(), 1, "{kind}");
        next(&mut watch).await;
        store.commit(create(&lease(), "1")).await.unwrap();
        assert_eq!(
            watch.progress(),
            3,
            "{kind}: what concerns other resources has been seen too"
        );
        let mut waiting = std::pin::pin!(watch.next());
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        store.close().await.unwrap();
        assert!(matches!(waiting.await, Err(WatchError::Closed)), "{kind}");
        assert!(matches!(store.watch(&pods(), 3), Err(WatchError::Closed)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_compacted_is_expired() {
    let options = Options {
        ring_events: 2,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        store.commit(create(&pod("a"), "1")).await.unwrap();
        for revision in 1..10 {
            store
                .commit(update(&pod("a"), &format!("{}", revision + 1), revision))
                .await
                .unwrap();
        }
        let mut stale = store.watch(&pods(), 3).unwrap();
        store.maintain().await;
        assert_eq!(store.floor(), 0, "{kind}: nothing is old yet");
        tokio::time::advance(Duration::from_mins(1)).await;
        store.maintain().await;
        store.commit(update(&pod("a"), "11", 10)).await.unwrap();
        tokio::time::advance(Duration::from_secs(270)).await;
        store.maintain().await;
        tokio::time::advance(Duration::from_secs(30)).await;
        store.maintain().await;
        assert_eq!(store.floor(), 10, "{kind}: five minutes have passed since revision 10");

        assert!(
            matches!(stale.next().await, Err(WatchError::Expired { after: 3 })),
            "{kind}"
        );
        assert!(
            matches!(store.watch(&pods(), 8), Err(WatchError::Expired { after: 8 })),
            "{kind}"
        );
        let old = store.list(&pods(), ListAt::Exactly(8), None, None).await;
        assert!(
            matches!(old, Err(ListError::Expired { revision: 8 })),
            "{kind}: {old:?}"
        );
        let kept = store.list(&pods(), ListAt::Exactly(10), None, None).await.unwrap();
        assert_eq!(kept.entries.iter().map(data).collect::<Vec<_>>(), ["10"], "{kind}");
        assert_eq!(next(&mut store.watch(&pods(), 10).unwrap()).await, "~a=10>11", "{kind}");
        store.maintain().await;
        assert_eq!(store.get(&pod("a")).as_ref().map(data).as_deref(), Some("11"), "{kind}");
    }
}

/// A resource without changes loses no history: its watcher need not list again because of writes
/// elsewhere. A list of an old revision expires, as upstream's does.
#[tokio::test(start_paused = true)]
async fn a_watcher_of_a_quiet_resource_stays_complete() {
    let options = Options {
        ring_events: 2,
        ..options()
    };
    let quiet = |name: &str| Key::new("", "secrets", "default", name).unwrap();
    let secrets = Prefix::resource("", "secrets");
    for (kind, store, _directory) in stores(&options) {
        store.commit(create(&quiet("a"), "1")).await.unwrap();
        let mut idle = store.watch(&secrets, 1).unwrap();
        store.commit(create(&pod("a"), "2")).await.unwrap();
        for revision in 2..10 {
            let next = format!("{}", revision + 1);
            store.commit(update(&pod("a"), &next, revision)).await.unwrap();
        }
        store.maintain().await;
        tokio::time::advance(Duration::from_secs(10)).await;
        store.maintain().await;
        store.commit(create(&quiet("b"), "11")).await.unwrap();
        for revision in [10, 12, 13] {
            let next = format!("{}", revision + 2);
            store.commit(update(&pod("a"), &next, revision)).await.unwrap();
        }
        tokio::time::advance(Duration::from_mins(5)).await;
        store.maintain().await;
        assert_eq!(store.floor(), 10, "{kind}");
        assert_eq!(next(&mut idle).await, "+b=11", "{kind}: out of the ring, in the ledger");
        assert_eq!(next(&mut store.watch(&secrets, 3).unwrap()).await, "+b=11", "{kind}");
        assert!(
            matches!(store.watch(&pods(), 3), Err(WatchError::Expired { after: 3 })),
            "{kind}: of pods something is missing"
        );
        let at = async |revision| store.list(&secrets, ListAt::Exactly(revision), None, None).await;
        assert!(matches!(at(9).await, Err(ListError::Expired { revision: 9 })), "{kind}");
        assert_eq!(at(10).await.unwrap().entries.len(), 1, "{kind}");
    }
}

/// Many writes of one resource exceed the size limit, but the pages of another one do not expire.
#[tokio::test(start_paused = true)]
async fn pages_of_a_quiet_resource_grow_old_only_with_time() {
    let options = Options {
        ring_events: 2,
        retention_bytes: 4096,
        ..options()
    };
    let quiet = |name: &str| Key::new("", "secrets", "default", name).unwrap();
    let secrets = Prefix::resource("", "secrets");
    for (kind, store, _directory) in stores(&options) {
        store.commit(create(&quiet("a"), "1")).await.unwrap();
        store.commit(create(&pod("a"), "2")).await.unwrap();
        let at = async |prefix: &Prefix, revision| store.list(prefix, ListAt::Exactly(revision), None, None).await;
        for round in 0..4 {
            for revision in 2 + round * 100..102 + round * 100 {
                let next = format!("{}", revision + 1);
                store.commit(update(&pod("a"), &next, revision)).await.unwrap();
            }
            store.maintain().await;
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        assert!(store.floor() > 100, "{kind}: {} is forgotten by size", store.floor());
        assert!(matches!(at(&pods(), 2).await, Err(ListError::Expired { .. })), "{kind}");
        assert_eq!(at(&secrets, 2).await.unwrap().entries.len(), 1, "{kind}");
        assert_eq!(at(&secrets, 90).await.unwrap().entries.len(), 1, "{kind}");
        tokio::time::advance(Duration::from_mins(5)).await;
        store.maintain().await;
        assert!(
            matches!(at(&secrets, 90).await, Err(ListError::Expired { revision: 90 })),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn leases_have_no_past_beyond_the_ring() {
    let options = Options {
        ring_events: 2,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        store.commit(create(&lease(), "1")).await.unwrap();
        let mut slow = store.watch(&leases(), 1).unwrap();
        for revision in 1..5 {
            store
                .commit(update(&lease(), &format!("{}", revision + 1), revision))
                .await
                .unwrap();
        }
        assert_eq!(next(&mut store.watch(&leases(), 3).unwrap()).await, "~n1=3>4", "{kind}");
        assert!(
            matches!(store.watch(&leases(), 2), Err(WatchError::Expired { .. })),
            "{kind}"
        );
        assert!(matches!(slow.next().await, Err(WatchError::Expired { .. })), "{kind}");
        assert!(matches!(
            store.list(&leases(), ListAt::Exactly(1), None, None).await,
            Err(ListError::Expired { .. })
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_outlived_its_time_is_deleted() {
    for (kind, store, _directory) in stores(&options()) {
        store.commit(create(&resident("old"), "1")).await.unwrap();
        store.commit(create(&resident("renewed"), "1")).await.unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
        store.maintain().await;
        let mut watch = store.watch(&Prefix::resource("", "events"), 2).unwrap();
        tokio::time::advance(Duration::from_mins(30)).await;
        store.commit(update(&resident("renewed"), "2", 2)).await.unwrap();
        store.maintain().await;
        tokio::time::advance(Duration::from_mins(31)).await;
        store.maintain().await;
        assert_eq!(next(&mut watch).await, "~renewed=1>2", "{kind}");
        assert_eq!(next(&mut watch).await, "-old=1", "{kind}");
        assert!(
            store.get(&resident("old")).is_none() && store.get(&resident("renewed")).is_some(),
            "{kind}"
        );
    }
}
