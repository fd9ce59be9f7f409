//! The same operations on every kind of store.
#![allow(missing_docs, reason = "tests")]

mod common;

use std::time::Duration;

use common::{create, data, delete, options, pod, pods, stores, update};
use controlplane_store::{CommitError, Entry, Key, ListAt, ListError, Options, Prefix, Seen, Write};

#[tokio::test]
async fn preconditions() {
    for (kind, store, _directory) in stores(&options()) {
        let key = pod("a");
        let first = store.commit(create(&key, "1")).await.unwrap();
        assert_eq!((first.revision, data(&first)), (1, "1".into()), "{kind}");
        assert!(matches!(
            store.commit(create(&key, "2")).await,
            Err(CommitError::Exists)
        ));
        assert!(matches!(
            store.commit(update(&key, "2", 7)).await,
            Err(CommitError::Conflict { actual: 1 })
        ));
        assert!(matches!(
            store.commit(delete(&key, Some(7))).await,
            Err(CommitError::Conflict { actual: 1 })
        ));
        assert!(matches!(
            store.commit(update(&pod("b"), "2", 1)).await,
            Err(CommitError::NotFound)
        ));
        assert!(matches!(
            store.commit(delete(&pod("b"), None)).await,
            Err(CommitError::NotFound)
        ));
        assert_eq!(store.revision(), 1, "{kind}: what is refused takes no revision");

        let second = store.commit(update(&key, "2", 1)).await.unwrap();
        assert_eq!((second.revision, data(&second)), (2, "2".into()));
        let same = store.commit(update(&key, "2", 2)).await.unwrap();
        assert_eq!(
            (same.revision, store.revision()),
            (2, 2),
            "{kind}: what changes nothing is not written"
        );

        let gone = store.commit(delete(&key, Some(2))).await.unwrap();
        assert_eq!((gone.revision, data(&gone)), (3, "last".into()));
        assert!(store.get(&key).is_none());
        assert_eq!(store.commit(create(&key, "3")).await.unwrap().revision, 4);
        store.close().await.unwrap();
        assert!(matches!(
            store.commit(create(&pod("c"), "1")).await,
            Err(CommitError::Closed)
        ));
        assert_eq!(
            store.get(&key).as_ref().map(data).as_deref(),
            Some("3"),
            "{kind}: the last state stays"
        );
        let list = store.list(&pods(), ListAt::Latest, None, None).await.unwrap();
        assert_eq!(
            list.entries.len(),
            1,
            "{kind}: nobody takes the end for an empty cluster"
        );
    }
}

/// Creates a pod in a namespace whose revision was read before.
fn create_within(key: &Key, seen: &Entry) -> Write {
    let mut write = create(key, "1");
    if let Write::Create { within, .. } = &mut write {
        *within = Some(Seen::of(seen));
    }
    write
}

#[tokio::test]
async fn nothing_is_created_in_what_has_changed_since_it_was_seen() {
    let namespace = Key::new("", "namespaces", "", "default").unwrap();
    for (kind, store, _directory) in stores(&options()) {
        let seen = store.commit(create(&namespace, "active")).await.unwrap();
        store.commit(create_within(&pod("a"), &seen)).await.unwrap();
        let terminating = store
            .commit(update(&namespace, "terminating", seen.revision))
            .await
            .unwrap();
        let refused = store.commit(create_within(&pod("b"), &seen)).await;
        assert!(
            matches!(&refused, Err(CommitError::Moved { key }) if *key == namespace),
            "{kind}: {refused:?}"
        );
        store.commit(delete(&namespace, None)).await.unwrap();
        let refused = store.commit(create_within(&pod("b"), &terminating)).await;
        assert!(matches!(refused, Err(CommitError::Moved { .. })), "{kind}: {refused:?}");
        assert!(store.get(&pod("b")).is_none(), "{kind}");
    }
}

