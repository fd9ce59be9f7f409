//! The archive of the past: what is in it, how large it is, and what becomes of damaged, foreign
//! and missing ones.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests fail by panicking"
)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use common::{
    clock, compact, count, create, data, delete, history, keeping, options, pod, pods, reopen, shown, tick, update,
    used,
};
use controlplane_store::{At, Class, Key, ListAt, ListError, Options, PastError, Prefix, Store};
use rusqlite::Connection;

/// A store with an object of three versions, of which all but the last are archived.
async fn archived(directory: &Path) -> (Store, std::path::PathBuf, Options) {
    let (database, options) = (directory.join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let key = pod("web");
    store.commit(create(&key, "one")).await.unwrap();
    store.commit(update(&key, "two", 1)).await.unwrap();
    store.commit(update(&key, "three", 2)).await.unwrap();
    let store = reopen(store, &database, &options).await;
    assert_eq!(count(&history(&database), "version"), 2);
    (store, database, options)
}

#[tokio::test]
async fn watches_and_lists_end_where_they_did_though_the_past_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _, _) = archived(directory.path()).await;
    assert_eq!(store.floor(), 3);
    let expired = store.list(&pods(), ListAt::Exactly(2), None, None).await;
    assert!(matches!(expired, Err(ListError::Expired { revision: 2 })));
    assert!(store.watch(&pods(), 1).is_err());
    let then = shown(&store, &pods(), At::Revision(1)).await.unwrap();
    assert_eq!(then["web"], (1, "one".to_owned()));
}

#[tokio::test]
async fn a_time_before_the_beginning_and_one_that_has_not_come_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    // Without an archive the past begins at the compaction floor.
    let forgetting = Options {
        kept: None,
        ..keeping(0)
    };
    let store = Store::open(&database, forgetting.clone()).unwrap();
    store.commit(create(&pod("web"), "one")).await.unwrap();
    store.commit(update(&pod("web"), "two", 1)).await.unwrap();
    let store = reopen(store, &database, &forgetting).await;
    store.close().await.unwrap();
    tick(1000);
    let store = Store::open(&database, keeping(64 << 20)).unwrap();
    let Err(PastError::Before { since }) = shown(&store, &pods(), At::Revision(1)).await else {
        panic!("a revision that was compacted")
    };
    assert_eq!(since.revision, 2);
    assert!(matches!(
        shown(&store, &pods(), At::Time(since.time - 1)).await,
        Err(PastError::Before { .. })
    ));
    let now = shown(&store, &pods(), At::Time(u64::MAX)).await.unwrap();
    assert_eq!(now["web"].1, "two");
    let future = shown(&store, &pods(), At::Revision(7)).await;
    assert!(matches!(future, Err(PastError::Future { revision: 7, newest: 2 })));
    let leases = Prefix::resource("coordination.k8s.io", "leases");
    assert!(matches!(
        store.list_at(&leases, None, At::Revision(2), true).await,
        Err(PastError::NotKept)
    ));
}

#[tokio::test]
async fn a_damaged_version_is_told_and_others_are_still_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (store, database, options) = archived(directory.path()).await;
    store.close().await.unwrap();
    let changed = history(&database)
        .execute(
            "UPDATE version SET data = zeroblob(length(data)) WHERE revision = 1",
            [],
        )
        .unwrap();
    assert_eq!(changed, 1);
    let store = Store::open(&database, options.clone()).unwrap();
    assert!(matches!(
        shown(&store, &pods(), At::Revision(1)).await,
        Err(PastError::Failed(_))
    ));
    assert_eq!(shown(&store, &pods(), At::Revision(2)).await.unwrap()["web"].1, "two");
    // A wrong size does not make it allocate memory.
    store.close().await.unwrap();
    let lie = "UPDATE version SET size = 9223372036854775807";
    history(&database).execute(lie, []).unwrap();
    let store = Store::open(&database, options).unwrap();
    let told = shown(&store, &pods(), At::Revision(2)).await;
    assert!(told.is_err() || told.unwrap()["web"].1 == "two");
}

