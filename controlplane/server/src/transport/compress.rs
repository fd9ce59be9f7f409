//! gzip for large answers.

use std::io::{self, Write};

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, VARY};
use http::{HeaderValue, StatusCode};

use crate::transport::respond::{Response, with_type};

/// Compresses bytes; fast rather than small, as upstream does.
pub(crate) fn gzip(bytes: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// Compresses a body chunk by chunk.
pub(crate) fn stream(mut chunks: impl Iterator<Item = io::Result<Bytes>>) -> impl Iterator<Item = io::Result<Bytes>> {
    let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    std::iter::from_fn(move || {
        loop {
            let current = encoder.as_mut()?;
            let compressed = match chunks.next() {
                Some(chunk) => chunk.and_then(|chunk| {
                    current.write_all(&chunk)?;
                    Ok(std::mem::take(current.get_mut()))
                }),
                None => encoder.take()?.finish(),
            };
            match compressed {
                Ok(bytes) if bytes.is_empty() && encoder.is_some() => {}
                Ok(bytes) => return Some(Ok(bytes.into())),
                Err(error) => {
                    encoder = None;
                    return Some(Err(error));
                }
            }
        }
    })
}

/// A compressed answer; plain if it cannot be compressed.
pub(crate) fn respond(code: StatusCode, content_type: &'static str, bytes: &Bytes) -> Response {
    match gzip(bytes) {
        Some(compressed) => compressed_response(code, content_type, compressed),
        None => with_type(code, content_type, bytes.clone()),
    }
}

/// An answer from bytes that are compressed already.
pub(crate) fn compressed_response(
    code: StatusCode,
    content_type: &'static str,
    compressed: impl Into<Body>,
) -> Response {
    let mut response = with_type(code, content_type, compressed);
    response
        .headers_mut()
        .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}
