//! Puts arbitrary bytes where requests come in, for tests that look for input that is not survived.

use std::sync::OnceLock;

use api::Row;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::Value;

use crate::authn::tokens::{self, SigningKey};
use crate::request::info::RequestInfo;
use crate::request::path;
use crate::request::query::Query;
use crate::request::selection::Selection;
use crate::transport::tunnel::frames::Frames;
use crate::write::patch::Patch;

/// Reads `METHOD PATH?QUERY`.
///
/// # Panics
/// When a segment could stand for another place than its own.
pub fn request(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (method, rest) = text.split_once(' ').unwrap_or(("GET", &text));
    let (path, query) = rest
        .split_once('?')
        .map_or((rest, None), |(path, query)| (path, Some(query)));
    let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET);
    let (Ok(segments), Ok(query)) = (path::segments(path), Query::parse(query)) else {
        return;
    };
    // Segments must not escape their path, except behind a proxy, where they belong to another
    // server.
    let own = segments.iter().enumerate().filter(|(index, _)| {
        let before = segments.get(..*index).unwrap_or_default();
        !path::is_behind_proxy(before)
    });
    let mut own = own.map(|(_, segment)| segment);
    assert!(
        own.all(|segment| segment != ".." && !segment.contains('/')),
        "{segments:?}"
    );
    let Ok(info) = RequestInfo::new(&method, &segments, &query) else {
        return;
    };
    if let Some(registration) = api::find(&info.group, &info.version, &info.resource) {
        drop(Selection::read(&Row::Program(registration), &query));
    }
}

/// Checks a token that is not signed by the key.
///
/// # Panics
/// When it is taken for a good one.
pub fn token(bytes: &[u8]) {
    static KEY: OnceLock<Option<SigningKey>> = OnceLock::new();
    let new = || SigningKey::from_pem(&SigningKey::generate().ok()?).ok();
    let text = String::from_utf8_lossy(bytes);
    if let Some(key) = KEY.get_or_init(new) {
        assert!(key.verify(&text).is_none(), "{text} is good");
    }
    // The claims alone, as if they were signed.
    tokens::fuzz(bytes);
}

/// Follows the frames of an upgraded connection, cut up at every place that the first byte gives.
///
/// # Panics
/// When they stand still or go beyond what is there.
pub fn frames(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else {
        return;
    };
    let mut frames = Frames::default();
    for chunk in bytes.chunks(usize::from(*step) + 1) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let taken = frames.advance(rest);
            assert!(taken > 0 && taken <= rest.len(), "{taken} of {}", rest.len());
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
}

/// Applies a patch to a pod; the first byte selects the patch type.
pub fn patch(bytes: &[u8]) {
    const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"finalizers":["a/b"]},
        "spec":{"containers":[{"name":"c","image":"i","env":[{"name":"E","value":"1"}],"ports":[{"containerPort":1}]}],
        "volumes":[{"name":"v","emptyDir":{}}],"tolerations":[{"key":"k"}]}}"#;
    let Some((kind, body)) = bytes.split_first() else {
        return;
    };
    let kind = match kind % 3 {
        0 => "application/json-patch+json",
        1 => "application/merge-patch+json",
        _ => "application/strategic-merge-patch+json",
    };
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    let Some(registration) = api::find_kind("", "v1", "Pod") else {
        return;
    };
    let Ok(patch) = Patch::read(registration, &headers, &Bytes::copy_from_slice(body)) else {
        return;
    };
    let mut document: Value = serde_json::from_str(POD).unwrap_or_default();
    if patch.apply("v1", "Pod", &mut document).is_ok() {
        drop(registration.decode_reporting(document.to_string().as_bytes()));
    }
}