#[tokio::test]
async fn a_damaged_archive_is_set_aside_and_the_cluster_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (store, database, options) = archived(directory.path()).await;
    store.close().await.unwrap();
    let archive = database.with_added_extension("history");
    std::fs::write(&archive, vec![b'x'; 8192]).unwrap();
    let store = Store::open(&database, options).unwrap();
    assert_eq!(data(&store.get(&pod("web")).unwrap()), "three");
    assert!(archive.with_added_extension("damaged").exists());
    assert!(matches!(
        shown(&store, &pods(), At::Revision(1)).await,
        Err(PastError::Before { .. })
    ));
    assert_eq!(shown(&store, &pods(), At::Revision(3)).await.unwrap()["web"].1, "three");
}

#[tokio::test]
async fn an_archive_with_a_gap_begins_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (store, database, options) = archived(directory.path()).await;
    store.close().await.unwrap();
    // A program without an archive compacts versions that the archive has not seen.
    let forgetting = Options {
        kept: None,
        ..options.clone()
    };
    let store = Store::open(&database, forgetting.clone()).unwrap();
    store.commit(update(&pod("web"), "four", 3)).await.unwrap();
    let store = reopen(store, &database, &forgetting).await;
    store.close().await.unwrap();
    let store = Store::open(&database, options).unwrap();
    assert!(matches!(
        shown(&store, &pods(), At::Revision(1)).await,
        Err(PastError::Before { .. })
    ));
    assert_eq!(shown(&store, &pods(), At::Revision(4)).await.unwrap()["web"].1, "four");
}

#[tokio::test]
async fn the_archive_of_another_database_is_not_shown() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, database, options) = archived(ours.path()).await;
    store.close().await.unwrap();
    let (store, other, _) = archived(theirs.path()).await;
    store.close().await.unwrap();
    std::fs::copy(
        other.with_added_extension("history"),
        database.with_added_extension("history"),
    )
    .unwrap();
    // A backup that replaces the database invalidates its past.
    controlplane_store::outdate(&other).unwrap();
    for file in [&database, &other] {
        let store = Store::open(file, options.clone()).unwrap();
        let told = shown(&store, &pods(), At::Revision(1)).await;
        assert!(
            matches!(told, Err(PastError::Before { .. })),
            "{}: {told:?}",
            file.display()
        );
        assert_eq!(
            shown(&store, &pods(), At::Time(u64::MAX)).await.unwrap()["web"].1,
            "three"
        );
        store.close().await.unwrap();
        let kept = Store::open(file, options.clone()).unwrap();
        assert!(kept.since().await.unwrap().revision >= 3);
        kept.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_ledger_from_before_times_were_noted_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let store = Store::open(&database, options()).unwrap();
    store.commit(create(&pod("web"), "one")).await.unwrap();
    store.close().await.unwrap();
    Connection::open(&database)
        .unwrap()
        .execute_batch("ALTER TABLE ledger DROP COLUMN time")
        .unwrap();
    let store = Store::open(&database, keeping(64 << 20)).unwrap();
    store.commit(update(&pod("web"), "two", 1)).await.unwrap();
    assert_eq!(shown(&store, &pods(), At::Revision(1)).await.unwrap()["web"].1, "one");
    assert_eq!(
        shown(&store, &pods(), At::Time(u64::MAX)).await.unwrap()["web"].1,
        "two"
    );
}

#[tokio::test]
async fn of_an_event_that_is_gone_the_last_version_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let (key, events) = (
        Key::new("", "events", "default", "e").unwrap(),
        Prefix::resource("", "events"),
    );
    store.commit(create(&key, "first")).await.unwrap();
    store.commit(update(&key, "again", 1)).await.unwrap();
    store.commit(create(&pod("other"), "x")).await.unwrap();
    store.commit(delete(&key, None)).await.unwrap();
    let store = reopen(store, &database, &options).await;
    let list = store.list_at(&events, None, At::Revision(3), true).await.unwrap();
    assert_eq!(list.entries.len(), 1);
    assert!(
        store
            .list_at(&events, None, At::Revision(4), false)
            .await
            .unwrap()
            .entries
            .is_empty()
    );
}

