//! The writer: decides, stores and publishes batches of writes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{debug, error, info};

use super::ledger::{Decision, decide};
use super::pool::Pool;
use super::retention::Retention;
use super::{Class, CommitError, Guard, Write};
use crate::backend::{Backend, Limits, Operation, Record};
use crate::object::entry::{Entry, Event, EventKind};
use crate::object::key::Key;
use crate::read::cache::Cache;
use crate::read::news::{Woken, wake};
use crate::shared::Shared;
use crate::{BackendError, Value};

/// Capacity of the writer's queue; further writes wait for a place in it.
pub(crate) const QUEUE: usize = 1024;
/// Time for which a batch is decided again because other processes wrote first.
const OVERTAKEN: Duration = Duration::from_secs(20);
/// Duration of a write, including the wakeup of its watchers, up to which the next one may be
/// committed on the caller's thread.
const SWIFT: Duration = Duration::from_millis(1);
/// Rows that one step of compaction visits between two batches.
const SWEEP: usize = 512;
/// Objects that one step of expiry removes, and the number of steps in one round of maintenance.
const EXPIRE: usize = 128;
const EXPIRE_BATCHES: usize = 64;

/// Reason of a write that is refused before the disk is tried.
const SHORT: &str = "the room that is left on the disk is for deletions";

/// Channel for the answer to a write, sent once it is on disk.
pub(crate) type Reply = oneshot::Sender<Result<Entry, CommitError>>;

/// A change and its accompanying writes: all of them or none.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) write: Write,
    pub(crate) also: Vec<Write>,
    pub(crate) guards: Vec<Guard>,
}

impl Request {
    fn size(&self) -> usize {
        self.write.size() + self.also.iter().map(Write::size).sum::<usize>()
    }

    fn writes(&self) -> usize {
        1 + self.also.len()
    }
}

pub(crate) enum Job {
    Write(Request, Reply),
    /// Other processes have written.
    Follow,
    /// Run maintenance; the time since the store was opened. Sweeping goes on after the answer.
    Maintain(Duration, oneshot::Sender<()>),
    Close(oneshot::Sender<Result<(), Arc<BackendError>>>),
}

/// The writer; `None` after the store is closed.
pub(crate) type Slot = Mutex<Option<Writer>>;

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) retention: Retention,
    pub(crate) pool: Pool,
    /// Other processes write to the same ledger.
    pub(crate) shares: bool,
    /// The last write was alone and took no longer than [`SWIFT`].
    pub(crate) swift: bool,
    /// The disk is full, and the reserve is left for writes that free space.
    pub(crate) full: bool,
}

impl Writer {
    /// The writer's thread: commits all queued writes in one transaction, and runs maintenance when
    /// the queue is empty. Returns when the store is closed or its last handle is dropped, when the
    /// other processes cannot be followed, or after a commit panicked, since the state is then
    /// inconsistent.
    pub(crate) fn run(slot: &Slot, mut queue: mpsc::Receiver<Job>) {
        let mut sweeping = false;
        let mut next = None;
        loop {
            let job = match next.take() {
                Some(job) => Some(job),
                None if sweeping && queue.is_empty() => None,
                None => match queue.blocking_recv() {
                    Some(job) => Some(job),
                    None => break,
                },
            };
            let Ok(mut slot) = slot.lock() else { return };
            let Some(writer) = slot.as_mut() else { return };
            if writer.follow().is_err() && !matches!(job, Some(Job::Close(_))) {
                break;
            }
            match job {
                None => sweeping = writer.sweep(),
                Some(Job::Follow) => {}
                Some(Job::Write(request, reply)) => {
                    let mut batch = vec![(request, reply)];
                    let limits = writer.backend.limits();
                    next = drain(&mut queue, &mut batch, limits);
                    writer.commit(batch);
                    if sweeping && queue.len() < limits.writes {
                        sweeping = writer.sweep();
                    }
                }
                Some(Job::Maintain(now, done)) => {
                    sweeping |= writer.maintain(now);
                    if done.send(()).is_err() {
                        debug!("nobody waits for the end of maintenance");
                    }
                }
                Some(Job::Close(done)) => {
                    writer.shared.cache_mut().close();
                    let closed = writer.backend.close().map_err(Arc::new);
                    // Closes the files before the answer.
                    *slot = None;
                    // The caller may have stopped waiting.
                    drop(done.send(closed));
                    return;
                }
            }
        }
        let Some(mut writer) = slot.lock().ok().and_then(|mut slot| slot.take()) else {
            return;
        };
        writer.shared.cache_mut().close();
        if let Err(failure) = writer.backend.close() {
            error!(error = &failure as &dyn std::error::Error, "close the database");
        }
    }

