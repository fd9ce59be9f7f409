//! Reads at a point in time, over compaction and restarts, compared with a model that keeps
//! everything.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use std::collections::BTreeMap;

use common::{clock, compact, create, data, delete, keeping, pod, pods, reopen, shown, tick, update};
use controlplane_store::{At, Cell, CommitError, Key, Prefix, Sql, SqlError, Store};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Create(u8, u8),
    Update(u8, u8),
    Delete(u8),
    Restart,
    Compact,
    Tick(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6_u8;
    prop_oneof![
        4 => (key.clone(), any::<u8>()).prop_map(|(key, data)| Step::Create(key, data)),
        6 => (key.clone(), any::<u8>()).prop_map(|(key, data)| Step::Update(key, data)),
        3 => key.prop_map(Step::Delete),
        1 => Just(Step::Restart),
        1 => Just(Step::Compact),
        4 => (0..50_u64).prop_map(Step::Tick),
    ]
}

/// State by name: revision and data.
type State = BTreeMap<String, (u64, String)>;

#[derive(Debug, Default)]
struct Model {
    /// The state at every revision, with the time of it; the first is the empty one.
    history: Vec<(u64, State)>,
}

impl Model {
    fn now(&self) -> State {
        self.history.last().map(|(_, state)| state.clone()).unwrap_or_default()
    }

    fn change(&mut self, name: &str, data: Option<String>) {
        let mut state = self.now();
        let revision = self.history.len() as u64;
        match data {
            Some(data) => state.insert(name.to_owned(), (revision, data)),
            None => state.remove(name),
        };
        self.history.push((clock(), state));
    }

    fn at_time(&self, time: u64) -> &State {
        &self.history.iter().rev().find(|(at, _)| *at <= time).unwrap().1
    }
}

async fn apply(store: &Store, model: &mut Model, step: &Step) {
    match step {
        Step::Create(key, text) => {
            let name = format!("p{key}");
            match store.commit(create(&pod(&name), &text.to_string())).await {
                Ok(_) => model.change(&name, Some(text.to_string())),
                Err(CommitError::Exists) => {}
                Err(error) => panic!("{error}"),
            }
        }
        Step::Update(key, text) => {
            let name = format!("p{key}");
            let Some((revision, before)) = model.now().get(&name).cloned() else {
                return;
            };
            store
                .commit(update(&pod(&name), &text.to_string(), revision))
                .await
                .unwrap();
            if before != text.to_string() {
                model.change(&name, Some(text.to_string()));
            }
        }
        Step::Delete(key) => {
            let name = format!("p{key}");
            if store.commit(delete(&pod(&name), None)).await.is_ok() {
                model.change(&name, None);
            }
        }
        Step::Tick(by) => {
            tick(*by);
        }
        Step::Restart | Step::Compact => {}
    }
}

async fn agrees(store: &Store, model: &Model, begun: u64) {
    for (revision, (_, state)) in model.history.iter().enumerate() {
        let at = At::Revision(revision as u64);
        assert_eq!(&shown(store, &pods(), at).await.unwrap(), state, "revision {revision}");
    }
    let mut times: Vec<u64> = model
        .history
        .iter()
        .flat_map(|(time, _)| [*time, time + 1, time - 1])
        .collect();
    times.retain(|time| *time >= begun);
    times.push(clock() + 1000);
    for time in times {
        let found = shown(store, &pods(), At::Time(time)).await.unwrap();
        assert_eq!(&found, model.at_time(time), "time {time}");
        for name in ["p0", "p1", "p2"] {
            let one = store
                .list_at(&pods(), Some(&pod(name)), At::Time(time), false)
                .await
                .unwrap();
            let one = one.entries.first().map(|entry| (entry.revision, data(entry)));
            assert_eq!(one.as_ref(), model.at_time(time).get(name), "{name} at {time}");
        }
    }
    for name in ["p0", "p3"] {
        versions_agree(store, model, name).await;
    }
}

/// Versions of an object equal those of the model, each with the revision that superseded it.
async fn versions_agree(store: &Store, model: &Model, name: &str) {
    let mut wanted: Vec<(u64, String, bool)> = Vec::new();
    for (_, state) in &model.history {
        match (state.get(name), wanted.last_mut()) {
            (Some((revision, data)), last) if last.as_ref().is_none_or(|last| last.0 != *revision) => {
                wanted.push((*revision, data.clone(), false));
            }
            (None, Some(last)) => last.2 = true,
            (_, _) => {}
        }
    }
    wanted.reverse();
    let found = store.versions(&pod(name), u64::MAX, 1000).await.unwrap();
    let found: Vec<(u64, String, bool)> = found
        .iter()
        .map(|version| {
            let object: serde_json::Value = serde_json::from_slice(&version.bytes).unwrap();
            let data = object["data"].as_str().unwrap().to_owned();
            (version.revision, data, version.deleted)
        })
        .collect();
    assert_eq!(found, wanted, "{name}");
    let two = store.versions(&pod(name), u64::MAX, 2).await.unwrap();
    assert_eq!(two.len(), wanted.len().min(2));
}

