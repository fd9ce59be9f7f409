//! Acknowledged writes survive however the process ends; damaged or locked databases are refused.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Disk, create, data, delete, failing, options, pod, pods, update};
use controlplane_store::{CommitError, Key, ListAt, OpenError, Store, WatchError};
use tokio::task::JoinSet;

const WRITERS: usize = 16;
const ROUNDS: u64 = 50;
const DATABASE: &str = "SKIFF_TEST_DATABASE";

/// Not a test by itself: the process to be killed. It prints a line for every acknowledged write.
#[test]
#[ignore = "run by no_acknowledged_write_is_lost"]
fn child() {
    let Some(path) = std::env::var_os(DATABASE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&path), options()).unwrap();
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                for round in 0_u64.. {
                    let key = pod(&format!("w{writer}-{}", round % 4));
                    let text = format!("{round}-{}", "x".repeat(2000));
                    let entry = match store.get(&key) {
                        None => store.commit(create(&key, &text)).await.unwrap(),
                        Some(entry) => store.commit(update(&key, &text, entry.revision)).await.unwrap(),
                    };
                    println!("ack {} {}", entry.revision, key.name());
                }
            });
        }
        writers.join_all().await;
    });
}

fn start(database: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(DATABASE, database)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills the child after a number of acknowledgments; returns the newest acknowledged revision of
/// each key.
fn kill_after(mut child: Child, acknowledgements: u64) -> BTreeMap<String, u64> {
    let mut seen = BTreeMap::new();
    let mut count = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // The test harness prints a word before the first line.
        let line = line.unwrap();
        let Some((_, acknowledged)) = line.split_once("ack ") else {
            continue;
        };
        // The kill may have truncated the last line.
        let Some((revision, name)) = acknowledged.split_once(' ').filter(|(_, name)| name.len() >= 4) else {
            continue;
        };
        seen.insert(name.to_owned(), revision.parse().unwrap());
        count += 1;
        if count == acknowledgements {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(count >= acknowledgements, "the child ended by itself");
    seen
}

#[tokio::test]
async fn no_acknowledged_write_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let mut newest = 0;
    for round in 0..ROUNDS {
        let acknowledged = kill_after(start(&database), 1 + round * 37 % 400);
        let store = Store::open(&database, options()).unwrap();
        for (name, revision) in &acknowledged {
            let entry = store
                .get(&pod(name))
                .unwrap_or_else(|| panic!("round {round}: {name} at {revision} is lost"));
            assert!(
                entry.revision >= *revision,
                "round {round}: {name} is at {} after {revision}",
                entry.revision
            );
            data(&entry);
        }
        let highest = acknowledged.values().copied().max().unwrap_or_default().max(newest);
        assert!(
            store.revision() >= highest,
            "round {round}: the revision went back to {}",
            store.revision()
        );
        newest = store.revision();
        let next = store
            .commit(create(&pod(&format!("round-{round}")), "x"))
            .await
            .unwrap();
        assert_eq!(next.revision, newest + 1);
        newest = next.revision;
        store.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_revision_does_not_go_back_when_everything_is_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let store = Store::open(&database, options()).unwrap();
    for _ in 0..10 {
        store.commit(create(&pod("a"), "1")).await.unwrap();
        store.commit(delete(&pod("a"), None)).await.unwrap();
    }
    tokio::time::advance(std::time::Duration::from_mins(1)).await;
    store.maintain().await;
    tokio::time::advance(std::time::Duration::from_mins(10)).await;
    store.maintain().await;
    assert_eq!(store.floor(), 20);
    // The writer finishes a step of the sweep before it takes the next job.
    assert!(matches!(
        store.commit(delete(&pod("a"), None)).await,
        Err(CommitError::NotFound)
    ));
    store.close().await.unwrap();
    let connection = rusqlite::Connection::open(&database).unwrap();
    let rows: i64 = connection
        .query_row("SELECT count(*) FROM ledger", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 0, "nothing of what is over is left");
    drop(connection);
    let store = Store::open(&database, options()).unwrap();
    assert_eq!((store.revision(), store.floor()), (20, 20));
    assert!(matches!(store.watch(&pods(), 19), Err(WatchError::Expired { .. })));
    assert_eq!(store.commit(create(&pod("a"), "1")).await.unwrap().revision, 21);
}

#[tokio::test]
async fn two_processes_cannot_open_one_database() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let store = Store::open(&database, options()).unwrap();
    let refused = Store::open(&database, options()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("{} is in use by process {}", database.display(), std::process::id())
    );
    store.close().await.unwrap();
    Store::open(&database, options()).unwrap();
}

/// A closed database with enough data for damage.
async fn filled(database: &Path) {
    let store = Store::open(database, options()).unwrap();
    for number in 0..200 {
        store
            .commit(create(
                &pod(&format!("p{number}")),
                &format!("NEEDLE{}", "y".repeat(3000)),
            ))
            .await
            .unwrap();
    }
    store.close().await.unwrap();
}

fn flip(path: &Path, at: u64) {
    let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    byte[0] ^= 0x10;
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&byte).unwrap();
}

