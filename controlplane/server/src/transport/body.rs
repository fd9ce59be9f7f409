//! Request bodies: bounded reading, and from any accepted media type to JSON bytes.

pub(crate) mod syntax;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use serde::de::IgnoredAny;

use crate::request::failure::Failure;

/// Bytes that a body may have.
pub const LIMIT: usize = 3 * 1024 * 1024;
/// Accepted media types of objects, as listed in a 415.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Reads a whole body.
///
/// # Errors
/// 413 over [`LIMIT`], 400 when the client breaks off.
pub async fn read(body: Body) -> Result<Bytes, Failure> {
    match ahead(body).await? {
        (bytes, None) => Ok(bytes),
        (_, Some(_)) => Err(Failure::TooLarge { limit: LIMIT }),
    }
}

/// Body of which up to [`LIMIT`] has arrived.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Whole body, from its beginning.
    pub(crate) body: Body,
    /// True if all of it has arrived.
    pub(crate) is_whole: bool,
}

/// Reads a body up to [`LIMIT`].
///
/// # Errors
/// 400 when the client breaks off.
pub(crate) async fn begin(body: Body) -> Result<Begun, Failure> {
    let (bytes, rest) = ahead(body).await?;
    let is_whole = rest.is_none();
    let body = match rest {
        None => Body::from(bytes),
        Some(rest) => {
            let begun = futures::stream::iter([Ok(bytes)]);
            Body::from_stream(begun.chain(rest.into_data_stream()))
        }
    };
    Ok(Begun { body, is_whole })
}

/// Reads the bytes of a body until there are more than [`LIMIT`]; then the rest comes besides. Copies
/// frames together, as a frame of one byte can hold a whole buffer.
async fn ahead(mut body: Body) -> Result<(Bytes, Option<Body>), Failure> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::bad_request(format!("unable to read the request body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.is_empty() && data.len() <= LIMIT && body.is_end_stream() {
            return Ok((data, None));
        }
        all.extend_from_slice(&data);
        if all.len() > LIMIT {
            return Ok((all.freeze(), Some(body)));
        }
    }
    Ok((all.freeze(), None))
}

/// Body as JSON, with strict decoding errors.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    /// JSON of the object.
    pub(crate) json: Bytes,
    /// Paths of members that occur twice.
    pub(crate) duplicates: Vec<String>,
    /// Strict decoding errors of YAML, which its JSON no longer shows, with upstream's messages.
    pub(crate) lines: Vec<String>,
}

/// The media type of a body without parameters, in small letters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let header = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Turns a body into JSON bytes, by its `Content-Type`; without one it is JSON. It should be of this kind.
///
/// # Errors
/// 415 for other types, 400 for parse errors.
pub(crate) fn to_json(
    headers: &HeaderMap,
    body: Bytes,
    kind: &str,
    report_duplicates: bool,
) -> Result<Decoded, Failure> {
    match media_type(headers).as_str() {
        "" | "application/json" | "text/json" => {
            check_bounds(&body)?;
            let body = repaired(body)?;
            let duplicates = if report_duplicates {
                api::strict::duplicates(&body).map_err(|error| syntax::no_json(kind, &body, &error))?
            } else {
                serde_json::from_slice::<IgnoredAny>(&body).map_err(|error| syntax::no_json(kind, &body, &error))?;
                Vec::new()
            };
            Ok(Decoded {
                json: body,
                duplicates,
                lines: Vec::new(),
            })
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            let yaml = api::yaml::to_json(&body).map_err(|error| syntax::unrecognized(kind, &body, &error))?;
            Ok(Decoded {
                json: bounded(&yaml.value)?,
                duplicates: Vec::new(),
                lines: if report_duplicates {
                    yaml.duplicates.iter().map(ToString::to_string).collect()
                } else {
                    Vec::new()
                },
            })
        }
        "application/vnd.kubernetes.protobuf" => {
            let decoded = api::protobuf::decode(&body).map_err(|error| syntax::unrecognized(kind, &body, &error))?;
            Ok(Decoded {
                json: bounded(&decoded.json)?,
                duplicates: Vec::new(),
                lines: Vec::new(),
            })
        }
        _ => Err(Failure::UnsupportedMediaType { accepted: ACCEPTED }),
    }
}

/// JSON with its texts as upstream reads them.
///
/// # Errors
/// 413 where that makes too much of it.
pub(crate) fn repaired(body: Bytes) -> Result<Bytes, Failure> {
    match api::decode::repair::strings(&body) {
        None => Ok(body),
        Some(longer) if longer.len() > LIMIT => Err(Failure::TooLarge { limit: LIMIT }),
        Some(repaired) => Ok(repaired.into()),
    }
}

/// A body of another form as JSON, with the bounds that JSON has.
fn bounded(value: &serde_json::Value) -> Result<Bytes, Failure> {
    let json = value.to_string();
    check_bounds(json.as_bytes())?;
    Ok(json.into())
}

fn unreadable(error: &dyn std::fmt::Display) -> Failure {
    Failure::bad_request(format!("error decoding the request body: {error}"))
}

/// Like [`check_bounds`], for JSON patches.
pub(crate) fn check_operations(json: &[u8]) -> Result<(), Failure> {
    api::bounds::check_operations(json).map_err(|exceeded| unreadable(&exceeded))
}

/// Refuses JSON that nests too deeply or would grow too much when it is decoded. One pass, no memory.
pub(crate) fn check_bounds(json: &[u8]) -> Result<(), Failure> {
    api::bounds::check(json).map_err(|exceeded| unreadable(&exceeded))
}
