//! `/openapi/v2` and `/openapi/v3`.
//!
//! Documents are large and follow from the table of kinds: each is made when it is first asked for and kept compressed.

use std::io::Read;
use std::sync::OnceLock;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::compress;
use crate::failure::Failure;
use crate::negotiation::{accepts_gzip, clauses};
use crate::query::Query;
use crate::respond::{Response, json, with_type};
use crate::server::Shared;

/// Documents, made when they are first asked for.
pub(crate) struct Documents {
    index: Bytes,
    /// Path (`apis/apps/v1`), hash, and the compressed document.
    v3: Vec<(String, String, OnceLock<Bytes>)>,
    v2: OnceLock<Bytes>,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let v3 = api::openapi::group_versions(api::KINDS).into_iter().map(|path| {
            let hash = api::openapi::hash(api::KINDS, &path);
            (path, hash, OnceLock::new())
        });
        Self {
            index: api::openapi::v3_index(api::KINDS).to_string().into(),
            v3: v3.collect(),
            v2: OnceLock::new(),
        }
    }
}

/// Answers a path of OpenAPI, or nothing when it is none.
pub(crate) fn answer(
    shared: &Shared,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
) -> Option<Result<Response, Failure>> {
    let rest = path.strip_prefix("openapi/")?;
    let documents = &shared.documents;
    match rest {
        "v2" => Some(v2(documents, headers)),
        "v3" => Some(Ok(json(StatusCode::OK, documents.index.clone()))),
        _ => {
            let wanted = rest.strip_prefix("v3/")?;
            let (path, hash, document) = documents.v3.iter().find(|(path, ..)| path == wanted)?;
            let document = document.get_or_init(|| {
                compressed(
                    &api::openapi::v3_document(api::KINDS, path)
                        .unwrap_or_default()
                        .to_string(),
                )
            });
            Some(v3(document, hash, headers, query))
        }
    }
}

fn compressed(text: &str) -> Bytes {
    compress::gzip(text.as_bytes()).unwrap_or_default()
}

fn v3(document: &Bytes, hash: &str, headers: &HeaderMap, query: &Query) -> Result<Response, Failure> {
    let etag = format!("\"{hash}\"");
    let fresh = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|tag| tag.as_bytes() == etag.as_bytes());
    let mut response = if fresh {
        with_type(StatusCode::NOT_MODIFIED, "application/json", Bytes::new())
    } else {
        inflated(document, headers)?
    };
    let headers = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    // A path with the right hash names one document for ever.
    let lasting = query.text("hash") == Some(hash);
    let control = if lasting {
        "public, immutable"
    } else {
        "no-cache, private"
    };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(control));
    Ok(response)
}

fn inflated(document: &Bytes, headers: &HeaderMap) -> Result<Response, Failure> {
    if accepts_gzip(headers) {
        return Ok(compress::compressed_response(
            StatusCode::OK,
            "application/json",
            document.clone(),
        ));
    }
    let mut plain = Vec::new();
    GzDecoder::new(&**document)
        .read_to_end(&mut plain)
        .map_err(Failure::internal)?;
    Ok(json(StatusCode::OK, plain))
}

/// Old clients ask for protobuf here and are content with a document without content; others get the schemas as JSON.
fn v2(documents: &Documents, headers: &HeaderMap) -> Result<Response, Failure> {
    for clause in clauses(headers) {
        if clause.kind == "application" && clause.subtype.starts_with("com.github.proto-openapi.spec.v2") {
            return Ok(with_type(
                StatusCode::OK,
                api::openapi::V2_PROTOBUF_MEDIA_TYPE,
                Bytes::new(),
            ));
        }
        if clause.matches("application", "json") {
            return inflated(
                documents.v2.get_or_init(|| compressed(&v2_document().to_string())),
                headers,
            );
        }
    }
    Err(Failure::accepts_only(
        "application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    ))
}

/// The schemas of all v3 documents under their v2 names.
fn v2_document() -> Value {
    let mut definitions = Map::new();
    for path in api::openapi::group_versions(api::KINDS) {
        let mut document = api::openapi::v3_document(api::KINDS, &path).unwrap_or_default();
        if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas").map(Value::take) {
            definitions.extend(schemas);
        }
    }
    let mut definitions = Value::Object(definitions);
    rename_references(&mut definitions);
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": {},
        "definitions": definitions,
    })
}

fn rename_references(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(rename_references),
        Value::Array(items) => items.iter_mut().for_each(rename_references),
        Value::String(text) => {
            if let Some(name) = text.strip_prefix("#/components/schemas/") {
                *text = format!("#/definitions/{name}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
