//! Answers: status, headers and bodies.

use std::collections::BTreeSet;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, WARNING};
use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use serde::Serialize;

/// Response that every handler returns.
pub type Response = http::Response<Body>;

/// JSON bytes with a status.
pub(crate) fn json(code: StatusCode, body: impl Into<Body>) -> Response {
    with_type(code, "application/json", body)
}

/// Bytes of a media type.
pub(crate) fn with_type(code: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Plain text.
pub(crate) fn text(code: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = with_type(code, "text/plain; charset=utf-8", text);
    response
        .headers_mut()
        .insert("X-Content-Type-Options", HeaderValue::from_static("nosniff"));
    response
}

/// JSON of a value that always encodes: `Status`, reviews, discovery.
pub(crate) fn encode(value: &impl Serialize) -> Bytes {
    api::go_json::encode(value).into()
}

/// Indented JSON, regardless of `Accept` (`WriteRawJSON` in
/// `staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/writers.go`).
pub(crate) fn indented(value: &impl Serialize) -> Response {
    json(StatusCode::OK, api::go_json::indent(&encode(value), 0))
}

/// Success without an object: a `Status`, with details where they are given.
pub(crate) fn success(code: u16, details: Option<StatusDetails>) -> Bytes {
    encode(&Status {
        code: (code != 200).then_some(i32::from(code)),
        details,
        status: Some("Success".to_owned()),
        ..Status::default()
    })
}

/// Characters of warnings that are sent in full; beyond that each is truncated, and the excess is
/// dropped.
const WARNINGS: usize = 4096;
/// Length to which each warning is truncated.
const WARNING_CUT: usize = 256;

/// Adds `Warning: 299 - "…"` headers, as clients print them: each text once, bounded as upstream bounds them.
pub(crate) fn add_warnings(response: &mut Response, warnings: &[String]) {
    let mut said = BTreeSet::new();
    let distinct: Vec<&str> = warnings
        .iter()
        .map(String::as_str)
        .filter(|warning| said.insert(*warning))
        .collect();
    let all: usize = distinct.iter().map(|warning| warning.chars().count()).sum();
    let mut room = WARNINGS;
    for warning in distinct {
        let text: String = if all > WARNINGS {
            warning.chars().take(WARNING_CUT).collect()
        } else {
            warning.to_owned()
        };
        let Some(left) = room.checked_sub(text.chars().count()) else {
            return;
        };
        room = left;
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {}", quote(&text))) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// A quoted string of RFC 7230.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars().filter(|character| !character.is_control()) {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}