fn chain(error: &OpenError) -> String {
    let first: &dyn std::error::Error = error;
    let all = std::iter::successors(Some(first), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn attack_35_damage_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let good = directory.path().join("good.db");
    filled(&good).await;
    let bytes = std::fs::read(&good).unwrap();
    // The last occurrence: split pages keep copies of moved rows, and damage to those goes
    // unnoticed.
    let needle = bytes.windows(6).rposition(|window| window == b"NEEDLE").unwrap() as u64;
    let cases: [(&str, &[u64]); 4] = [
        ("a bit of a value", &[needle + 2]),
        ("the page of the tables", &[100, 101, 105]),
        (
            "a page's header",
            &[
                4096 * 40,
                4096 * 40 + 1,
                4096 * 40 + 3,
                4096 * 41,
                4096 * 42,
                4096 * 43,
                4096 * 44,
            ],
        ),
        ("the file's header", &[3]),
    ];
    for (what, places) in cases {
        let bad = directory.path().join("bad.db");
        std::fs::copy(&good, &bad).unwrap();
        for at in places {
            flip(&bad, *at);
        }
        let refused = Store::open(&bad, options()).map(|store| store.revision()).unwrap_err();
        println!("{what}: {}", chain(&refused));
        assert!(
            chain(&refused).contains("damaged") || chain(&refused).contains("malformed"),
            "{what}: {}",
            chain(&refused)
        );
    }
    let torn = directory.path().join("torn.db");
    std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(Store::open(&torn, options()), Err(OpenError::Damaged { .. })));
    let foreign = directory.path().join("foreign.db");
    rusqlite::Connection::open(&foreign)
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    assert!(matches!(
        Store::open(&foreign, options()),
        Err(OpenError::Foreign { .. })
    ));
    rusqlite::Connection::open(&good)
        .unwrap()
        .execute_batch("PRAGMA user_version = 7")
        .unwrap();
    assert!(matches!(
        Store::open(&good, options()),
        Err(OpenError::Version { found: 7, supported: 1 })
    ));
}

#[tokio::test]
async fn attack_35_damage_in_the_middle_of_the_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("test.db");
    let (copy, log) = (directory.path().join("copy.db"), directory.path().join("copy.db-wal"));
    let store = Store::open(&database, options()).unwrap();
    for number in 0..20 {
        store
            .commit(create(&pod(&format!("p{number}")), &"z".repeat(2000)))
            .await
            .unwrap();
    }
    // As after a crash: the content of the WAL is not yet in the database.
    let take = || {
        std::fs::copy(&database, &copy).unwrap();
        std::fs::copy(directory.path().join("test.db-wal"), &log).unwrap()
    };
    let length = take();
    flip(&log, length / 2);
    let refused = Store::open(&copy, options()).map(|store| store.revision()).unwrap_err();
    assert!(
        refused.to_string().contains("the write-ahead log has a damaged page"),
        "{refused}"
    );
    // A crash leaves a torn end: the transaction was never acknowledged.
    take();
    OpenOptions::new()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(length - 100)
        .unwrap();
    let cut = Store::open(&copy, options()).unwrap();
    assert_eq!(cut.revision(), 19);
    cut.close().await.unwrap();
    take();
    let whole = Store::open(&copy, options()).unwrap();
    assert_eq!(whole.revision(), 20);
    whole.close().await.unwrap();
}