#[tokio::test]
async fn writes_that_go_together_are_done_all_or_none() {
    for (kind, store, _directory) in stores(&options()) {
        let quota = store.commit(create(&pod("quota"), "0")).await.unwrap();
        let done = store
            .commit_with(create(&pod("a"), "1"), vec![update(&pod("quota"), "1", quota.revision)])
            .await
            .unwrap();
        assert_eq!((done.revision, store.revision()), (2, 3), "{kind}");
        let late = store
            .commit_with(create(&pod("b"), "1"), vec![update(&pod("quota"), "2", quota.revision)])
            .await;
        assert!(
            matches!(&late, Err(CommitError::Accompanying { index: 0, source })
                if matches!(**source, CommitError::Conflict { actual: 3 })),
            "{kind}: {late:?}"
        );
        assert!(store.get(&pod("b")).is_none(), "{kind}: none of them is done");
        assert_eq!(store.revision(), 3, "{kind}: what is refused takes no revision");
        let after = store.commit(create(&pod("b"), "1")).await.unwrap();
        assert_eq!(after.revision, 4, "{kind}");
    }
}

#[tokio::test]
async fn a_revision_to_come_is_waited_for() {
    for (kind, store, _directory) in stores(&options()) {
        assert_eq!(
            store.reach(1, Duration::from_millis(10)).await,
            0,
            "{kind}: the time is up"
        );
        let waiting = store.reach(1, Duration::from_hours(1));
        let (reached, _) = tokio::join!(waiting, store.commit(create(&pod("a"), "1")));
        assert_eq!(reached, 1, "{kind}");
    }
}

#[tokio::test]
async fn pages_of_a_list_are_one_snapshot() {
    for (kind, store, _directory) in stores(&options()) {
        let names = |list: &controlplane_store::List| -> Vec<String> {
            list.entries.iter().map(|entry| entry.key.name().to_owned()).collect()
        };
        for name in ["a", "b", "c", "d", "e"] {
            store.commit(create(&pod(name), "1")).await.unwrap();
        }
        store
            .commit(create(&Key::new("", "podtemplates", "default", "x").unwrap(), "1"))
            .await
            .unwrap();
        let first = store.list(&pods(), ListAt::Latest, None, Some(2)).await.unwrap();
        assert_eq!(
            (names(&first), first.remaining, first.revision),
            (vec!["a".into(), "b".into()], 3, 6),
            "{kind}"
        );

        store.commit(delete(&pod("c"), None)).await.unwrap();
        store.commit(update(&pod("d"), "2", 4)).await.unwrap();
        store.commit(create(&pod("bb"), "1")).await.unwrap();
        let after = first.entries.last().map(|entry| entry.key.clone());
        let second = store
            .list(&pods(), ListAt::Exactly(6), after.as_ref(), Some(2))
            .await
            .unwrap();
        assert_eq!(
            (names(&second), second.remaining),
            (vec!["c".into(), "d".into()], 1),
            "{kind}"
        );
        assert_eq!(data(second.entries.last().unwrap()), "1");
        let now = store
            .list(&Prefix::namespace("", "pods", "default"), ListAt::Latest, None, None)
            .await
            .unwrap();
        assert_eq!(names(&now), ["a", "b", "bb", "d", "e"]);
        let future = store.list(&pods(), ListAt::Exactly(99), None, None).await;
        assert!(
            matches!(future, Err(ListError::Future { newest: 9, .. })),
            "{kind}: {future:?}"
        );
        assert!(
            store
                .list(&Prefix::namespace("", "pods", "def"), ListAt::Latest, None, None)
                .await
                .unwrap()
                .entries
                .is_empty()
        );
    }
}

#[tokio::test]
async fn old_lists_are_read_from_the_ledger() {
    let options = Options {
        ring_events: 2,
        ..options()
    };
    for (kind, store, _directory) in stores(&options) {
        let mut revision = store.commit(create(&pod("a"), "0")).await.unwrap().revision;
        for data in 1..1200 {
            revision = store
                .commit(update(&pod("a"), &data.to_string(), revision))
                .await
                .unwrap()
                .revision;
        }
        store.commit(delete(&pod("a"), None)).await.unwrap();
        for at in [1, 2, 600, 1199, 1200] {
            let list = store.list(&pods(), ListAt::Exactly(at), None, None).await.unwrap();
            assert_eq!(
                list.entries.iter().map(data).collect::<Vec<_>>(),
                [(at - 1).to_string()],
                "{kind} at {at}"
            );
        }
        assert!(
            store
                .list(&pods(), ListAt::Exactly(1201), None, None)
                .await
                .unwrap()
                .entries
                .is_empty()
        );
    }
}
