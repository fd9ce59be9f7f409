//! Throughput of durable writes, printed beside the disk's own; the only assertion is that all
//! arrived.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement, printed"
)]

mod common;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use common::{create, options, pod};
use controlplane_store::Store;
use tokio::task::JoinSet;
use tokio::time::Instant;

const TIME: Duration = Duration::from_millis(500);

/// Appends of 4 KiB with an fdatasync each, per second.
fn probe(directory: &Path) -> f64 {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("probe"))
        .unwrap();
    let begin = Instant::now();
    let mut count = 0_u32;
    while begin.elapsed() < TIME {
        file.write_all(&[0; 4096]).unwrap();
        file.sync_data().unwrap();
        count += 1;
    }
    f64::from(count) / begin.elapsed().as_secs_f64()
}

async fn creates(store: &Store, writers: usize) -> (f64, Duration, Duration) {
    let text = "x".repeat(2000);
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (store, text) = (store.clone(), text.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while begin.elapsed() < TIME {
                let key = pod(&format!("n{writers}-{writer}-{}", times.len()));
                let started = Instant::now();
                store.commit(create(&key, &text)).await.unwrap();
                times.push(started.elapsed());
            }
            times
        });
    }
    let mut times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let rate = times.len() as f64 / begin.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    (rate, at(50), at(99))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_creates() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = Store::open(&directory.path().join("test.db"), options()).unwrap();
    println!("probe: {:.0} fdatasync/s", probe(directory.path()));
    for writers in [1, 16, 64] {
        let (rate, half, most) = creates(&store, writers).await;
        println!("{writers:>3} writers: {rate:.0} creates of 2 KiB/s, p50 {half:?}, p99 {most:?}");
    }
    let (stored, revision) = (store.revision(), store.get(&pod("n64-0-0")).is_some());
    assert!(revision);
    store.close().await.unwrap();
    let store = Store::open(&directory.path().join("test.db"), options()).unwrap();
    assert_eq!(store.revision(), stored);
}
