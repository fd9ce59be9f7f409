//! `/exec`, `/attach` and `/portForward`: streams of a client over WebSocket, SPDY, or SPDY inside WebSocket.
//!
//! The API server hands a client's connection through as it is, so this is the one place where these protocols end.

mod command;
mod dial;
mod forward;
pub(crate) mod fuzzing;
pub(in crate::serve) mod log;
mod mux;
mod remote;
mod signs;
mod spdy;
mod websocket;

use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};

pub(super) use command::{attach, exec};
pub(super) use dial::{dial, dial_node};
pub(super) use forward::forward;

/// Versions of a SPDY client's protocol, best first; and the answer's.
const VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The first of a client's protocols that is known here.
fn agreed<'a>(offered: &[String], known: &[&'a str]) -> Option<&'a str> {
    offered
        .iter()
        .find_map(|name| known.iter().copied().find(|known| known == name))
}

/// Versions that a SPDY client offers.
fn versions(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(VERSION).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

fn refused(code: StatusCode, text: impl Into<String>) -> Response {
    (code, text.into()).into_response()
}

fn disagreed(offered: &[String], known: &[&str]) -> Response {
    let text = format!(
        "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
        offered.join(" "),
        known.join(" ")
    );
    refused(StatusCode::FORBIDDEN, text)
}