    /// Decides, stores and publishes one batch, then answers every request. `false` if the disk
    /// failed.
    pub(crate) fn commit(&mut self, batch: Vec<(Request, Reply)>) -> bool {
        let (alone, begun) = (batch.len() == 1, Instant::now());
        let (mut requests, replies): (Vec<Request>, Vec<Reply>) = batch.into_iter().unzip();
        let (answers, stored) = loop {
            if let Err(failure) = self.follow() {
                break (Vec::new(), Err(CommitError::Failed(Arc::new(failure))));
            }
            let again = self.shares.then(|| requests.clone());
            let (events, answers, makes_room) = self.decide(requests);
            match (self.store(events, makes_room), again) {
                (Err(CommitError::Failed(failure)), Some(again))
                    if matches!(*failure, BackendError::Overtaken) && begun.elapsed() < OVERTAKEN =>
                {
                    requests = again;
                }
                (stored, _) => break (answers, stored),
            }
        };
        let done = match stored {
            Ok(woken) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    // The client may have gone; its write stands.
                    drop(reply.send(answer));
                }
                // Many watchers may wait: writers are answered first.
                wake(&woken);
                true
            }
            Err(failure) => {
                for reply in replies {
                    drop(reply.send(Err(failure.clone())));
                }
                false
            }
        };
        self.swift = alone && done && !self.shares && begun.elapsed() < SWIFT;
        done
    }

    /// Checks preconditions against the cache and earlier writes of the batch. Returns the changes,
    /// an answer for each request, and whether all of them free space.
    fn decide(&mut self, batch: Vec<Request>) -> (Vec<Event>, Vec<Result<Entry, CommitError>>, bool) {
        let mut answers = Vec::with_capacity(batch.len());
        let class = self.shared.options.class;
        let mut all = true;
        let cache = self.shared.cache();
        let mut round = Round {
            cache: &cache,
            pool: &mut self.pool,
            pending: HashMap::new(),
            events: Vec::with_capacity(batch.len()),
        };
        for request in batch {
            let begin = round.events.len();
            let makes_room = request.write.makes_room(class(request.write.key().resource()));
            all &= makes_room;
            let answer = if self.full && !makes_room {
                Err(CommitError::Full(Arc::new(BackendError::Full(Box::from(SHORT)))))
            } else {
                round.decide(request)
            };
            if answer.is_err() {
                round.take_back(begin);
            }
            answers.push(answer);
        }
        (round.events, answers, all)
    }

    /// Publishes stored changes. Returns the watchers that must be woken.
    pub(crate) fn publish(&mut self, events: Vec<Event>) -> Woken {
        self.retention.stored(&events);
        let (woken, revision) = {
            let mut cache = self.shared.cache_mut();
            (cache.publish(events), cache.revision)
        };
        self.shared.newest.send_replace(revision);
        woken
    }

    /// Stores and publishes changes. Returns the watchers that must be woken.
    fn store(&mut self, events: Vec<Event>, makes_room: bool) -> Result<Woken, CommitError> {
        if events.is_empty() {
            return Ok(Woken::new());
        }
        let time = (self.shared.options.clock)();
        let records: Vec<Record> = events.iter().map(|event| record(&self.shared, event, time)).collect();
        let mut appended = self.backend.append(&records);
        if matches!(appended, Err(BackendError::Full(_))) && !self.full {
            self.full = self.backend.release();
            if self.full && makes_room {
                appended = self.backend.append(&records);
            }
        }
        if let Err(failure @ BackendError::Overtaken) = appended {
            return Err(CommitError::Failed(Arc::new(failure)));
        }
        self.tell(appended.is_ok());
        if let Err(failure) = appended {
            error!(
                error = &failure as &dyn std::error::Error,
                writes = records.len(),
                "commit failed"
            );
            return Err(match failure {
                BackendError::Full(_) => CommitError::Full(Arc::new(failure)),
                BackendError::Unknown(_) => CommitError::Unknown(Arc::new(failure)),
                BackendError::Io(_)
                | BackendError::Corrupt(_)
                | BackendError::Damaged { .. }
                | BackendError::Overtaken => CommitError::Failed(Arc::new(failure)),
            });
        }
        Ok(self.publish(events))
    }

    /// Records whether writes succeed now.
    fn tell(&self, written: bool) {
        self.shared.writable.store(written && !self.full, Ordering::Relaxed);
    }

    /// Raises the floor and removes expired objects. `true` if there is something to sweep, or if a
    /// sweep must show whether the disk accepts writes again.
    pub(crate) fn maintain(&mut self, now: Duration) -> bool {
        let (revision, floor) = {
            let cache = self.shared.cache();
            (cache.revision, cache.floor)
        };
        let raised = self.retention.floor(now, revision).max(floor);
        let aged = self.retention.aged(now).min(raised);
        {
            let mut cache = self.shared.cache_mut();
            cache.aged = aged.max(cache.aged);
        }
        if raised > floor {
            debug!(floor = raised, "compact");
            self.shared.cache_mut().floor = raised;
        }
        self.expire(now);
        if self.full && self.backend.reserve() {
            info!("there is room on the disk again");
            self.full = false;
        }
        raised > floor || self.backend.has_more(raised) || !self.shared.writable.load(Ordering::Relaxed)
    }

    /// Runs one bounded step of compaction; `true` if there is more to do.
    pub(crate) fn sweep(&mut self) -> bool {
        let floor = self.shared.cache().floor;
        let swept = self.backend.compact(floor, SWEEP);
        self.tell(swept.is_ok());
        match swept {
            Ok(more) => more,
            Err(failure) => {
                error!(error = &failure as &dyn std::error::Error, "compaction failed");
                false
            }
        }
    }

    /// Deletes objects whose time to live is over. Objects that a round leaves, or a full disk
    /// refuses, wait for the next round: client writes come first.
    fn expire(&mut self, now: Duration) {
        for _ in 0..EXPIRE_BATCHES {
            let most = self.backend.limits().writes.min(EXPIRE);
            let due = self.retention.expired(now, &self.shared, most);
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
                let request = Request {
                    write,
                    also: Vec::new(),
                    guards: Vec::new(),
                };
                Some((request, oneshot::channel().0))
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

/// Writes of a batch while they are turned into events.
struct Round<'a> {
    cache: &'a Cache,
    pool: &'a mut Pool,
    /// State of objects after earlier writes of the batch.
    pending: HashMap<Key, Option<Entry>>,
    events: Vec<Event>,
}

impl Round<'_> {
    fn current(&self, key: &Key) -> Option<&Entry> {
        match self.pending.get(key) {
            Some(entry) => entry.as_ref(),
            None => self.cache.get(key),
        }
    }

    fn decide(&mut self, request: Request) -> Result<Entry, CommitError> {
        request.guards.into_iter().try_for_each(|guard| self.check(guard))?;
        let entry = self.decide_one(request.write)?;
        for (index, write) in request.also.into_iter().enumerate() {
            self.decide_one(write).map_err(|source| CommitError::Accompanying {
                index,
                source: Box::new(source),
            })?;
        }
        Ok(entry)
    }

    fn check(&self, guard: Guard) -> Result<(), CommitError> {
        match guard {
            Guard::Object { key, holds } if !holds(self.current(&key)) => Err(CommitError::Guarded { key }),
            Guard::Unchanged { prefix, since }
                if self.cache.last_change(&prefix) > since
                    || self.events.iter().any(|event| prefix.contains(&event.entry.key)) =>
            {
                Err(CommitError::Changed { prefix })
            }
            Guard::Object { .. } | Guard::Unchanged { .. } => Ok(()),
        }
    }

    fn decide_one(&mut self, mut write: Write) -> Result<Entry, CommitError> {
        if let Write::Create {
            within: Some(within), ..
        } = &write
            && self.current(&within.key).map(|entry| entry.revision) != Some(within.revision)
        {
            return Err(CommitError::Moved {
                key: within.key.clone(),
            });
        }
        let next = self.events.last().map_or(self.cache.revision, |event| event.revision) + 1;
        let current = match self.pending.get(write.key()) {
            Some(entry) => entry.as_ref(),
            None => self.cache.get(write.key()),
        };
        self.pool.share_write(&mut write);
        match decide(write, current, next)? {
            Decision::Unchanged(entry) => Ok(entry),
            Decision::Append(event) => {
                let entry = event.entry.clone();
                self.pending.insert(entry.key.clone(), visible(&event));
                self.events.push(event);
                Ok(entry)
            }
        }
    }

    /// Discards the events from `begin` on, which belong to a request that is refused as a whole.
    fn take_back(&mut self, begin: usize) {
        for event in self.events.drain(begin..).rev() {
            self.pending.insert(event.entry.key.clone(), event.prev().cloned());
        }
    }
}

