//! Messages to a client of WebSocket (RFC 6455) whose own are of no interest.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::pin;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::request::failure::Failure;

/// What a server appends to a client's key.
const SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Kinds of frames.
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Bit of a message's last frame.
const LAST: u8 = 0x80;
/// Bit of a masked payload, as all of clients are.
const MASKED: u8 = 0x80;
/// Maximum payload of a ping.
const PINGED: u64 = 125;
/// Status of a connection that has served its purpose.
const NORMAL: u16 = 1000;

/// Headers of the answer. Of the offered protocols, the first is agreed to: none changes the messages.
///
/// # Errors
/// 400 without the client's key.
pub(crate) fn headers(asked: &HeaderMap) -> Result<HeaderMap, Failure> {
    let key = asked.get(SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| Failure::bad_request("a WebSocket request needs the header Sec-WebSocket-Key"))?;
    let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), SUFFIX].concat());
    let accept = HeaderValue::from_str(&STANDARD.encode(accept)).map_err(Failure::internal)?;
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    let offered = asked.get(SEC_WEBSOCKET_PROTOCOL);
    let offered = offered.and_then(|offered| offered.to_str().ok()).unwrap_or_default();
    let first = offered.split(',').next().unwrap_or_default().trim();
    if !first.is_empty() {
        let first = HeaderValue::from_str(first).map_err(Failure::internal)?;
        headers.insert(SEC_WEBSOCKET_PROTOCOL, first);
    }
    Ok(headers)
}

/// Sends the texts and answers pings until the texts end or the client leaves.
pub(crate) async fn send(texts: impl Stream<Item = Bytes>, client: impl AsyncRead + AsyncWrite) {
    let (from, mut to) = tokio::io::split(client);
    let (pings, mut pinged) = mpsc::channel(1);
    let listening = async {
        listen(from, pings).await;
        pending::<Infallible>().await
    };
    let talking = async {
        let mut texts = pin!(texts);
        loop {
            let (kind, payload) = tokio::select! {
                ping = pinged.recv() => match ping {
                    Some(ping) => (PONG, Bytes::from(ping)),
                    None => break,
                },
                text = texts.next() => match text {
                    Some(text) => (TEXT, text),
                    None => break,
                },
            };
            if write(&mut to, kind, &payload).await.is_err() {
                return;
            }
        }
        if write(&mut to, CLOSE, &NORMAL.to_be_bytes()).await.is_ok() {
            to.shutdown().await.ok();
        }
    };
    tokio::select! {
        () = talking => {}
        never = listening => match never {},
    }
}

/// Reads until the client closes the connection.
async fn listen(mut from: impl AsyncRead + Unpin, pings: mpsc::Sender<Vec<u8>>) {
    while let Ok((kind, payload)) = read(&mut from).await {
        if kind == CLOSE || (kind == PING && pings.send(payload).await.is_err()) {
            return;
        }
    }
}

/// Reads a frame: its kind, and of a ping the payload.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Vec<u8>)> {
    let kind = from.read_u8().await? & 0x0f;
    let second = from.read_u8().await?;
    let length = match second & 0x7f {
        126 => u64::from(from.read_u16().await?),
        127 => from.read_u64().await?,
        short => u64::from(short),
    };
    let mut mask = [0; 4];
    if second & MASKED != 0 {
        from.read_exact(&mut mask).await?;
    }
    let mut rest = from.take(length);
    let mut payload = Vec::new();
    if kind == PING && length <= PINGED {
        rest.read_to_end(&mut payload).await?;
    } else {
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    }
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok((kind, payload))
}

/// Writes a message at once, so that it begins a TLS record.
async fn write(to: &mut (impl AsyncWrite + Unpin), kind: u8, payload: &[u8]) -> io::Result<()> {
    let mut message = vec![LAST | kind];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(short), _) if short < 126 => message.push(short),
        (_, Ok(middle)) => {
            message.push(126);
            message.extend(middle.to_be_bytes());
        }
        _ => {
            message.push(127);
            let long = u64::try_from(payload.len()).unwrap_or(u64::MAX);
            message.extend(long.to_be_bytes());
        }
    }
    message.extend_from_slice(payload);
    to.write_all(&message).await?;
    to.flush().await
}
