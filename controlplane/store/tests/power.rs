//! A power failure: synced data survives, and any part of the rest.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use common::{create, options, pod};
use controlplane_store::Store;

/// A deterministic pseudorandom generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// The disk keeps all synced pages, and any unsynced pages in any order.
#[tokio::test]
async fn attack_34_a_power_cut_loses_nothing_that_was_acknowledged() {
    const PAGE: usize = 512;
    let directory = tempfile::tempdir().unwrap();
    let (database, cut) = (directory.path().join("test.db"), directory.path().join("cut.db"));
    let (log, cut_log) = (
        directory.path().join("test.db-wal"),
        directory.path().join("cut.db-wal"),
    );
    let store = Store::open(&database, options()).unwrap();
    let mut dice = Dice(34);
    for number in 0..60 {
        let synced = (
            std::fs::read(&database).unwrap(),
            std::fs::read(&log).unwrap_or_default(),
        );
        let mark = std::fs::read(directory.path().join("test.db.mark")).unwrap();
        let data = "x".repeat(usize::try_from(dice.roll(9000)).unwrap());
        store
            .commit(create(&pod(&format!("p{number:02}")), &data))
            .await
            .unwrap();
        let written = std::fs::read(&log).unwrap_or_default();
        if std::fs::read(&database).unwrap() != synced.0 || !written.starts_with(&synced.1) {
            continue;
        }
        let mut left = written.clone();
        for page in left[synced.1.len()..].chunks_mut(PAGE) {
            match dice.roll(3) {
                0 => page.fill(0),
                1 => page.fill(u8::try_from(dice.roll(256)).unwrap()),
                _ => {}
            }
        }
        if dice.roll(2) == 0 {
            let more = u64::try_from(left.len() - synced.1.len()).unwrap();
            left.truncate(synced.1.len() + usize::try_from(dice.roll(more + 1)).unwrap());
        }
        std::fs::write(&cut, &synced.0).unwrap();
        std::fs::write(&cut_log, &left).unwrap();
        std::fs::write(directory.path().join("cut.db.mark"), &mark).unwrap();
        let after = Store::open(&cut, options()).unwrap_or_else(|error| panic!("round {number}: {error:?}"));
        let revision = after.revision();
        assert!(
            (number..=number + 1).contains(&revision),
            "round {number}: revision {revision}"
        );
        for earlier in 0..number {
            let name = format!("p{earlier:02}");
            assert!(after.get(&pod(&name)).is_some(), "round {number}: {name} is lost");
        }
        let next = after.commit(create(&pod("next"), "y")).await.unwrap();
        assert_eq!(next.revision, revision + 1, "round {number}");
        after.close().await.unwrap();
        let connection = rusqlite::Connection::open(&cut).unwrap();
        let sound: String = connection
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(sound, "ok", "round {number}");
        drop(connection);
        for file in ["cut.db", "cut.db-wal", "cut.db-shm"] {
            std::fs::remove_file(directory.path().join(file)).ok();
        }
    }
    store.close().await.unwrap();
}
