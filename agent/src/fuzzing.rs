//! Entry points for fuzzing the clients' streams with arbitrary bytes.

use crate::serve::streams::fuzzing;

/// SPDY frames.
pub async fn spdy(bytes: &[u8]) {
    fuzzing::spdy(bytes).await;
}

/// WebSocket frames.
pub async fn websocket(bytes: &[u8]) {
    fuzzing::websocket(bytes).await;
}
