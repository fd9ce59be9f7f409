//! Answers: status, headers and bodies.

use std::collections::BTreeSet;

use api::go_json;
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use serde::Serialize;
use serde_json::Value;

use crate::request::failure::Failure;
use crate::transport::negotiation::{Encoding, negotiate_failure};

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
    go_json::encode(value).into()
}

/// Indented JSON, regardless of `Accept` (`WriteRawJSON` in
/// `staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/writers.go`).
pub(crate) fn indented(value: &impl Serialize) -> Response {
    json(StatusCode::OK, go_json::indent(&encode(value), 0))
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

/// Answers a `Status`.
pub(crate) fn status(encoding: Encoding, code: StatusCode, bytes: &[u8]) -> Result<Response, Failure> {
    document(encoding, code, ("v1", "Status"), bytes)
}

/// A failure as the client sees it, in the encoding that its `Accept` asks for; `json` is how JSON
/// is written to it.
pub(crate) fn failure(failure: &Failure, accept: Option<&HeaderValue>, json: Encoding) -> Response {
    if matches!(failure, Failure::NoSuchPath) {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    let code = StatusCode::from_u16(failure.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Failure::Overloaded { retry_after } = failure {
        let mut response = text(code, format!("{failure}\n"));
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(*retry_after));
        return response;
    }
    let status = encode(&failure.status());
    let encoding = negotiate_failure(accept, json);
    let plain = || self::json(code, status.clone());
    let mut response = self::status(encoding, code, &status).unwrap_or_else(|_unencodable| plain());
    if let Some(seconds) = failure.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Answers a document of a group version and kind, given as its JSON.
pub(crate) fn document(
    encoding: Encoding,
    code: StatusCode,
    (api_version, kind): (&str, &str),
    bytes: &[u8],
) -> Result<Response, Failure> {
    let bytes = match encoding {
        Encoding::Json => line(bytes),
        Encoding::PrettyJson => go_json::indent(bytes, 0).into(),
        Encoding::Yaml => {
            let value: Value = serde_json::from_slice(bytes).map_err(Failure::internal)?;
            api::yaml::emit::document(&value).into()
        }
        Encoding::Protobuf => api::protobuf::encode(api_version, kind, bytes)
            .map_err(|error| unencodable(&error))?
            .into(),
    };
    Ok(with_type(code, encoding.content_type(), bytes))
}

/// JSON as Go's encoder writes it: escaped, with an end of the line.
pub(crate) fn line(json: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(json.len() + 1);
    go_json::escape(json, &mut line);
    line.push(b'\n');
    line.into()
}

/// 500 for an object that has no form in protobuf.
pub(crate) fn unencodable(error: &api::protobuf::ProtobufError) -> Failure {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    Failure::internal(format_args!("{error}{}", source.unwrap_or_default()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_comes_too_often_is_told_in_plain_text() {
        let response = failure(&Failure::OVERLOADED, None, Encoding::Json);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        assert_eq!(body, "Too many requests, please try again later.\n");
    }
}
