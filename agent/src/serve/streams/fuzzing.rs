//! Entry points for fuzzing with arbitrary frames of clients.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::mux::{Idle, QUEUE, Source};
use super::{spdy, websocket};

/// Serves a SPDY connection with these bytes; streams are accepted and dropped.
pub(crate) async fn spdy(bytes: &[u8]) {
    let (outgoing, mut frames) = mpsc::channel(QUEUE);
    let (opened, mut streams) = mpsc::channel(QUEUE);
    let idle = Idle::new();
    let read = spdy::read(bytes, outgoing, opened, &idle);
    let written = async { while frames.recv().await.is_some() {} };
    let taken = async {
        let mut readers = FuturesUnordered::new();
        let mut number = 0_usize;
        loop {
            tokio::select! {
                biased;
                Some(()) = readers.next() => {}
                stream = streams.recv() => match stream {
                    // Every other stream is dropped at once.
                    Some(stream) => {
                        number += 1;
                        if number.is_multiple_of(2) {
                            readers.push(drain(stream.source));
                        }
                    }
                    None => return,
                },
            }
        }
    };
    tokio::join!(read, written, taken);
}

async fn drain(mut source: Source) {
    while source.recv().await.is_some() {}
}

/// Serves a WebSocket connection with these bytes.
pub(crate) async fn websocket(bytes: &[u8]) {
    for base64 in [false, true] {
        let form = websocket::Form { base64, ends: !base64 };
        let connection = tokio::io::join(bytes, tokio::io::sink());
        let stream = websocket::open(connection).await;
        let (sender, mut channel) = mpsc::channel::<Bytes>(QUEUE);
        let channels = BTreeMap::from([(0, sender.clone()), (4, sender)]);
        let idle = Idle::new();
        let (_, incoming) = stream.split();
        let read = websocket::read(incoming, form, channels, &idle);
        let taken = async { while channel.recv().await.is_some() {} };
        tokio::join!(read, taken);
    }
}
