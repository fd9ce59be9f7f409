//! `/exec`, `/attach` and `/portForward`: streams of a client over WebSocket, SPDY, or SPDY inside
//! WebSocket.
//!
//! The API server passes a client's connection through unchanged, so these protocols are terminated
//! only here.

mod command;
mod dial;
mod forward;
pub(crate) mod fuzzing;
pub(in crate::serve) mod log;
mod mux;
mod remote;
mod signs;
mod spdy;
pub(super) mod upgrade;
mod websocket;

use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};

pub(super) use command::{attach, exec};
pub(super) use dial::{dial, dial_node, reach};
pub(super) use forward::forward;

/// Header with the protocol versions of a SPDY client, best first, or of the response.
const VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// Returns the first of a client's protocols that is supported.
fn agreed<'a>(offered: &[String], known: &[&'a str]) -> Option<&'a str> {
    offered
        .iter()
        .find_map(|name| known.iter().copied().find(|known| known == name))
}

/// Returns the versions that a SPDY client offers.
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