/// Maintains until the archive is said to work, or not.
async fn archives(store: &Store, wanted: bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while store.archives() != wanted {
        store.maintain().await;
        assert!(tokio::time::Instant::now() < deadline, "archives: {}", !wanted);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_archive_that_cannot_be_written_is_told_of_until_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let (store, database, options) = archived(directory.path()).await;
    assert!(store.archives());
    store.commit(update(&pod("web"), "four", 3)).await.unwrap();
    store.close().await.unwrap();
    let archive = database.with_added_extension("history");
    std::fs::remove_file(&archive).unwrap();
    std::fs::create_dir(&archive).unwrap();
    let store = Store::open(&database, options).unwrap();
    store.maintain().await;
    assert!(!store.archives());
    std::fs::remove_dir(&archive).unwrap();
    archives(&store, true).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn without_its_thread_the_archive_is_told_of_and_the_past_is_that_of_the_ledger() {
    fn class(resource: &str) -> Class {
        assert_ne!(
            std::thread::current().name(),
            Some("store-archive"),
            "meant by the test: {resource}"
        );
        common::class(resource)
    }
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let options = Options { class, ..options };
    let store = Store::open(&database, options.clone()).unwrap();
    store.commit(create(&pod("web"), "one")).await.unwrap();
    store.commit(update(&pod("web"), "two", 1)).await.unwrap();
    let store = reopen(store, &database, &options).await;
    archives(&store, false).await;
    assert!(matches!(
        shown(&store, &pods(), At::Revision(1)).await,
        Err(PastError::Before { .. })
    ));
    assert_eq!(shown(&store, &pods(), At::Revision(2)).await.unwrap()["web"].1, "two");
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_answer_that_would_hold_too_much_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let large = "x".repeat(3 << 20);
    for number in 0..11_u64 {
        let key = pod(&format!("p{number}"));
        let made = store.commit(create(&key, &large)).await.unwrap();
        store.commit(update(&key, "small", made.revision)).await.unwrap();
    }
    // Each object was large just before it became small.
    let one = store
        .list_at(&pods(), Some(&pod("p10")), At::Revision(21), false)
        .await
        .unwrap();
    assert!(one.entries[0].bytes.len() > 3 << 20);
    let store = reopen(store, &database, &options).await;
    assert_eq!(shown(&store, &pods(), At::Revision(21)).await.unwrap().len(), 11);
    let key = pod("p0");
    for round in 0..11_u64 {
        let revision = store.get(&key).unwrap().revision;
        store
            .commit(update(&key, &format!("{round}{large}"), revision))
            .await
            .unwrap();
    }
    let all = store.versions(&key, u64::MAX, 100).await;
    assert!(matches!(all, Err(PastError::TooLarge)));
    assert_eq!(store.versions(&pod("p1"), u64::MAX, 100).await.unwrap().len(), 2);
}

/// Writes of a busy small cluster: objects of 3 KiB, of which some counters and times change.
fn busy(key: &Key, version: u64) -> String {
    let mixed = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let of_object = key
        .name()
        .bytes()
        .fold(7, |sum: u64, byte| mixed(sum ^ u64::from(byte)));
    let fixed: Vec<String> = (0..130).map(|n| format!("{:x}", mixed(of_object + n))).collect();
    format!(
        "v{version} {} {:x} {:x}",
        fixed.join(" "),
        mixed(version),
        mixed(version + 77)
    )
}

#[tokio::test]
async fn the_past_stays_within_its_size_and_its_age() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let options = keeping(1 << 20);
    let mut store = Store::open(&database, options.clone()).unwrap();
    let mut revisions: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..6_u64 {
        for number in 0..30_u64 {
            // Committed at once, they share a transaction.
            let writes = (0..50_u64).map(|slot| {
                let (store, known) = (store.clone(), revisions.get(&slot).copied());
                async move {
                    let key = pod(&format!("p{slot}"));
                    let text = busy(&key, round * 1000 + number);
                    let write = known.map_or_else(|| create(&key, &text), |known| update(&key, &text, known));
                    (slot, store.commit(write).await.unwrap().revision)
                }
            });
            revisions.extend(futures::future::join_all(writes).await);
        }
        store = reopen(store, &database, &options).await;
    }
    let rows = count(&history(&database), "version");
    let used = used(&history(&database));
    println!("{rows} versions in {used} bytes: {} each", used / rows.max(1));
    assert!(used <= (1 << 20) + (256 << 10), "{used} bytes");
    assert!(used / rows < 400, "{} bytes each", used / rows);
    let since = store.since().await.unwrap();
    assert!(since.revision > 1, "something was removed");
    assert_eq!(
        shown(&store, &pods(), At::Revision(since.revision))
            .await
            .unwrap()
            .len(),
        50
    );
    assert!(matches!(
        shown(&store, &pods(), At::Revision(since.revision - 1)).await,
        Err(PastError::Before { .. })
    ));
    // After an hour and a second no superseded version is left, and no unused base or name.
    tick(3_601_000);
    store.commit(delete(&pod("p0"), None)).await.unwrap();
    let store = reopen(store, &database, &options).await;
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    while count(&history(&database), "version") > 1 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} are left",
            count(&history(&database), "version")
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left = history(&database);
    assert_eq!((count(&left, "base"), count(&left, "name")), (1, 1));
    store.close().await.unwrap();
}