/// The object that readers see after an event.
pub(crate) fn visible(event: &Event) -> Option<Entry> {
    matches!(event.kind, EventKind::Put { .. }).then(|| event.entry.clone())
}

/// Takes queued writes up to the limits of a transaction; returns the job that ended the batch: one
/// of another kind, or a write beyond the limits.
fn drain(queue: &mut mpsc::Receiver<Job>, batch: &mut Vec<(Request, Reply)>, limits: Limits) -> Option<Job> {
    let mut bytes: usize = batch.iter().map(|(request, _)| request.size()).sum();
    let mut writes: usize = batch.iter().map(|(request, _)| request.writes()).sum();
    while writes < limits.writes && bytes < limits.bytes {
        match queue.try_recv() {
            Ok(Job::Follow) => {}
            Ok(Job::Write(request, reply)) => {
                (bytes, writes) = (bytes + request.size(), writes + request.writes());
                if bytes > limits.bytes || writes > limits.writes {
                    return Some(Job::Write(request, reply));
                }
                batch.push((request, reply));
            }
            Ok(other) => return Some(other),
            Err(_) => return None,
        }
    }
    None
}

fn record(shared: &Shared, event: &Event, time: u64) -> Record {
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
        time,
        bytes: event.entry.bytes.clone(),
    }
}
