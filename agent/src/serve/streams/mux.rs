//! What the transports of streams have in common: several streams over one connection, all queues bounded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// Chunks that wait in one direction of one stream, and for the connection.
pub(super) const QUEUE: usize = 8;
/// Most bytes of a chunk.
pub(super) const CHUNK: usize = 32 << 10;
/// Bytes from a client that wait in all streams of its connection together.
const WAITING: usize = 4 << 20;
/// The time for a client to open its streams.
pub(super) const CREATION: Duration = Duration::from_secs(30);
/// A connection without any traffic ends after this.
const IDLE: Duration = Duration::from_hours(4);
/// The time for a client to read the last words and close.
const LINGER: Duration = Duration::from_secs(10);

/// What goes to the client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Bytes of a stream.
    Data(u32, Bytes),
    /// The end of a stream.
    End(u32),
    /// A whole frame of the transport's own.
    Frame(Bytes),
    /// A client that reads answers it.
    Ping,
    /// Nothing comes any more.
    Over,
}

/// The client is gone.
#[derive(Debug)]
pub(super) struct Gone;

/// One stream to the client.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    pub(super) id: u32,
    pub(super) queue: mpsc::Sender<Outgoing>,
}

impl Sink {
    pub(super) async fn send(&self, bytes: Bytes) -> Result<(), Gone> {
        let sent = self.queue.send(Outgoing::Data(self.id, bytes)).await;
        sent.map_err(|_closed| Gone)
    }

    /// Ends the stream; one to a client that is gone has ended.
    pub(super) async fn end(self) {
        self.queue.send(Outgoing::End(self.id)).await.ok();
    }
}

/// One stream from the client: its chunks, to its end.
pub(super) type Source = mpsc::Receiver<Bytes>;

/// The room for what a client has sent and nobody has used yet. It may open many streams, and have none of them read.
#[derive(Debug)]
pub(super) struct Room(Arc<Semaphore>);

/// A chunk in its place.
struct Held {
    chunk: Bytes,
    #[expect(dead_code, reason = "it is held")]
    place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl Room {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(WAITING)))
    }

    /// Waits for room, which the chunk takes for as long as anybody has it. One that is larger than all there is has all of it.
    pub(super) async fn hold(&self, chunk: Bytes) -> Bytes {
        let length = u32::try_from(chunk.len().min(WAITING)).unwrap_or(0);
        match Arc::clone(&self.0).acquire_many_owned(length).await {
            Ok(place) => Bytes::from_owner(Held { chunk, place }),
            // Nobody closes it.
            Err(_closed) => chunk,
        }
    }
}

/// When the last traffic was.
#[derive(Debug)]
pub(super) struct Idle(Mutex<Instant>);

impl Idle {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub(super) fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    async fn expired(&self) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + IDLE;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// Reads, writes and works until the work is done and written, or the client is gone.
pub(super) async fn drive(
    idle: &Idle,
    read: impl Future<Output = ()>,
    write: impl Future<Output = Result<(), Gone>>,
    work: impl Future<Output = ()>,
) {
    let mut read = std::pin::pin!(read);
    let work = async {
        work.await;
        Ok(())
    };
    tokio::select! {
        () = &mut read => return,
        done = async { tokio::try_join!(work, write) } => if done.is_err() {
            return;
        },
        () = idle.expired() => return,
    }
    // A connection that is closed before the client's last bytes were read is reset, and what it has not read is lost.
    tokio::time::timeout(LINGER, read).await.ok();
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn what_waits_in_all_streams_together_is_bounded() {
        let room = Room::new();
        let hold = |length: usize| room.hold(Bytes::from(vec![1_u8; length])).now_or_never();
        let mut kept: Vec<Bytes> = std::iter::from_fn(|| hold(CHUNK)).collect();
        assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), WAITING);
        assert!(hold(1).is_none());
        // A part of a chunk keeps the whole one.
        let part = kept.pop().map(|chunk| chunk.slice(1..2));
        assert!(hold(1).is_none());
        drop(part);
        assert_eq!(hold(CHUNK).map(|chunk| chunk.len()), Some(CHUNK));
        // What is larger than all the room needs all of it.
        assert!(hold(2 * WAITING).is_none());
        kept.clear();
        assert_eq!(hold(2 * WAITING).map(|chunk| chunk.len()), Some(2 * WAITING));
    }
}
