//! A database that has lost acknowledged writes is refused unless the loss is accepted; a full disk
//! takes deletions.
#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use common::{Disk, create, delete, failing, options, pod, update};
use controlplane_store::{CommitError, OpenError, Options, Sqlite, Store, Value, Write, copy};

const FILES: [&str; 3] = ["", "-wal", ".mark"];

fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A database in use, and copies of it in the state after a crash.
struct Crashed {
    directory: tempfile::TempDir,
    store: Store,
}

impl Crashed {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("test.db"), options()).unwrap();
        for number in 0..20 {
            let key = pod(&format!("p{number}"));
            store.commit(create(&key, &"z".repeat(2000))).await.unwrap();
        }
        Self { directory, store }
    }

    fn copy(&self) -> PathBuf {
        let copy = self.directory.path().join("copy.db");
        for file in FILES.into_iter().chain(["-shm", ".reserve"]) {
            std::fs::remove_file(beside(&copy, file)).ok();
        }
        for file in FILES {
            std::fs::copy(
                beside(&self.directory.path().join("test.db"), file),
                beside(&copy, file),
            )
            .unwrap();
        }
        copy
    }

    /// Runs a checkpoint, as the store's own thread does.
    fn checkpoint(&self) {
        let connection = rusqlite::Connection::open(self.directory.path().join("test.db")).unwrap();
        let done = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(2));
        assert!(done.unwrap() > 0);
    }
}

fn cut(path: &Path, to: impl Fn(u64) -> u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(to(length)).unwrap();
}

/// The database is refused repeatedly, with this message, and opens if the loss is accepted;
/// afterwards it works again.
async fn is_refused(database: &Path, options: &Options, words: &str) {
    for _ in 0..2 {
        let refused = Store::open(database, options.clone()).map(|store| store.revision());
        let Err(OpenError::Lost { finding, .. }) = refused else {
            panic!("{words}: {refused:?}")
        };
        assert!(finding.contains(words), "{finding}");
    }
    let accepting = Options {
        accept_loss: true,
        ..options.clone()
    };
    let store = Store::open(database, accepting).unwrap();
    assert!(
        store.revision() >= 1_000_000_000,
        "nobody has seen so much: {}",
        store.revision()
    );
    let next = store.commit(create(&pod("next"), "1")).await.unwrap();
    store.close().await.unwrap();
    let store = Store::open(database, options.clone()).unwrap();
    assert_eq!(store.revision(), next.revision);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_log_that_was_cut_off_emptied_or_removed_is_refused() {
    let crashed = Crashed::new().await;
    for checkpointed in [false, true] {
        if checkpointed {
            // Older pages would be replayed over newer ones.
            crashed.checkpoint();
        }
        let copy = crashed.copy();
        cut(&beside(&copy, "-wal"), |length| length / 2);
        is_refused(&copy, &options(), "the write-ahead log was cut off").await;
        let copy = crashed.copy();
        cut(&beside(&copy, "-wal"), |_| 0);
        is_refused(&copy, &options(), "the write-ahead log was cut off: 0 of its").await;
        let copy = crashed.copy();
        std::fs::remove_file(beside(&copy, "-wal")).unwrap();
        if !checkpointed {
            is_refused(&copy, &options(), "its newest revision is").await;
            continue;
        }
        // The database is complete. If it had only some of the pages, its heads would not match the
        // ledger.
        let connection = rusqlite::Connection::open(&copy).unwrap();
        assert_eq!(
            connection.execute("DELETE FROM head WHERE revision = 4", []).unwrap(),
            1
        );
        drop(connection);
        is_refused(&copy, &options(), "its write-ahead log is missing").await;
    }
    crashed.store.close().await.unwrap();
}

#[tokio::test]
async fn a_database_that_was_emptied_or_removed_is_refused() {
    let crashed = Crashed::new().await;
    let words = "it is missing or empty, but there was a cluster";
    let copy = crashed.copy();
    cut(&copy, |_| 0);
    is_refused(&copy, &options(), words).await;
    let copy = crashed.copy();
    std::fs::remove_file(&copy).unwrap();
    is_refused(&copy, &options(), words).await;
    // Only the operator knows that there was one (`Options::existed`).
    let gone = crashed.directory.path().join("gone.db");
    let existed = Options {
        existed: true,
        ..options()
    };
    is_refused(&gone, &existed, words).await;
    crashed.store.close().await.unwrap();
}

#[test]
fn a_database_that_is_set_aside_replaces_none_from_before() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let aside = [".moved", ".moved.2", ".moved.3"].map(|ending| beside(&database, ending));
    for path in &aside {
        let open = Sqlite::open(&database, &options()).unwrap();
        assert_eq!(open.set_aside().unwrap(), *path);
        std::fs::write(path, path.as_os_str().as_encoded_bytes()).unwrap();
    }
    for path in &aside {
        assert_eq!(std::fs::read(path).unwrap(), path.as_os_str().as_encoded_bytes());
    }
    assert!(!database.exists());
}

