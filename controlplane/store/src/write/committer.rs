//! Commits of writes: on the writer's thread, in one batch with all others that wait, or on the
//! caller's thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::CommitError;
use super::writer::{Job, QUEUE, Reply, Request, Slot, Writer};
use crate::BackendError;
use crate::object::entry::Entry;
use crate::options::OpenError;
use crate::shared::Shared;

#[derive(Clone)]
pub(crate) enum Committer {
    /// Commits on the caller's thread; simulations under a paused clock need this.
    Inline(Arc<Mutex<Writer>>),
    /// A thread commits the queued writes; the caller commits a write that is alone.
    Thread {
        writer: Arc<Slot>,
        queue: mpsc::Sender<Job>,
        thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    },
}

impl Committer {
    pub(crate) fn inline(writer: Writer) -> Self {
        Self::Inline(Arc::new(Mutex::new(writer)))
    }

    pub(crate) fn start(mut writer: Writer) -> Result<Self, OpenError> {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let waking = queue.downgrade();
        // If the queue is full, the writer follows the other processes before it takes the next
        // job.
        writer.backend.listen(Arc::new(move || {
            if let Some(queue) = waking.upgrade() {
                drop(queue.try_send(Job::Follow));
            }
        }));
        let writer = Arc::new(Mutex::new(Some(writer)));
        let own = Arc::clone(&writer);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || Writer::run(&own, receiver))
            .map_err(OpenError::Thread)?;
        Ok(Self::Thread {
            writer,
            queue,
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    pub(crate) async fn commit(&self, shared: &Shared, request: Request) -> Result<Entry, CommitError> {
        let (reply, answer) = oneshot::channel();
        match self {
            Self::Inline(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                if shared.cache().closed {
                    return Err(CommitError::Closed);
                }
                writer.commit(vec![(request, reply)]);
            }
            Self::Thread { writer, queue, .. } => {
                if let Some((request, reply)) = commit_here(writer, queue, request, reply)
                    && queue.send(Job::Write(request, reply)).await.is_err()
                {
                    return Err(CommitError::Closed);
                }
            }
        }
        answer.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Waits for the end of the writer's thread.
    pub(crate) async fn ended(&self) {
        match self {
            Self::Inline(_) => std::future::pending().await,
            Self::Thread { queue, .. } => queue.closed().await,
        }
    }

    pub(crate) async fn maintain(&self, now: Duration) {
        match self {
            Self::Inline(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let mut sweeping = writer.maintain(now);
                while sweeping {
                    sweeping = writer.sweep();
                }
            }
            Self::Thread { queue, .. } => {
                let (done, maintained) = oneshot::channel();
                // A closed store needs no maintenance.
                drop(queue.send(Job::Maintain(now, done)).await);
                drop(maintained.await);
            }
        }
    }

    pub(crate) async fn close(&self, shared: &Shared) -> Result<(), Arc<BackendError>> {
        match self {
            Self::Inline(writer) => {
                shared.cache_mut().close();
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                writer.backend.close().map_err(Arc::new)
            }
            Self::Thread { queue, thread, .. } => {
                let (done, closed) = oneshot::channel();
                if queue.send(Job::Close(done)).await.is_err() {
                    return Ok(());
                }
                let outcome = closed.await.unwrap_or(Ok(()));
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                // The thread has answered and only has to return; a panic in it was reported where
                // it happened.
                drop(thread.map(JoinHandle::join));
                outcome
            }
        }
    }
}

/// Commits a write on the caller's thread if no other write is under way and the disk is fast:
/// waking the writer's thread and being woken by it takes a lone client longer than the rest of its
/// request. At most one executor thread waits for the disk like this. Returns the request if it has
/// to be queued.
fn commit_here(writer: &Slot, queue: &mpsc::Sender<Job>, request: Request, reply: Reply) -> Option<(Request, Reply)> {
    let Ok(mut slot) = writer.try_lock() else {
        return Some((request, reply));
    };
    let waiting = queue.capacity() < queue.max_capacity();
    match slot.as_mut().filter(|writer| writer.swift && !waiting) {
        Some(writer) => {
            writer.commit(vec![(request, reply)]);
            None
        }
        None => Some((request, reply)),
    }
}
