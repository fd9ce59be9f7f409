//! The one writer: it decides, stores and publishes batches of writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error};

use crate::backend::{Backend, Operation, Record};
use crate::entry::{Entry, Event, EventKind};
use crate::key::Key;
use crate::ledger::{Decision, decide};
use crate::retention::Retention;
use crate::shared::Shared;
use crate::write::{Class, CommitError, Write};
use crate::{BackendError, Value};

/// Writes that may wait for the writer; more wait for a place in the queue.
pub(crate) const QUEUE: usize = 1024;
/// The most writes, and bytes, in one transaction.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 8 << 20;
/// Rows that one step of compaction visits between two batches.
const SWEEP: usize = 512;
/// Objects that one step of expiry removes, and the steps in one round of maintenance.
const EXPIRE: usize = 128;
const EXPIRE_BATCHES: usize = 64;

/// Given to a writer when its write is on disk.
pub(crate) type Reply = oneshot::Sender<Result<Entry, CommitError>>;

pub(crate) enum Job {
    Write(Write, Reply),
    /// Look after retention; the time since the store was opened. Sweeping goes on after the answer.
    Maintain(Duration, oneshot::Sender<()>),
    Close(oneshot::Sender<Result<(), Arc<BackendError>>>),
}

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) retention: Retention,
}

