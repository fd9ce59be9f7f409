//! WebSocket: each message begins with its channel number.

use std::collections::BTreeMap;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::debug;

use super::mux::{Gone, Idle, Outgoing, Room};

/// Channel number of a message that ends a channel, in version 5.
const END: u8 = 255;
/// Maximum length of a message.
const MESSAGE: usize = 8 << 20;
const BUFFER: usize = 32 << 10;

/// Format of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// True for text in base64 instead of bytes.
    pub(super) base64: bool,
    /// True if channels can be ended by a message.
    pub(super) ends: bool,
}

/// Returns the subprotocols that a client offers, best first.
pub(super) fn offered(request: &Request) -> Vec<String> {
    let values = request.headers().get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    texts
        .flat_map(|text| text.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Returns the headers of the response, or the error of the request.
pub(super) fn handshake(request: &Request, protocol: &str) -> Result<Vec<(HeaderName, HeaderValue)>, &'static str> {
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or("a WebSocket request needs the header Sec-WebSocket-Key")?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
    let mut headers = vec![(
        header::SEC_WEBSOCKET_ACCEPT,
        accept.map_err(|_invalid| "the header Sec-WebSocket-Key is not valid")?,
    )];
    if !protocol.is_empty() {
        let protocol = HeaderValue::from_str(protocol).map_err(|_invalid| "the subprotocol is not valid")?;
        headers.push((header::SEC_WEBSOCKET_PROTOCOL, protocol));
    }
    Ok(headers)
}

pub(super) async fn open<Transport: AsyncRead + AsyncWrite + Unpin>(io: Transport) -> WebSocketStream<Transport> {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(MESSAGE)
        .max_message_size(Some(MESSAGE))
        .max_frame_size(Some(MESSAGE));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// Passes each message to its channel until the client closes the connection. Messages for channels
/// without a reader are dropped.
pub(super) async fn read(
    mut stream: impl Stream<Item = Result<Message, Error>> + Unpin,
    form: Form,
    mut channels: BTreeMap<u8, mpsc::Sender<Bytes>>,
    idle: &Idle,
) {
    let room = Room::new();
    while let Some(message) = stream.next().await {
        idle.touch();
        let bytes = match message {
            Ok(Message::Binary(bytes)) => bytes,
            Ok(Message::Text(text)) => Bytes::from(text),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Close(_)) => return,
            Err(error) => return debug!(%error, "a WebSocket ended badly"),
        };
        let Some((channel, bytes)) = decode(form, &bytes) else {
            continue;
        };
        if form.ends && channel == END {
            if let Some(ended) = bytes.first() {
                channels.remove(ended);
            }
            continue;
        }
        if let Some(sender) = channels.get(&channel)
            && sender.send(room.hold(bytes).await).await.is_err()
        {
            channels.remove(&channel);
        }
    }
}

fn decode(form: Form, bytes: &Bytes) -> Option<(u8, Bytes)> {
    let first = *bytes.first()?;
    let rest = bytes.slice(1..);
    if form.base64 {
        Some((first.wrapping_sub(b'0'), BASE64.decode(&rest).ok()?.into()))
    } else {
        Some((first, rest))
    }
}

fn encode(form: Form, channel: u32, bytes: &[u8]) -> Message {
    let channel = u8::try_from(channel).unwrap_or(END);
    if form.base64 {
        let mut text = String::from(char::from(b'0'.wrapping_add(channel)));
        BASE64.encode_string(bytes, &mut text);
        return Message::text(text);
    }
    let mut message = BytesMut::with_capacity(bytes.len() + 1);
    message.put_u8(channel);
    message.put_slice(bytes);
    Message::Binary(message.freeze())
}

/// Writes the streams' output until all have ended, then closes.
pub(super) async fn write(
    mut sink: impl SinkExt<Message, Error = Error> + Unpin,
    form: Form,
    mut outgoing: mpsc::Receiver<Outgoing>,
    idle: &Idle,
) -> Result<(), Gone> {
    while let Some(next) = outgoing.recv().await {
        idle.touch();
        let message = match next {
            Outgoing::Data(channel, bytes) => encode(form, channel, &bytes),
            Outgoing::Ping => Message::Ping(Bytes::new()),
            // Only clients can end single channels.
            Outgoing::End(_) | Outgoing::Frame(_) => continue,
            Outgoing::Over => break,
        };
        sink.send(message).await.map_err(|_closed| Gone)?;
    }
    let close = CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    };
    sink.send(Message::Close(Some(close))).await.map_err(|_closed| Gone)?;
    sink.flush().await.map_err(|_closed| Gone)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Form, decode, encode};

    #[test]
    fn messages_carry_their_channel() {
        for base64 in [false, true] {
            let form = Form { base64, ends: true };
            for bytes in [&b"hello"[..], b"", &[0, 255, 10]] {
                let message = encode(form, 3, bytes);
                assert_eq!((message.is_text(), message.is_binary()), (base64, !base64));
                assert_eq!(
                    decode(form, &message.into_data()),
                    Some((3, Bytes::copy_from_slice(bytes)))
                );
            }
            assert_eq!(decode(form, &Bytes::new()), None);
        }
        let text = Form {
            base64: true,
            ends: false,
        };
        assert_eq!(decode(text, &Bytes::from_static(b"0!!")), None);
    }
}
