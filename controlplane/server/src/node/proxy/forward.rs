//! Forwarding of requests and answers: paths, headers, and TLS to a pod.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::links::Place;
use crate::authn::cookie;
use crate::node::agents::Stream;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::path::escape;
use crate::transport::respond::Response;
use crate::transport::tunnel;

/// Headers that are between two neighbours, not between the ends.
const OWN: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Path of the request up to `proxy`, and the rest.
pub(super) fn split(context: &Context) -> (String, String) {
    let raw = context.wire.uri.path();
    let wanted = match context.info.namespace.as_str() {
        "" => 5,
        _ => 7,
    };
    let mut at = 0;
    for (count, (index, _)) in raw.match_indices('/').enumerate() {
        if count == wanted {
            at = index;
            break;
        }
    }
    if at == 0 {
        return (raw.to_owned(), String::new());
    }
    let (prefix, path) = raw.split_at(at);
    (prefix.to_owned(), path.to_owned())
}

/// The path for the back end (`JoinPreservingTrailingSlash`): decoded, without dots and empty segments, and escaped as by Go.
fn path(context: &Context) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in &context.info.rest {
        match segment.as_str() {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let end = if context.wire.uri.path().ends_with('/') && !kept.is_empty() {
        "/"
    } else {
        ""
    };
    escape(&format!("/{}{end}", kept.join("/")))
}

/// The request as the back end gets it.
pub(super) fn request(context: &Context, prefix: &str, body: Body) -> Result<Request<Body>, Failure> {
    let query = context
        .wire
        .uri
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    let path = path(context);
    let mut request = Request::new(body);
    *request.method_mut() = context.wire.method.clone();
    *request.uri_mut() = format!("{path}{query}").parse().map_err(Failure::internal)?;
    let mut headers = context.headers.clone();
    // Credentials for the cluster must not reach the backend.
    headers.remove(AUTHORIZATION);
    let upgrade = tunnel::is_wanted(&headers)
        .then(|| headers.get(UPGRADE).cloned())
        .flatten();
    strip(&mut headers);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::from_static("localhost"));
    }
    // Upstream takes X-Forwarded-Host and -Proto from the URL of its request, which has neither.
    if let Ok(uri) = HeaderValue::from_str(&format!("{prefix}{path}")) {
        headers.insert("x-forwarded-uri", uri);
    }
    if let Some(source) = context.wire.source {
        let before = headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let own = source.0.ip().to_string();
        let all = before.map_or_else(|| own.clone(), |before| format!("{before}, {own}"));
        headers.insert(
            "x-forwarded-for",
            HeaderValue::from_str(&all).map_err(Failure::internal)?,
        );
    }
    *request.headers_mut() = headers;
    Ok(request)
}

/// Removes them, and what would govern this server's origin.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OWN) {
        headers.remove(name);
    }
    cookie::protect_origin(headers);
}

/// Removes the headers by which a back end would let pages of other origins read this server's answers
/// (`removeCORSHeaders` of `staging/src/k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go`).
pub(crate) fn forbid_sharing(headers: &mut HeaderMap) {
    let names = headers
        .keys()
        .filter(|name| name.as_str().starts_with("access-control-"));
    for name in names.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// The answer as the client gets it.
pub(super) async fn answer(answer: Response, place: &Place) -> Response {
    let (mut parts, body) = answer.into_parts();
    strip(&mut parts.headers);
    forbid_sharing(&mut parts.headers);
    let Some(location) = parts.headers.get(LOCATION) else {
        return place.rewritten(parts, body).await;
    };
    let location = location.to_str().ok().and_then(|location| place.relocated(location));
    if let Some(Ok(location)) = location.map(|text| HeaderValue::from_str(&text)) {
        parts.headers.insert(LOCATION, location);
    }
    Response::from_parts(parts, body)
}

/// Headers of an answer that switches protocols.
pub(crate) fn switched(headers: &HeaderMap) -> HeaderMap {
    let mut all = headers.clone();
    let upgrade = all.get(UPGRADE).cloned();
    strip(&mut all);
    all.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(upgrade) = upgrade {
        all.insert(UPGRADE, upgrade);
    }
    all
}

/// TLS to a pod. The connection goes through the agent; the pod's certificate would prove nothing
/// more.
pub(super) async fn secure(stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
    let config = common_tls::trusting().map_err(io::Error::other)?;
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Box::new(stream))
}