#[tokio::test]
async fn an_event_that_is_gone_is_in_the_past_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let options = keeping(64 << 20);
    let on_disk = Store::open(&directory.path().join("test.db"), options.clone()).unwrap();
    for store in [on_disk, Store::in_memory(options)] {
        let key = Key::new("", "events", "default", "e").unwrap();
        store.commit(create(&key, "first")).await.unwrap();
        store.commit(update(&key, "again", 1)).await.unwrap();
        store.commit(create(&pod("other"), "x")).await.unwrap();
        store.commit(delete(&key, None)).await.unwrap();
        for (at, then) in [(2, Some(2)), (3, Some(2)), (4, None)] {
            let only = store
                .list_at(&Prefix::resource("", "events"), Some(&key), At::Revision(at), false)
                .await
                .unwrap();
            assert_eq!(only.entries.first().map(|entry| entry.revision), then, "at {at}");
        }
        let versions = store.versions(&key, u64::MAX, 9).await.unwrap();
        let brief: Vec<_> = versions
            .iter()
            .map(|own| (own.revision, own.until, own.deleted))
            .collect();
        assert_eq!(brief, [(2, Some(4), true)]);
        assert!(store.versions(&key, 2, 9).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn of_the_versions_those_that_are_asked_for_may_be_so_large_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("test.db"), keeping(64 << 20)).unwrap();
    let (key, large) = (pod("web"), "x".repeat(3 << 20));
    store.commit(create(&key, &large)).await.unwrap();
    for revision in 1..12_u64 {
        store
            .commit(update(&key, &format!("{revision}{large}"), revision))
            .await
            .unwrap();
    }
    store.commit(delete(&key, None)).await.unwrap();
    store.commit(create(&key, "anew")).await.unwrap();
    let brief = async |before, limit| {
        let versions = store.versions(&key, before, limit).await.unwrap();
        let brief = versions.iter().map(|own| (own.revision, own.until, own.deleted));
        brief.collect::<Vec<_>>()
    };
    assert_eq!(
        brief(u64::MAX, 3).await,
        [(14, None, false), (12, Some(13), true), (11, Some(12), false)]
    );
    assert_eq!(brief(5, 2).await, [(4, Some(5), false), (3, Some(4), false)]);
}

#[tokio::test]
async fn the_deletion_of_an_object_is_remembered_as_long_as_its_past() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    for text in ["one", "two", "three"] {
        store.commit(create(&pod("web"), text)).await.unwrap();
        store.commit(delete(&pod("web"), None)).await.unwrap();
    }
    store.commit(create(&pod("web"), "four")).await.unwrap();
    store.commit(create(&pod("other"), "x")).await.unwrap();
    assert_eq!(store.deleted(&pod("web")).await.unwrap(), 6);
    assert_eq!(store.deleted(&pod("other")).await.unwrap(), 0);
    let store = reopen(store, &database, &options).await;
    assert_eq!(store.deleted(&pod("web")).await.unwrap(), 6);
    assert_eq!(store.deleted(&pod("other")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_revision_of_the_past_has_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let mut times = Vec::new();
    let mut note = || times.push(tick(1000));
    note();
    store.commit(create(&pod("web"), "one")).await.unwrap();
    note();
    store.commit(update(&pod("web"), "two", 1)).await.unwrap();
    note();
    store.commit(create(&pod("other"), "x")).await.unwrap();
    note();
    store.commit(delete(&pod("web"), None)).await.unwrap();
    note();
    store.commit(update(&pod("other"), "y", 3)).await.unwrap();
    let when = async |store: &Store, revision| {
        let list = store
            .list_at(&pods(), None, At::Revision(revision), false)
            .await
            .unwrap();
        list.time
    };
    for revision in 1..=5 {
        assert_eq!(
            when(&store, revision).await,
            times[usize::try_from(revision).unwrap() - 1],
            "revision {revision}"
        );
    }
    let store = reopen(store, &database, &options).await;
    for revision in 1..=5 {
        assert_eq!(
            when(&store, revision).await,
            times[usize::try_from(revision).unwrap() - 1],
            "archived {revision}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_moment_is_shown_as_it_was(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let database = directory.path().join("test.db");
            let options = keeping(64 << 20);
            let begun = tick(10);
            let mut store = Store::open(&database, options.clone()).unwrap();
            let mut model = Model::default();
            model.history.push((begun, State::new()));
            tick(1);
            for step in &steps {
                match step {
                    Step::Restart => store = reopen(store, &database, &options).await,
                    Step::Compact => compact(&store, &database).await,
                    Step::Create(..) | Step::Update(..) | Step::Delete(_) | Step::Tick(_) => {}
                }
                apply(&store, &mut model, step).await;
            }
            agrees(&store, &model, begun).await;
            store = reopen(store, &database, &options).await;
            agrees(&store, &model, begun).await;
            store.close().await.unwrap();
        });
    }
}

