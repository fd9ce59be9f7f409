//! Helpers of the store's tests: objects to write, and every kind of store to write them to.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(missing_docs, reason = "test helpers")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking"
)]
#![allow(unreachable_pub, reason = "a module shared by test binaries")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controlplane_store::{
    At, Attributes, Backend, BackendError, Class, Entry, History, Kept, Key, Loaded, Memory, Options, PastError,
    Prefix, Record, Store, Value, Write,
};
use rusqlite::Connection;

pub fn options() -> Options {
    Options {
        index,
        class,
        ..Options::default()
    }
}

/// Leases keep only their newest version, heartbeats expire after an hour, everything else keeps
/// history.
pub fn class(resource: &str) -> Class {
    match resource {
        "coordination.k8s.io/leases" => Class::HeadOnly { time_to_live: None },
        "core/events" => Class::HeadOnly {
            time_to_live: Some(Duration::from_hours(1)),
        },
        _ => Class::Kept,
    }
}

pub fn index(key: &Key, json: &[u8]) -> Attributes {
    let object: serde_json::Value = serde_json::from_slice(json).unwrap();
    let data = object["data"].as_str().unwrap_or_default().to_owned();
    Attributes {
        labels: Arc::new(BTreeMap::from([("data".to_owned(), data)])),
        fields: Arc::from([("metadata.name", key.name().into())]),
    }
}

pub fn pod(name: &str) -> Key {
    Key::new("", "pods", "default", name).unwrap()
}

pub fn pods() -> Prefix {
    Prefix::resource("", "pods")
}

pub fn value(key: &Key, data: &str) -> Value {
    let name = key.name();
    let json = format!(r#"{{"kind":"Pod","metadata":{{"name":"{name}","resourceVersion":""}},"data":"{data}"}}"#);
    Value::parse(json.into_bytes()).unwrap()
}

pub fn create(key: &Key, data: &str) -> Write {
    let value = value(key, data);
    Write::Create {
        key: key.clone(),
        value,
        attributes: Attributes::default(),
        within: None,
    }
}

pub fn update(key: &Key, data: &str, expected: u64) -> Write {
    let value = value(key, data);
    Write::Update {
        key: key.clone(),
        value,
        attributes: Attributes::default(),
        expected,
    }
}

pub fn delete(key: &Key, expected: Option<u64>) -> Write {
    Write::Delete {
        key: key.clone(),
        expected,
        last: value(key, "last"),
    }
}

/// Returns the object's `data`; asserts that its resourceVersion is the entry's revision.
pub fn data(entry: &Entry) -> String {
    let object: serde_json::Value = serde_json::from_slice(&entry.bytes).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], entry.revision.to_string());
    assert_eq!(object["metadata"]["name"], entry.key.name());
    object["data"].as_str().unwrap().to_owned()
}

/// Opens a store of every kind with the same options. The directory lives as long as its database.
pub fn stores(options: &Options) -> Vec<(&'static str, Store, Option<tempfile::TempDir>)> {
    let threaded = Store::with_backend(Box::new(Memory::default()), options.clone()).unwrap();
    vec![
        ("memory", Store::in_memory(options.clone()), None),
        ("memory with a thread", threaded, None),
    ]
}

/// Behavior of a disk on a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Good,
    Full,
    Broken,
    Slow,
    Panics,
}

/// Controls the behavior of a disk.
#[derive(Clone)]
pub struct Control {
    disk: Arc<Mutex<Disk>>,
    writer: Arc<Mutex<Option<std::thread::ThreadId>>>,
    room: Arc<Mutex<Room>>,
}

/// The reserve on the disk.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    #[default]
    None,
    Kept,
    Given,
}

impl Control {
    pub fn set(&self, disk: Disk) {
        *self.disk.lock().unwrap_or_else(PoisonError::into_inner) = disk;
    }

    /// Simulates space for the reserve when the store is opened.
    pub fn keep_room(&self) {
        self.set_room(Room::Kept);
    }

