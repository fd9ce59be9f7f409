//! Answers to paths that name no resource: health, discovery, OpenAPI, metrics and the like.

use std::borrow::Cow;

use http::request::Parts;

use crate::discovery::openapi::served;
use crate::extensions::definitions::Table;
use crate::ops::health;
use crate::ops::zpages;
use crate::request::failure::Failure;
use crate::request::query::Query;
use crate::server::blocking;
use crate::server::shared::Shared;
use crate::transport::respond::{self, Response};

/// Paths that name no resource.
pub(super) async fn other(
    shared: &Shared,
    parts: &Parts,
    segments: &[String],
    query: &Query,
) -> Result<Response, Failure> {
    if !matches!(parts.method.as_str(), "GET" | "HEAD") {
        return Err(Failure::MethodNotAllowed);
    }
    if let Some(answer) = health::answer(shared, segments, query) {
        return answer;
    }
    let path = segments.join("/");
    let table = shared.definitions.current();
    let mut discovery = Cow::Borrowed(table.discovery(&shared.options.address));
    if path.is_empty() || segments.first().is_some_and(|first| first == "apis") {
        let added = shared.aggregation.added();
        if !added.is_empty() {
            discovery = Cow::Owned(discovery.with(&added));
        }
    }
    if let Some(answer) = discovery.answer(&path, &parts.headers, query) {
        return answer;
    }
    // Documents of any size are merged and compressed.
    let weight = if path.starts_with("openapi/") { usize::MAX } else { 0 };
    let openapi = async { served::answer(shared, &table, &path, &parts.headers, query) };
    if let Some(answer) = blocking::apart(weight, openapi).await {
        return answer;
    }
    match path.as_str() {
        ".well-known/openid-configuration" | "openid/v1/jwks" => issuer(shared, &path),
        "version" => Ok(respond::indented(&shared.options.version)),
        "metrics" => Ok(respond::with_type(
            http::StatusCode::OK,
            crate::ops::metrics::CONTENT_TYPE,
            shared.metrics.text(shared).await,
        )),
        "metrics/slis" => Ok(respond::with_type(
            http::StatusCode::OK,
            crate::ops::metrics::CONTENT_TYPE,
            shared.metrics.slis.text(shared),
        )),
        "" => {
            let list = serde_json::json!({ "paths": index(shared, &table) });
            Ok(respond::indented(&list))
        }
        path if path.starts_with("debug/api_priority_and_fairness/") => {
            let page = shared.flow.page(path).ok_or(Failure::NoSuchPath)?;
            Ok(respond::text(http::StatusCode::OK, page))
        }
        path => zpages::answer(shared, path, &parts.headers, || index(shared, &table)).ok_or(Failure::NoSuchPath),
    }
}

/// Serves the documents by which others verify service account tokens.
fn issuer(shared: &Shared, path: &str) -> Result<Response, Failure> {
    let key = shared.tokens.key().ok_or(Failure::NoSuchPath)?;
    let published = key.published();
    if path.ends_with("jwks") {
        let set = respond::encode(&published);
        return Ok(respond::with_type(
            http::StatusCode::OK,
            "application/jwk-set+json",
            set,
        ));
    }
    let document = format!(
        "{{\"issuer\":{:?},\"jwks_uri\":{:?},\"response_types_supported\":[\"id_token\"],\
         \"subject_types_supported\":[\"public\"],\"id_token_signing_alg_values_supported\":[\"ES256\"]}}",
        shared.options.issuers.first().map_or("", String::as_str),
        format!("https://{}/openid/v1/jwks", shared.options.address),
    );
    Ok(respond::json(http::StatusCode::OK, document))
}

/// The list of paths at `/`.
fn index(shared: &Shared, table: &Table) -> Vec<String> {
    let fixed = [
        "/.well-known/openid-configuration",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/version",
    ];
    let named = table
        .discovery(&shared.options.address)
        .paths()
        .chain(health::paths(shared));
    let fixed = fixed.into_iter().chain(zpages::PATHS).map(str::to_owned);
    let mut paths: Vec<String> = named.chain(fixed).collect();
    paths.sort_unstable();
    paths
}
