//! The audit log: `audit.k8s.io/v1` Events as JSON lines in files of bounded size and number.
//!
//! Default levels without a policy:
//!
//! | request | written |
//! |---|---|
//! | create, update, patch, delete, deletecollection | level `RequestResponse`: with the objects |
//! | the same on Secrets, tokens and events | level `Metadata` |
//! | get, list, watch, other paths | level `Metadata` |
//! | reading and renewing leases, when all went well | none: nodes do it continually |
//!
//! Objects of Secrets, tokens and the like are never written, not even when a policy asks for them.
//!
//! One thread writes; requests hand over their records through a bounded queue. When it is full
//! (the disk is slower than the clients), the answers to writes wait for a place, so that no change
//! goes unrecorded for lack of time, and reads are counted instead of recorded. Records that the
//! disk does not take (it is full, broken, or stalls for longer than a write waits) are lost,
//! including those of changes: no request is rejected for it. They are counted, in
//! `apiserver_audit_error_total` and in a warning when the disk takes records again. When the
//! objects of queued records take too much memory, further ones are omitted from their records,
//! which say so.

mod line;
mod rotate;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::{error, warn};

use super::policy::{Decision, Level, Policy};
use super::{Record, Sink, Stage, Waiting};
use rotate::Files;
pub use rotate::Limits;

/// Records that may wait for the disk.
const QUEUE: usize = 1024;
/// Bytes of objects that may wait with them.
const QUEUE_BYTES: usize = 16 << 20;
/// Longest time that the answer to a write waits for a place in the queue, and the end of the
/// process for the last records.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A record and how much of it is written. Boxed: the queue keeps room for all that may ever wait.
type Entry = Box<(Record, Decision)>;

/// Writes records into `audit.log` in a directory, or into a given file.
#[derive(Debug)]
pub struct FileSink {
    directory: Option<PathBuf>,
    policy: Option<Policy>,
    queue: Mutex<Option<mpsc::Sender<Entry>>>,
    /// Ends with the thread.
    thread: Mutex<Option<Receiver<()>>>,
    events: AtomicU64,
    state: Arc<State>,
}

/// The account that the thread and the requests keep.
#[derive(Debug, Default)]
struct State {
    /// Records that could not be written.
    failed: AtomicU64,
    /// Lost records that were not yet logged.
    lost: AtomicU64,
    /// Reads that were not recorded since the last warning.
    reads: AtomicU64,
    /// Bytes of the objects that wait.
    waiting: AtomicUsize,
    /// A write has waited in vain, and nothing was written since.
    stuck: AtomicBool,
}

impl State {
    fn lose(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a record that found no place.
    fn leave_out(&self, record: &Record) {
        self.waiting.fetch_sub(weight(record), Ordering::Relaxed);
        if line::is_write(record) {
            self.lose();
        } else {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for a place. When a write has waited in vain, those after it do not wait until the
    /// disk takes something again.
    async fn wait(&self, queue: mpsc::Sender<Entry>, entry: Entry) {
        match tokio::time::timeout(TIMEOUT, queue.reserve()).await {
            Ok(Ok(place)) => place.send(entry),
            Ok(Err(_)) => error!("the audit log has ended"),
            Err(_) => {
                self.leave_out(&entry.0);
                if !self.stuck.swap(true, Ordering::Relaxed) {
                    error!("the audit log takes nothing; requests go on, changes too, without records");
                }
            }
        }
    }
}

impl FileSink {
    /// Opens the log in a directory, which is made when it is missing. Without a policy the table above holds.
    pub fn open(directory: &Path, limits: Limits, policy: Option<Policy>) -> std::io::Result<Self> {
        let files = Files::open(&directory.join("audit.log"), limits)?;
        Self::start(files, Some(directory.to_owned()), policy)
    }

    /// Opens the log in a file of any name, or on standard output for `-`.
    pub fn open_file(path: &Path, limits: Limits, policy: Policy) -> std::io::Result<Self> {
        Self::start(Files::open(path, limits)?, None, Some(policy))
    }

    fn start(files: Files, directory: Option<PathBuf>, policy: Option<Policy>) -> std::io::Result<Self> {
        let (queue, records) = mpsc::channel(QUEUE);
        let (running, thread) = sync_channel(0);
        let state = Arc::<State>::default();
        let own = Arc::clone(&state);
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || run(files, records, &own, running))?;
        Ok(Self {
            directory,
            policy,
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            events: AtomicU64::new(0),
            state,
        })
    }

    /// Level at which a record is written; `None` if it is not.
    fn decide(&self, record: &Record) -> Option<Decision> {
        let decision = match &self.policy {
            Some(policy) => policy.decide(record)?,
            None => Decision {
                level: line::usual_level(record)?,
                without_managed_fields: false,
                hides_messages: false,
            },
        };
        Some(if line::is_secret(record) {
            Decision {
                level: Level::Metadata,
                hides_messages: true,
                ..decision
            }
        } else {
            decision
        })
    }

    /// Counts the record's objects among those that wait, or leaves them out.
    fn bound(&self, record: &mut Record) {
        let size = weight(record);
        let before = self.state.waiting.fetch_add(size, Ordering::Relaxed);
        if size > 0 && before.saturating_add(size) > QUEUE_BYTES {
            self.state.waiting.fetch_sub(size, Ordering::Relaxed);
            (record.request_object, record.response_object) = (None, None);
            record
                .annotations
                .push(("audit.skiff.io/left-out".into(), "objects".to_owned()));
        }
    }

    /// Writes queued records, as far as the disk takes them in time, and ends. Later records are
    /// not written.
    pub fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout)) {
            error!("the audit log takes nothing; its last records are lost");
        }
    }
}

