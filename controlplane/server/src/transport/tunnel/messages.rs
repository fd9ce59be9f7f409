//! Messages to a client of WebSocket (RFC 6455) whose own are of no interest.

use std::pin::pin;

use bytes::Bytes;
use futures::{SinkExt as _, Stream, StreamExt as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::request::failure::Failure;

/// Bytes of a client's message, which is of no interest.
const MOST: usize = 64 << 10;
/// Bytes that are read at a time.
const BUFFER: usize = 1 << 10;

/// Headers of the answer. Of the offered protocols, the first is agreed to: none changes the messages.
///
/// # Errors
/// 400 without the client's key.
pub(crate) fn headers(asked: &HeaderMap) -> Result<HeaderMap, Failure> {
    let key = asked.get(SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| Failure::bad_request("a WebSocket request needs the header Sec-WebSocket-Key"))?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(Failure::internal)?;
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
pub(crate) async fn send(texts: impl Stream<Item = Bytes>, client: impl AsyncRead + AsyncWrite + Unpin) {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(MOST))
        .max_frame_size(Some(MOST));
    let mut socket = WebSocketStream::from_raw_socket(client, Role::Server, Some(config)).await;
    let mut texts = pin!(texts);
    loop {
        tokio::select! {
            // Reading answers pings.
            read = socket.next() => match read {
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
            text = texts.next() => {
                let text = text.and_then(|text| Utf8Bytes::try_from(text).ok());
                let Some(text) = text else { break };
                if socket.send(Message::Text(text)).await.is_err() {
                    return;
                }
            }
        }
    }
    let normal = CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    };
    socket.close(Some(normal)).await.ok();
    // The library has an answer to a client's own close.
    socket.flush().await.ok();
    socket.get_mut().shutdown().await.ok();
}
