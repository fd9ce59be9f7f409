//! Logs over WebSocket: each message is a piece of the log.

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;

use super::{agreed, disagreed, refused, websocket};
use crate::serve::streams::upgrade::{self, Io};

const BINARY: &str = "binary.k8s.io";
const BASE64_TEXT: &str = "base64.binary.k8s.io";

/// True if a client requests a WebSocket.
pub(in crate::serve) fn is_wanted(request: &Request) -> bool {
    upgrade::wanted(request) == "websocket"
}

/// Sends the body, then closes.
pub(in crate::serve) fn answer(request: Request, body: Body) -> Response {
    let offered = websocket::offered(&request);
    let protocol = match agreed(&offered, &[BINARY, BASE64_TEXT]) {
        Some(protocol) => protocol,
        // Binary, if the client requests no subprotocol.
        None if offered.is_empty() => "",
        None => return disagreed(&offered, &[BINARY, BASE64_TEXT]),
    };
    let base64 = protocol == BASE64_TEXT;
    let headers = match websocket::handshake(&request, protocol) {
        Ok(headers) => headers,
        Err(why) => return refused(StatusCode::BAD_REQUEST, why),
    };
    upgrade::switch(request, "websocket", headers, move |io| send(io, body, base64))
}

async fn send(io: Io, body: Body, base64: bool) {
    let (mut sink, mut stream) = websocket::open(io).await.split();
    let message = |bytes: Bytes| {
        if base64 {
            Message::text(BASE64.encode(&bytes))
        } else {
            Message::Binary(bytes)
        }
    };
    let sending = async {
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let Ok(piece) = piece else { break };
            if sink.send(message(piece)).await.is_err() {
                return;
            }
        }
        if let Err(error) = sink.send(Message::Close(None)).await {
            debug!(%error, "a log's client was gone at its end");
        }
    };
    // The client sends nothing, but may disconnect.
    let leaving = async { while let Some(Ok(_)) = stream.next().await {} };
    tokio::select! {
        () = sending => {}
        () = leaving => {}
    }
}