impl Writer {
    /// The writer's thread: one transaction for all that waits, and maintenance when nothing does.
    pub(crate) fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut sweeping = false;
        let mut next = None;
        loop {
            let job = match next.take() {
                Some(job) => Some(job),
                None if sweeping && queue.is_empty() => {
                    sweeping = self.sweep();
                    continue;
                }
                None => queue.blocking_recv(),
            };
            match job {
                None => break,
                Some(Job::Write(write, reply)) => {
                    let mut batch = vec![(write, reply)];
                    next = drain(&mut queue, &mut batch);
                    self.commit(batch);
                    if sweeping && queue.len() < BATCH {
                        sweeping = self.sweep();
                    }
                }
                Some(Job::Maintain(now, done)) => {
                    sweeping |= self.maintain(now);
                    if done.send(()).is_err() {
                        debug!("nobody waits for the end of maintenance");
                    }
                }
                Some(Job::Close(done)) => {
                    self.shared.cache_mut().close();
                    // The caller may have stopped waiting.
                    drop(done.send(self.backend.close().map_err(Arc::new)));
                    return;
                }
            }
        }
        self.shared.cache_mut().close();
        if let Err(failure) = self.backend.close() {
            error!(error = &failure as &dyn std::error::Error, "close the database");
        }
    }

    /// Decides, stores and publishes one batch, then answers every writer. `false` when the disk did not take it.
    pub(crate) fn commit(&mut self, batch: Vec<(Write, Reply)>) -> bool {
        let mut answers = Vec::with_capacity(batch.len());
        let events = self.decide(batch, &mut answers);
        match self.store(events) {
            Ok(()) => {
                for (reply, answer) in answers {
                    // The client may have gone; its write stands.
                    drop(reply.send(answer));
                }
                true
            }
            Err(failure) => {
                for (reply, _) in answers {
                    drop(reply.send(Err(failure.clone())));
                }
                false
            }
        }
    }

    /// Checks preconditions against the cache and the writes of this batch that come before.
    fn decide(&self, batch: Vec<(Write, Reply)>, answers: &mut Vec<(Reply, Result<Entry, CommitError>)>) -> Vec<Event> {
        let cache = self.shared.cache();
        let mut pending: HashMap<Key, Option<Entry>> = HashMap::new();
        let mut events = Vec::with_capacity(batch.len());
        let mut revision = cache.revision;
        for (write, reply) in batch {
            let current = match pending.get(write.key()) {
                Some(entry) => entry.as_ref(),
                None => cache.get(write.key()),
            };
            let answer = match decide(write, current, revision + 1) {
                Ok(Decision::Append(event)) => {
                    revision += 1;
                    let entry = event.entry.clone();
                    let visible = matches!(event.kind, EventKind::Put { .. }).then(|| entry.clone());
                    pending.insert(entry.key.clone(), visible);
                    events.push(event);
                    Ok(entry)
                }
                Ok(Decision::Unchanged(entry)) => Ok(entry),
                Err(refusal) => Err(refusal),
            };
            answers.push((reply, answer));
        }
        events
    }

    fn store(&mut self, events: Vec<Event>) -> Result<(), CommitError> {
        if events.is_empty() {
            return Ok(());
        }
        let records: Vec<Record> = events.iter().map(|event| record(&self.shared, event)).collect();
        if let Err(failure) = self.backend.append(&records) {
            error!(
                error = &failure as &dyn std::error::Error,
                writes = records.len(),
                "commit failed"
            );
            return Err(match failure {
                BackendError::Full(_) => CommitError::Full(Arc::new(failure)),
                BackendError::Io(_) | BackendError::Corrupt(_) | BackendError::Damaged { .. } => {
                    CommitError::Failed(Arc::new(failure))
                }
            });
        }
        self.retention.stored(&events);
        self.shared.cache_mut().publish(events);
        Ok(())
    }

    /// Raises the floor and removes what has outlived its time. `true` when there is something to sweep.
    pub(crate) fn maintain(&mut self, now: Duration) -> bool {
        let (revision, floor) = {
            let cache = self.shared.cache();
            (cache.revision, cache.floor)
        };
        let raised = self.retention.floor(now, revision).max(floor);
        if raised > floor {
            debug!(floor = raised, "compact");
            self.shared.cache_mut().floor = raised;
        }
        self.expire(now);
        raised > floor
    }

    /// One bounded step of compaction. `true` when more is left.
    pub(crate) fn sweep(&mut self) -> bool {
        let floor = self.shared.cache().floor;
        match self.backend.compact(floor, SWEEP) {
            Ok(more) => more,
            Err(failure) => {
                error!(error = &failure as &dyn std::error::Error, "compaction failed");
                false
            }
        }
    }

    /// Deletes objects whose time to live is over. What a round leaves, or a full disk refuses, waits for the next round:
    /// the writers come first.
    fn expire(&mut self, now: Duration) {
        for _ in 0..EXPIRE_BATCHES {
            let due = self.retention.expired(now, &self.shared, EXPIRE);
            if due.is_empty() {
                return;
            }
            let batch = due.into_iter().filter_map(|entry| {
                let last = Value::parse(entry.bytes.to_vec()).ok()?;
                let write = Write::Delete {
                    key: entry.key.clone(),
                    expected: Some(entry.revision),
                    last,
                };
                Some((write, oneshot::channel().0))
            });
            let batch: Vec<_> = batch.collect();
            if batch.is_empty() {
                return;
            }
            debug!(objects = batch.len(), "remove what has outlived its time");
            if !self.commit(batch) {
                return;
            }
        }
    }
}

/// Takes what waits in the queue, up to a transaction's worth; returns a job of another kind that ended it.
fn drain(queue: &mut mpsc::Receiver<Job>, batch: &mut Vec<(Write, Reply)>) -> Option<Job> {
    let mut bytes = 0;
    while batch.len() < BATCH && bytes < BATCH_BYTES {
        match queue.try_recv() {
            Ok(Job::Write(write, reply)) => {
                bytes += write.size();
                batch.push((write, reply));
            }
            Ok(other) => return Some(other),
            Err(_) => return None,
        }
    }
    None
}

fn record(shared: &Shared, event: &Event) -> Record {
    let (operation, prev) = match &event.kind {
        EventKind::Put { prev: None } => (Operation::Create, None),
        EventKind::Put { prev } => (Operation::Update, prev.as_ref()),
        EventKind::Delete { prev } => (Operation::Delete, prev.as_ref()),
    };
    let kept = (shared.options.class)(event.entry.key.resource()) == Class::Kept;
    Record {
        revision: event.revision,
        key: event.entry.key.clone(),
        operation,
        previous: prev.map_or(0, |prev| prev.revision),
        drop_previous: prev.is_some() && !kept,
        bytes: event.entry.bytes.clone(),
    }
}