/// Rows of a query, with their cells as text.
fn rows(sql: &mut Sql, query: &str) -> Result<Vec<String>, SqlError> {
    let mut rows = Vec::new();
    let taken = sql.query(
        query,
        || false,
        |row| {
            let cells = row.into_iter().map(|cell| match cell {
                Cell::Null => "-".to_owned(),
                Cell::Integer(number) => number.to_string(),
                Cell::Real(number) => number.to_string(),
                Cell::Text(text) => text,
            });
            rows.push(cells.collect::<Vec<_>>().join(" "));
            Ok::<_, SqlError>(true)
        },
    );
    taken.map(|()| rows)
}

#[tokio::test]
async fn the_present_and_the_past_are_read_in_sql() {
    let directory = tempfile::tempdir().unwrap();
    let (database, options) = (directory.path().join("test.db"), keeping(64 << 20));
    let store = Store::open(&database, options.clone()).unwrap();
    let key = pod("web");
    store.commit(create(&key, "one")).await.unwrap();
    store.commit(update(&key, "two", 1)).await.unwrap();
    let store = reopen(store, &database, &options).await;
    // One version is in the archive by now, the others are in the ledger.
    store.commit(update(&key, "three", 2)).await.unwrap();
    store.commit(create(&pod("gone"), "four")).await.unwrap();
    store.commit(delete(&pod("gone"), None)).await.unwrap();
    let mut sql = Sql::open(&database).unwrap();
    let objects = rows(
        &mut sql,
        r#"SELECT "group", resource, namespace, name, revision, json ->> '$.data' AS data FROM objects"#,
    );
    assert_eq!(
        objects.unwrap(),
        [
            "group resource namespace name revision data",
            " pods default web 3 three"
        ]
    );
    let versions =
        "SELECT name, revision, until, deleted, json ->> '$.data', time < ended FROM versions ORDER BY revision";
    let versions = rows(&mut sql, versions).unwrap();
    let expected = [
        "web 1 2 0 one 0",
        "web 2 3 0 two 0",
        "web 3 - 0 three -",
        "gone 4 5 1 four 0",
    ];
    let shown: Vec<&str> = versions.iter().skip(1).map(String::as_str).collect();
    assert_eq!(shown, expected);
    let lines = [
        r#"{"stage":"ResponseComplete","verb":"create","user":{"username":"jane"},"objectRef":{"name":"web"},"responseStatus":{"code":201}}"#,
        r#"{"stage":"RequestReceived","verb":"create"}"#,
        "{broken",
    ];
    sql.add(lines.into_iter().map(str::to_owned)).unwrap();
    let joined = "SELECT a.user, a.code, o.revision FROM audit a JOIN objects o USING (name)";
    assert_eq!(rows(&mut sql, joined).unwrap(), ["user code revision", "jane 201 3"]);
}

#[tokio::test]
async fn attack_a_query_in_sql_writes_nothing_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (database, other) = (directory.path().join("test.db"), directory.path().join("other.db"));
    let store = Store::open(&database, keeping(64 << 20)).unwrap();
    store.commit(create(&pod("web"), "one")).await.unwrap();
    let mut sql = Sql::open(&database).unwrap();
    let attach = format!("ATTACH '{}' AS other", other.display());
    for query in [
        "DELETE FROM ledger",
        "DROP TABLE head",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = OFF",
        "DELETE FROM audit",
        "VACUUM",
        &attach,
    ] {
        assert!(rows(&mut sql, query).is_err(), "{query}");
    }
    assert!(!other.exists());
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n";
    let mut looks = 0;
    let late = move || {
        looks += 1;
        looks > 100
    };
    let ended = sql.query(endless, late, |_| Ok::<_, SqlError>(true));
    assert!(matches!(ended, Err(SqlError::Late)), "{ended:?}");
    assert_eq!(store.get(&pod("web")).unwrap().revision, 1);
}
