//! The audit log: `audit.k8s.io/v1` Events as JSON lines in files of bounded size and number.
//!
//! What is written, and how much of it:
//!
//! | request | written |
//! |---|---|
//! | create, update, patch, delete, deletecollection | level `RequestResponse`: with the objects |
//! | the same on Secrets, tokens and events | level `Metadata` |
//! | get, list, watch, other paths | level `Metadata` |
//! | leases, when all went well | nothing: nodes renew them for ever |
//!
//! One thread writes; requests hand over their records through a bounded queue. When it is full (the disk is slower than
//! the clients), writes wait for a place, so that no change goes unrecorded, and reads are counted instead of recorded.

mod line;
mod rotate;

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use tracing::{error, warn};

use super::{Record, Sink};
use rotate::Files;
pub use rotate::Limits;

/// Records that may wait for the disk.
const QUEUE: usize = 1024;

/// Writes records into `audit.log` in a directory.
#[derive(Debug)]
pub struct FileSink {
    queue: Mutex<Option<SyncSender<Record>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    uncounted: AtomicU64,
}

impl FileSink {
    /// Opens the log in a directory, which is made when it is missing.
    pub fn open(directory: &Path, limits: Limits) -> std::io::Result<Self> {
        let files = Files::open(directory, limits)?;
        let (queue, records) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || run(files, &records))?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            uncounted: AtomicU64::new(0),
        })
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
    fn record(&self, record: Record) {
        if line::is_noise(&record) {
            return;
        }
        let Some(queue) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone() else {
            return;
        };
        match queue.try_send(record) {
            Ok(()) => {
                let lost = self.uncounted.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    warn!(reads = lost, "the audit log was too slow to record reads");
                }
            }
            Err(TrySendError::Full(record)) if line::is_write(&record) => {
                if queue.send(record).is_err() {
                    error!("the audit log has ended");
                }
            }
            Err(TrySendError::Full(_)) => drop(self.uncounted.fetch_add(1, Ordering::Relaxed)),
            Err(TrySendError::Disconnected(_)) => error!("the audit log has ended"),
        }
    }
}

/// Writes until the queue is closed; what has been written is handed to the kernel whenever nothing more waits.
fn run(mut files: Files, records: &Receiver<Record>) {
    let mut line = Vec::new();
    let mut failing = false;
    while let Ok(record) = records.recv() {
        let mut next = Some(record);
        let mut outcome = Ok(());
        while let Some(record) = next {
            line.clear();
            line::write(&record, &mut line);
            outcome = outcome.and(files.write(&line));
            next = records.try_recv().ok();
        }
        match outcome.and(files.flush()) {
            Ok(()) => failing = false,
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
