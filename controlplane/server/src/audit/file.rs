//! The audit log: `audit.k8s.io/v1` Events as JSON lines in files of bounded size and number.
//!
//! What is written, and how much of it, where no policy says otherwise:
//!
//! | request | written |
//! |---|---|
//! | create, update, patch, delete, deletecollection | level `RequestResponse`: with the objects |
//! | the same on Secrets, tokens and events | level `Metadata` |
//! | get, list, watch, other paths | level `Metadata` |
//! | reading and renewing leases, when all went well | nothing: nodes do it for ever |
//!
//! Secrets, tokens and the like never come with their objects, whatever a policy says.
//!
//! One thread writes; requests hand over their records through a bounded queue. When it is full (the disk is slower than
//! the clients), writes wait for a place, so that no change goes unrecorded for want of time, and reads are counted instead
//! of recorded. What the disk does not take (it is full, or broken) is lost, changes included: nobody is refused for it. Such
//! records are counted, in `apiserver_audit_error_total` and in a warning when the disk takes records again.
//! When the objects that wait take too much memory, further ones are left out of their records, which say so.

mod line;
mod rotate;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::runtime::{Handle, RuntimeFlavor};
use tracing::{error, warn};

use super::policy::{Decision, Level, Policy};
use super::{Record, Sink, Stage};
use rotate::Files;
pub use rotate::Limits;

/// Records that may wait for the disk.
const QUEUE: usize = 1024;
/// Bytes of objects that may wait with them.
const QUEUE_BYTES: usize = 16 << 20;

/// A record and how much of it is written. Boxed: the queue keeps room for all that may ever wait.
type Entry = Box<(Record, Decision)>;

/// Writes records into `audit.log` in a directory.
#[derive(Debug)]
pub struct FileSink {
    policy: Option<Policy>,
    queue: Mutex<Option<SyncSender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    uncounted: AtomicU64,
    events: AtomicU64,
    /// Records that could not be written.
    failed: Arc<AtomicU64>,
    /// Bytes of the objects that wait.
    waiting: Arc<AtomicUsize>,
}

impl FileSink {
    /// Opens the log in a directory, which is made when it is missing. Without a policy the table above holds.
    pub fn open(directory: &Path, limits: Limits, policy: Option<Policy>) -> std::io::Result<Self> {
        let files = Files::open(directory, limits)?;
        let (queue, records) = sync_channel(QUEUE);
        let waiting = Arc::<AtomicUsize>::default();
        let written = Arc::clone(&waiting);
        let failed = Arc::<AtomicU64>::default();
        let lost = Arc::clone(&failed);
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || run(files, &records, &written, &lost))?;
        Ok(Self {
            policy,
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            uncounted: AtomicU64::new(0),
            events: AtomicU64::new(0),
            failed,
            waiting,
        })
    }

    /// How much of a record is written, if it is.
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
        let before = self.waiting.fetch_add(size, Ordering::Relaxed);
        if size > 0 && before.saturating_add(size) > QUEUE_BYTES {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            (record.request_object, record.response_object) = (None, None);
            record
                .annotations
                .push(("audit.skiff.io/left-out", "objects".to_owned()));
        }
    }

    /// Writes what waits and ends. Records that come later are not written.
    pub fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic in it was reported where it happened.
        drop(thread.map(JoinHandle::join));
    }
}

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
        self.failed.load(Ordering::Relaxed)
    }

    fn record(&self, mut record: Record) {
        let Some(decision) = self.decide(&record) else { return };
        self.events.fetch_add(1, Ordering::Relaxed);
        if decision.level < Level::RequestResponse || record.stage != Stage::ResponseComplete {
            record.response_object = None;
        }
        if decision.level < Level::Request {
            record.request_object = None;
        }
        let Some(queue) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone() else {
            return;
        };
        self.bound(&mut record);
        match queue.try_send(Box::new((record, decision))) {
            Ok(()) => {
                let lost = self.uncounted.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    warn!(reads = lost, "the audit log was too slow to record reads");
                }
            }
            Err(TrySendError::Full(entry)) if line::is_write(&entry.0) => {
                if !off_the_workers(|| queue.send(entry).is_ok()) {
                    error!("the audit log has ended");
                }
            }
            Err(TrySendError::Full(entry)) => {
                self.waiting.fetch_sub(weight(&entry.0), Ordering::Relaxed);
                self.uncounted.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(_)) => error!("the audit log has ended"),
        }
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

/// Waits without keeping other requests from the thread, where the runtime has more than one.
fn off_the_workers<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        Ok(_) | Err(_) => wait(),
    }
}

/// Writes until the queue is closed; what has been written is handed to the kernel whenever nothing more waits.
fn run(mut files: Files, records: &Receiver<Entry>, waiting: &AtomicUsize, failed: &AtomicU64) {
    let mut line = Vec::new();
    let mut failing = false;
    // Records that were lost since it went well.
    let mut lost: u64 = 0;
    while let Ok(record) = records.recv() {
        let mut next = Some(record);
        let mut outcome = Ok(());
        while let Some(entry) = next {
            let (record, decision) = *entry;
            line.clear();
            line::write(&record, decision, &mut line);
            waiting.fetch_sub(weight(&record), Ordering::Relaxed);
            let taken = files.write(&line);
            if taken.is_err() {
                lost = lost.saturating_add(1);
                failed.fetch_add(1, Ordering::Relaxed);
            }
            outcome = outcome.and(taken);
            next = records.try_recv().ok();
        }
        match outcome.and(files.flush()) {
            Ok(()) => {
                if failing {
                    warn!(
                        lost,
                        "the audit log is written again; records are missing, those of changes too"
                    );
                }
                (failing, lost) = (false, 0);
            }
            Err(failure) if !failing => {
                failing = true;
                error!(error = &failure as &dyn std::error::Error, "write the audit log");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