    fn set_room(&self, room: Room) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = room;
    }

    fn room(&self) -> Room {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk(&self) -> Disk {
        *self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the last write was committed on the calling thread.
    pub fn written_here(&self) -> bool {
        let writer = *self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer == Some(std::thread::current().id())
    }
}

struct Failing {
    inner: Memory,
    control: Control,
}

/// A store whose disk fails on demand.
pub fn failing() -> (Store, Control) {
    let control = Control {
        disk: Arc::new(Mutex::new(Disk::Good)),
        writer: Arc::default(),
        room: Arc::default(),
    };
    let backend = Failing {
        inner: Memory::default(),
        control: control.clone(),
    };
    (Store::with_backend(Box::new(backend), options()).unwrap(), control)
}

impl Backend for Failing {
    fn load(&mut self) -> Result<Loaded, BackendError> {
        self.inner.load()
    }

    fn append(&mut self, records: &[Record]) -> Result<(), BackendError> {
        let disk = self.control.disk();
        let own = std::thread::current().id();
        *self.control.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
        match disk {
            Disk::Good => self.inner.append(records),
            Disk::Slow => {
                // Never receives: simulates a slow disk.
                let (_sender, receiver) = std::sync::mpsc::channel::<()>();
                receiver.recv_timeout(Duration::from_millis(5)).ok();
                self.inner.append(records)
            }
            Disk::Full if self.control.room() == Room::Given => self.inner.append(records),
            Disk::Full => Err(BackendError::Full("no space".into())),
            Disk::Broken => Err(BackendError::Io("broken".into())),
            Disk::Panics => panic!("the disk is on fire"),
        }
    }

    fn compact(&mut self, floor: u64, limit: usize) -> Result<bool, BackendError> {
        if self.control.disk() == Disk::Broken {
            return Err(BackendError::Io("broken".into()));
        }
        self.inner.compact(floor, limit)
    }

    fn reserve(&mut self) -> bool {
        let good = self.control.disk() == Disk::Good;
        if good && self.control.room() == Room::Given {
            self.control.keep_room();
        }
        good
    }

    fn release(&mut self) -> bool {
        let kept = self.control.room() == Room::Kept;
        if kept {
            self.control.set_room(Room::Given);
        }
        kept
    }

    fn history(&self) -> Result<Arc<dyn History>, BackendError> {
        self.inner.history()
    }

    fn close(&mut self) -> Result<(), BackendError> {
        self.inner.close()
    }
}

/// The wall clock of stores that record times. Only tests advance it; each test has its own
/// process.
pub static CLOCK: AtomicU64 = AtomicU64::new(1_000);

pub fn clock() -> u64 {
    CLOCK.load(Ordering::SeqCst)
}

pub fn tick(milliseconds: u64) -> u64 {
    CLOCK.fetch_add(milliseconds, Ordering::SeqCst) + milliseconds
}

/// Superseded versions are compacted at the next maintenance.
pub fn keeping(bytes: u64) -> Options {
    Options {
        retention: Duration::ZERO,
        ring_events: 4,
        kept: Some(Kept {
            age: Duration::from_hours(1),
            bytes,
        }),
        clock,
        ..options()
    }
}

pub fn history(database: &Path) -> Connection {
    Connection::open(database.with_added_extension("history")).unwrap()
}

pub fn count(connection: &Connection, table: &str) -> u64 {
    let count: i64 = connection
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
        .unwrap();
    u64::try_from(count).unwrap()
}

/// Runs maintenance until no superseded version is left in the ledger below the floor.
pub async fn compact(store: &Store, database: &Path) {
    let swept = Connection::open(database).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    loop {
        store.maintain().await;
        let reached = swept
            .query_row(
                "SELECT coalesce(max(value), 0) FROM meta WHERE name = 'swept'",
                [],
                |row| row.get::<_, i64>(0),
            )
            .unwrap();
        if u64::try_from(reached).unwrap() >= store.floor() {
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "swept to {reached}, floor {}",
            store.floor()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reopens the store and compacts all superseded versions.
pub async fn reopen(store: Store, database: &Path, options: &Options) -> Store {
    store.close().await.unwrap();
    let store = Store::open(database, options.clone()).unwrap();
    compact(&store, database).await;
    store
}

pub async fn shown(store: &Store, prefix: &Prefix, at: At) -> Result<BTreeMap<String, (u64, String)>, PastError> {
    let list = store.list_at(prefix, None, at, true).await?;
    let entries = list.entries.iter();
    Ok(entries
        .map(|entry| (entry.key.name().to_owned(), (entry.revision, data(entry))))
        .collect())
}

pub fn used(connection: &Connection) -> u64 {
    let pragma = |name: &str| {
        connection
            .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let pages = pragma("page_count") - pragma("freelist_count");
    u64::try_from(pages * pragma("page_size")).unwrap()
}