#[tokio::test]
async fn objects_that_are_alike_take_little_room() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let text = busy(&pod("template"), 1);
    for number in 0..100 {
        let key = pod(&format!("web-{number}"));
        store.commit(create(&key, &text)).await.unwrap();
        store.commit(delete(&key, None)).await.unwrap();
    }
    let store = reopen(store, &database, &options).await;
    let history = history(&database);
    assert_eq!(count(&history, "version"), 100);
    assert!(count(&history, "base") < 5, "{} bases", count(&history, "base"));
    assert_eq!(
        shown(&store, &pods(), At::Revision(151)).await.unwrap()["web-75"].1,
        text
    );
}

/// Prints the duration of reads of a long past, and its size.
#[tokio::test]
#[ignore = "a measurement"]
async fn how_long_reads_of_the_past_take() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(256 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let mut revisions: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..250_u64 {
        let writes = (0..200_u64).map(|slot| {
            let (store, known) = (store.clone(), revisions.get(&slot).copied());
            async move {
                let key = pod(&format!("p{slot}"));
                let text = busy(&key, round * 1000 + slot);
                let write = known.map_or_else(|| create(&key, &text), |known| update(&key, &text, known));
                (slot, store.commit(write).await.unwrap().revision)
            }
        });
        revisions.extend(futures::future::join_all(writes).await);
        tick(1000);
    }
    let begun = tokio::time::Instant::now();
    compact(&store, &database).await;
    let history = history(&database);
    let (rows, bytes) = (count(&history, "version"), used(&history));
    println!(
        "{rows} versions in {bytes} bytes, {} each, archived in {:?}",
        bytes / rows,
        begun.elapsed()
    );
    for (what, only) in [("a list of 200", None), ("one object", Some(pod("p77")))] {
        let mut took = Vec::new();
        for number in 0..100_u64 {
            let at = At::Time(clock() - 250_000 + number * 2400);
            let begun = tokio::time::Instant::now();
            let list = store.list_at(&pods(), only.as_ref(), at, false).await.unwrap();
            took.push(begun.elapsed());
            assert!(!list.entries.is_empty());
        }
        took.sort();
        println!("{what}: p50 {:?}, p99 {:?}", took[50], took[98]);
    }
}
