//! SPDY/3.1, as far as streaming clients use it: they open streams, and both sides send data, ends
//! and resets.
//!
//! Received data are acknowledged by window updates. The clients' windows are ignored: those of
//! this protocol never enlarge them, and rely on the transport's backpressure.

mod frame;
mod inflate;

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::mpsc;
use tracing::debug;

use super::mux::{CHUNK, Gone, Idle, Outgoing, QUEUE, Room, Sink, Source};
use frame::{Control, Head, Headers};
use inflate::Inflater;

/// Maximum number of open streams of a client.
const STREAMS: usize = 4096;
/// Maximum length of a control frame, compressed.
const CONTROL: usize = 16 << 10;

/// Stream that the client opened.
pub(super) struct Opened {
    pub(super) headers: Headers,
    pub(super) source: Source,
    pub(super) sink: Sink,
}

impl Opened {
    /// Rejects the stream.
    pub(super) async fn reset(self) {
        let frame = frame::reset(self.sink.id, frame::PROTOCOL_ERROR);
        self.sink.queue.send(Outgoing::Frame(frame)).await.ok();
    }
}

struct Reader<'a, Stream> {
    stream: BufReader<Stream>,
    inflater: Inflater,
    open: BTreeMap<u32, mpsc::Sender<Bytes>>,
    newest: u32,
    outgoing: mpsc::Sender<Outgoing>,
    opened: mpsc::Sender<Opened>,
    room: Room,
    idle: &'a Idle,
}

/// Reads frames until the client disconnects or violates the protocol.
pub(super) async fn read(
    stream: impl AsyncRead + Unpin,
    outgoing: mpsc::Sender<Outgoing>,
    opened: mpsc::Sender<Opened>,
    idle: &Idle,
) {
    let mut reader = Reader {
        stream: BufReader::with_capacity(CHUNK, stream),
        inflater: Inflater::new(),
        open: BTreeMap::new(),
        newest: 0,
        outgoing,
        opened,
        room: Room::new(),
        idle,
    };
    if let Err(error) = reader.run().await {
        debug!(%error, "a SPDY connection ended");
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<Stream: AsyncRead + Unpin> Reader<'_, Stream> {
    async fn run(&mut self) -> io::Result<()> {
        loop {
            let mut head = [0; frame::HEAD];
            self.stream.read_exact(&mut head).await?;
            self.idle.touch();
            match frame::head(head) {
                Head::Data { stream, fin, length } => self.data(stream, fin, length).await?,
                Head::Control { kind, flags, length } => {
                    if length > CONTROL {
                        return Err(broken("a control frame is too long"));
                    }
                    let mut payload = vec![0; length];
                    self.stream.read_exact(&mut payload).await?;
                    self.control(kind, flags, &payload).await?;
                }
                Head::OtherVersion => return Err(broken("a frame of another version")),
            }
        }
    }

    /// A long frame is passed on in parts.
    async fn data(&mut self, stream: u32, fin: bool, length: usize) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            let part = left.min(CHUNK);
            let mut chunk = vec![0; part];
            self.stream.read_exact(&mut chunk).await?;
            left -= part;
            if let Some(sender) = self.open.get(&stream) {
                let chunk = self.room.hold(chunk.into()).await;
                if sender.send(chunk).await.is_err() {
                    // The stream has no reader any more.
                    self.open.remove(&stream);
                }
                self.send(frame::window_update(stream, part)).await?;
            }
        }
        if fin {
            self.open.remove(&stream);
        }
        Ok(())
    }

    async fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> io::Result<()> {
        let control = frame::control(kind, payload).ok_or_else(|| broken("a malformed control frame"))?;
        match control {
            Control::SynStream { stream, block } => {
                let headers = self.headers(block)?;
                self.open(stream, flags, headers).await
            }
            Control::Headers { block } => self.headers(block).map(drop),
            Control::Reset { stream } => {
                self.open.remove(&stream);
                Ok(())
            }
            // Clients number their pings with odd IDs; even ones would be answers to ours.
            Control::Ping { id } if id % 2 == 1 => self.send(frame::ping(id)).await,
            Control::Ping { .. } | Control::Other => Ok(()),
        }
    }

    /// The compression state spans all blocks: none may be skipped.
    fn headers(&mut self, block: &[u8]) -> io::Result<Headers> {
        let plain = self
            .inflater
            .inflate(block)
            .ok_or_else(|| broken("malformed compression"))?;
        frame::headers(&plain).ok_or_else(|| broken("malformed headers"))
    }

    async fn open(&mut self, stream: u32, flags: u8, headers: Headers) -> io::Result<()> {
        if stream.is_multiple_of(2) || stream <= self.newest {
            return self.send(frame::reset(stream, frame::PROTOCOL_ERROR)).await;
        }
        let first = self.newest == 0;
        self.newest = stream;
        self.open.retain(|_, sender| !sender.is_closed());
        if self.open.len() >= STREAMS {
            self.newest = if first { 0 } else { stream };
            return self.send(frame::reset(stream, frame::REFUSED)).await;
        }
        let (sender, source) = mpsc::channel(QUEUE);
        if flags & frame::FIN == 0 {
            self.open.insert(stream, sender);
        }
        // The client drops data that precede the reply.
        self.send(frame::reply(stream, first)).await?;
        let sink = Sink {
            id: stream,
            queue: self.outgoing.clone(),
        };
        let opened = Opened { headers, source, sink };
        self.opened
            .send(opened)
            .await
            .map_err(|_closed| broken("nobody takes streams any more"))
    }

    async fn send(&mut self, frame: Bytes) -> io::Result<()> {
        let sent = self.outgoing.send(Outgoing::Frame(frame)).await;
        sent.map_err(|_closed| io::ErrorKind::BrokenPipe.into())
    }
}

