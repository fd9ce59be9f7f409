//! Common part of the stream transports: several streams over one connection, all queues bounded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// Queue length in chunks, of one direction of a stream and of the connection.
pub(super) const QUEUE: usize = 8;
/// Maximum length of a chunk.
pub(super) const CHUNK: usize = 32 << 10;
/// Maximum number of queued bytes from a client over all streams of its connection.
const WAITING: usize = 4 << 20;
/// Timeout for a client to open its streams.
pub(super) const CREATION: Duration = Duration::from_secs(30);
/// Idle timeout of a connection.
const IDLE: Duration = Duration::from_hours(4);
/// Time for a client to read the last data and close.
const LINGER: Duration = Duration::from_secs(10);

/// Message to the client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Data of a stream.
    Data(u32, Bytes),
    /// End of a stream.
    End(u32),
    /// Complete frame of the transport.
    Frame(Bytes),
    /// Ping, which is answered by a client that reads.
    Ping,
    /// End of the data.
    Over,
}

/// The client has disconnected.
#[derive(Debug)]
pub(super) struct Gone;

/// Stream to the client.
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

    /// Ends the stream, unless the client has disconnected.
    pub(super) async fn end(self) {
        self.queue.send(Outgoing::End(self.id)).await.ok();
    }
}

/// Stream from the client: its chunks until the end.
pub(super) type Source = mpsc::Receiver<Bytes>;

/// Limit on data that a client has sent and that is not consumed yet. A client may open many
/// streams without a reader.
#[derive(Debug)]
pub(super) struct Room(Arc<Semaphore>);

/// Chunk with its permits.
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

    /// Waits for permits that the chunk holds until it is dropped. A chunk larger than the limit
    /// takes all permits.
    pub(super) async fn hold(&self, chunk: Bytes) -> Bytes {
        let length = u32::try_from(chunk.len().min(WAITING)).unwrap_or(0);
        match Arc::clone(&self.0).acquire_many_owned(length).await {
            Ok(place) => Bytes::from_owner(Held { chunk, place }),
            // The semaphore is never closed.
            Err(_closed) => chunk,
        }
    }
}

/// Time of the last traffic.
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

/// Reads, writes and works until the work is done and its output written, or the client
/// disconnects.
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
    // Closing a connection with unread data resets it, and the client loses data that it has not
    // read.
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
        // A slice of a chunk keeps all of its permits.
        let part = kept.pop().map(|chunk| chunk.slice(1..2));
        assert!(hold(1).is_none());
        drop(part);
        assert_eq!(hold(CHUNK).map(|chunk| chunk.len()), Some(CHUNK));
        // A chunk larger than the limit needs all of it.
        assert!(hold(2 * WAITING).is_none());
        kept.clear();
        assert_eq!(hold(2 * WAITING).map(|chunk| chunk.len()), Some(2 * WAITING));
    }
}
