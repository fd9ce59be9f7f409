//! Puts arbitrary bytes where clients' streams come in, for tests that look for input that is not survived.

use crate::serve::streams::fuzzing;

/// Frames of SPDY.
pub async fn spdy(bytes: &[u8]) {
    fuzzing::spdy(bytes).await;
}

/// Frames of WebSocket.
pub async fn websocket(bytes: &[u8]) {
    fuzzing::websocket(bytes).await;
}