/// Writes the streams' output, then a `GOAWAY`.
pub(super) async fn write(
    stream: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Outgoing>,
    idle: &Idle,
) -> Result<(), Gone> {
    let mut stream = BufWriter::with_capacity(CHUNK, stream);
    while let Some(next) = outgoing.recv().await {
        idle.touch();
        let written = match next {
            Outgoing::Data(id, bytes) => match stream.write_all(&frame::data(id, 0, bytes.len())).await {
                Ok(()) => stream.write_all(&bytes).await,
                Err(error) => Err(error),
            },
            Outgoing::End(id) => stream.write_all(&frame::data(id, frame::FIN, 0)).await,
            Outgoing::Frame(bytes) => stream.write_all(&bytes).await,
            // The client's streams are already open.
            Outgoing::Ping => continue,
            Outgoing::Over => break,
        };
        written.map_err(|_closed| Gone)?;
        if outgoing.is_empty() {
            stream.flush().await.map_err(|_closed| Gone)?;
        }
    }
    stream.write_all(&frame::goodbye(0)).await.map_err(|_closed| Gone)?;
    stream.shutdown().await.map_err(|_closed| Gone)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attack_streams_that_nobody_reads_hold_few_bytes_together() {
        let (near, mut far) = tokio::io::duplex(CHUNK);
        let (queue, mut outgoing) = mpsc::channel(QUEUE);
        let (sender, mut opened) = mpsc::channel(QUEUE);
        let (idle, chunk, mut taken) = (Idle::new(), vec![0; CHUNK], 0);
        let talk = async {
            for stream in (1..128).step_by(2) {
                far.write_all(&frame::open(stream, stream == 1)).await.unwrap();
                // Streams that have ended count as well.
                for flags in [0, 0, 0, 0, 0, 0, 0, frame::FIN] {
                    far.write_all(&frame::data(stream, flags, CHUNK)).await.unwrap();
                    far.write_all(&chunk).await.unwrap();
                    taken += chunk.len();
                }
            }
        };
        let keep = async {
            let mut kept = Vec::new();
            while let Some(stream) = opened.recv().await {
                kept.push(stream);
            }
        };
        let forget = async { while outgoing.recv().await.is_some() {} };
        let all = async { tokio::join!(read(near, queue, sender, &idle), talk, keep, forget) };
        let ended = tokio::time::timeout(std::time::Duration::from_secs(1), all).await;
        assert!(ended.is_err() && taken > 3 << 20 && taken < 5 << 20, "{taken} bytes");
    }

    #[tokio::test]
    async fn the_server_says_goodbye_while_the_client_is_silent() {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        queue.send(Outgoing::End(1)).await.unwrap();
        queue.send(Outgoing::Over).await.unwrap();
        let (near, mut far) = tokio::io::duplex(CHUNK);
        write(near, outgoing, &Idle::new()).await.unwrap();
        let mut said = Vec::new();
        far.read_to_end(&mut said).await.unwrap();
        let expected = [&frame::data(1, frame::FIN, 0)[..], &frame::goodbye(0)[..]].concat();
        assert_eq!(said, expected);
        drop(queue);
    }
}