/// Prefix of annotations with webhooks' patches
/// (`pkg/admission/plugin/webhook/mutating/dispatcher.go`).
const PATCHES: &str = "patch.webhook.admission.k8s.io/";

impl Drop for FileSink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sink for FileSink {
    fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    fn failures(&self) -> u64 {
        self.state.failed.load(Ordering::Relaxed)
    }

    fn record(&self, mut record: Record) -> Option<Waiting> {
        let decision = self.decide(&record)?;
        self.events.fetch_add(1, Ordering::Relaxed);
        if decision.level < Level::RequestResponse || record.stage != Stage::ResponseComplete {
            record.response_object = None;
        }
        if decision.level < Level::Request {
            record.request_object = None;
            // They quote the object.
            record.annotations.retain(|(name, _)| !name.starts_with(PATCHES));
        }
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        self.bound(&mut record);
        match queue.try_send(Box::new((record, decision))) {
            Ok(()) => {
                let reads = self.state.reads.swap(0, Ordering::Relaxed);
                if reads > 0 {
                    warn!(reads, "the audit log was too slow to record reads");
                }
            }
            Err(TrySendError::Full(entry)) => {
                let waits = line::is_write(&entry.0) && !self.state.stuck.load(Ordering::Relaxed);
                if let Some(runtime) = Handle::try_current().ok().filter(|_| waits) {
                    let state = Arc::clone(&self.state);
                    return Some(runtime.spawn(async move { state.wait(queue, entry).await }));
                }
                self.state.leave_out(&entry.0);
            }
            Err(TrySendError::Closed(_)) => error!("the audit log has ended"),
        }
        None
    }

    fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    fn wants_received(&self) -> bool {
        self.policy.is_some()
    }
}

/// Bytes of a record's objects.
fn weight(record: &Record) -> usize {
    let objects = [&record.request_object, &record.response_object];
    objects.into_iter().flatten().map(bytes::Bytes::len).sum()
}

/// Writes until the queue is closed; flushes whenever it is empty.
fn run(mut files: Files, mut records: mpsc::Receiver<Entry>, state: &State, running: SyncSender<()>) {
    let mut line = Vec::new();
    let mut failing = false;
    while let Some(record) = records.blocking_recv() {
        let mut next = Some(record);
        let mut outcome = Ok(());
        while let Some(entry) = next {
            let (record, decision) = *entry;
            line.clear();
            line::write(&record, decision, &mut line);
            state.waiting.fetch_sub(weight(&record), Ordering::Relaxed);
            let taken = files.write(&line);
            match taken {
                Ok(()) => state.stuck.store(false, Ordering::Relaxed),
                Err(_) => state.lose(),
            }
            outcome = outcome.and(taken);
            next = records.try_recv().ok();
        }
        match outcome.and(files.flush()) {
            Ok(()) => {
                let lost = state.lost.swap(0, Ordering::Relaxed);
                if failing || lost > 0 {
                    warn!(
                        lost,
                        "the audit log is written again; records are missing, those of changes too"
                    );
                }
                failing = false;
            }
            Err(failure) if !failing => {
                failing = true;
                error!(error = &failure as &dyn std::error::Error, "write the audit log");
            }
            Err(_) => {}
        }
    }
    drop(running);
}

#[cfg(test)]
mod tests;