#[tokio::test]
async fn attack_33_a_failed_batch_leaves_no_trace() {
    let (store, disk) = failing();
    store.commit(create(&pod("a"), "1")).await.unwrap();
    let mut watch = store.watch(&pods(), 1).unwrap();
    disk.set(Disk::Full);
    let mut writers = JoinSet::new();
    for number in 0..20 {
        let store = store.clone();
        writers.spawn(async move { store.commit(create(&pod(&format!("p{number}")), "1")).await });
    }
    for outcome in writers.join_all().await {
        assert!(matches!(outcome, Err(CommitError::Full(_))), "{outcome:?}");
    }
    assert_eq!(store.revision(), 1);
    assert_eq!(
        store
            .list(&pods(), ListAt::Latest, None, None)
            .await
            .unwrap()
            .entries
            .len(),
        1
    );
    disk.set(Disk::Good);
    assert_eq!(store.commit(create(&pod("p0"), "2")).await.unwrap().revision, 2);
    assert_eq!(data(&watch.next().await.unwrap().entry), "2");
}

#[tokio::test(start_paused = true)]
async fn attack_33_a_full_disk_does_not_keep_the_writer_from_the_writes() {
    let (store, disk) = failing();
    let event = Key::new("", "events", "default", "e").unwrap();
    store.commit(create(&event, "1")).await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    store.maintain().await;
    tokio::time::advance(std::time::Duration::from_hours(2)).await;
    disk.set(Disk::Full);
    store.maintain().await;
    assert!(store.get(&event).is_some(), "what could not be removed is still there");
    disk.set(Disk::Good);
    store.commit(create(&pod("a"), "1")).await.unwrap();
    store.maintain().await;
    assert!(store.get(&event).is_none());
}

#[tokio::test]
async fn a_lone_write_is_committed_by_who_brings_it_unless_the_disk_is_slow() {
    let (store, disk) = failing();
    let mut number = 0;
    let mut next = || {
        number += 1;
        create(&pod(&format!("pod-{number}")), "1")
    };
    store.commit(next()).await.unwrap();
    assert!(!disk.written_here(), "nothing is known of the disk");
    // The machine may be busy just now.
    for tries in 1.. {
        store.commit(next()).await.unwrap();
        if disk.written_here() {
            break;
        }
        assert!(tries < 1000, "the thread writes although the disk is swift");
    }
    disk.set(Disk::Slow);
    store.commit(next()).await.unwrap();
    store.commit(next()).await.unwrap();
    assert!(!disk.written_here(), "the write before took long");
    store.close().await.unwrap();
    let late = store.commit(next()).await;
    assert!(matches!(late, Err(CommitError::Closed)), "{late:?}");
}

#[tokio::test]
async fn the_size_of_a_database_is_that_of_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.db");
    let store = Store::open(&path, options()).unwrap();
    assert_eq!(store.size(), Some(std::fs::metadata(&path).unwrap().len()));
    store.close().await.unwrap();
    assert_eq!(Store::in_memory(options()).size(), None);
}

#[tokio::test]
async fn the_end_of_the_writer_is_no_secret() {
    let (store, disk) = failing();
    disk.set(Disk::Panics);
    let running = store.clone();
    let mut maintenance = JoinSet::new();
    maintenance.spawn(async move { running.run().await });
    let lost = store.commit(create(&pod("a"), "1")).await;
    assert!(matches!(lost, Err(CommitError::Closed)), "{lost:?}");
    maintenance.join_all().await;
}

/// It appends during each of the thread's checkpoints, so that none of them covers all of the log.
#[tokio::test]
async fn the_log_of_a_writer_without_a_pause_stays_within_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("test.db"), options()).unwrap();
    let (key, large) = (pod("web"), "x".repeat(256 << 10));
    let mut revision = store.commit(create(&key, &large)).await.unwrap().revision;
    for round in 0..500_u64 {
        let write = update(&key, &format!("{round}{large}"), revision);
        revision = store.commit(write).await.unwrap().revision;
    }
    let size = std::fs::metadata(directory.path().join("test.db-wal")).unwrap().len();
    assert!(size < 64 << 20, "{size} bytes");
    store.close().await.unwrap();
}