#[tokio::test]
async fn nothing_is_lost_by_a_crash_or_by_who_looks_at_what_it_left() {
    let crashed = Crashed::new().await;
    for checkpointed in [false, true] {
        if checkpointed {
            crashed.checkpoint();
            crashed.store.commit(update(&pod("p3"), "new", 4)).await.unwrap();
        }
        let revision = crashed.store.revision();
        let opens = async |database: &Path| {
            let store = Store::open(database, options()).unwrap();
            assert_eq!(store.revision(), revision);
            store.close().await.unwrap();
        };
        opens(&crashed.copy()).await;
        // Restored from a backup.
        let database = crashed.copy();
        let backup = crashed.directory.path().join("backup.db");
        assert_eq!(copy(&database, &backup).unwrap(), revision);
        std::fs::remove_file(&backup).unwrap();
        opens(&database).await;
        // Opened with SQLite's own tools, which run a checkpoint and remove the WAL.
        let database = crashed.copy();
        let connection = rusqlite::Connection::open(&database).unwrap();
        let rows = connection.query_row("SELECT count(*) FROM head", [], |row| row.get::<_, i64>(0));
        assert_eq!(rows.unwrap(), 20);
        drop(connection);
        assert!(!beside(&database, "-wal").exists());
        opens(&database).await;
        // After a crash of the machine the mark may be old.
        let database = crashed.copy();
        std::fs::write(
            beside(&database, ".mark"),
            "00000000000000000003 0000000007 0000000001 0000000001\n",
        )
        .unwrap();
        opens(&database).await;
    }
    crashed.store.close().await.unwrap();
}

#[tokio::test]
async fn a_backup_of_what_has_lost_writes_is_refused() {
    let crashed = Crashed::new().await;
    let database = crashed.copy();
    std::fs::remove_file(beside(&database, "-wal")).unwrap();
    let refused = copy(&database, &crashed.directory.path().join("backup.db")).unwrap_err();
    assert!(refused.to_string().ends_with("but 20 was reached"), "{refused}");
    crashed.store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn attack_33_a_full_disk_takes_what_makes_room_and_nothing_else() {
    let (store, disk) = failing();
    for name in ["a", "b"] {
        store.commit(create(&pod(name), "1")).await.unwrap();
    }
    assert!(store.is_writable());
    disk.set(Disk::Full);
    disk.keep_room();
    let refused = store.commit(create(&pod("c"), "1")).await;
    assert!(matches!(refused, Err(CommitError::Full(_))), "{refused:?}");
    assert!(!store.is_writable());
    store.commit(delete(&pod("a"), None)).await.unwrap();
    // An update of a pod that is being deleted, as when its finalizer is removed.
    let json =
        r#"{"metadata":{"name":"b","deletionTimestamp":"2026-01-01T00:00:00Z","resourceVersion":""},"data":"x"}"#;
    let ending = Write::Update {
        key: pod("b"),
        value: Value::parse(json.into()).unwrap(),
        attributes: controlplane_store::Attributes::default(),
        expected: 2,
    };
    store.commit(ending).await.unwrap();
    let refused = store.commit(update(&pod("b"), "2", 4)).await;
    assert!(matches!(refused, Err(CommitError::Full(_))), "{refused:?}");
    store.maintain().await;
    assert!(!store.is_writable(), "the disk is still full");
    disk.set(Disk::Good);
    store.maintain().await;
    store.commit(create(&pod("c"), "1")).await.unwrap();
    assert!(store.is_writable());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_no_writes_is_told_until_it_does() {
    let (store, disk) = failing();
    disk.set(Disk::Broken);
    let failed = store.commit(create(&pod("a"), "1")).await;
    assert!(matches!(failed, Err(CommitError::Failed(_))), "{failed:?}");
    assert!(!store.is_writable());
    store.maintain().await;
    assert!(!store.is_writable(), "nobody writes, and it is still broken");
    disk.set(Disk::Good);
    store.maintain().await;
    // The sweep that shows it comes after the answer, and before that to the second of two writes.
    for _ in 0..2 {
        let refused = store.commit(delete(&pod("a"), None)).await;
        assert!(matches!(refused, Err(CommitError::NotFound)), "{refused:?}");
    }
    assert!(store.is_writable());
}
