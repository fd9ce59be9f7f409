//! Answers with documents, in the forms that clients accept.

use std::io::{self, Read, Write as _};
use std::sync::Arc;

use api::Registration;
use api::openapi::Defined;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{CACHE_CONTROL, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use k8s_openapi::jiff::SignedDuration;
use k8s_openapi::jiff::fmt::rfc2822::DateTimePrinter;

use super::described::Described;
use super::{Document, Documents, defined};
use crate::extensions::definitions::{Table, published_schema};
use crate::request::failure::Failure;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::transport::compress;
use crate::transport::negotiation::{accepts_gzip, clauses};
use crate::transport::respond::{Response, json, with_type};

const JSON: &str = "application/json";
/// Media types that clients request; the answer spells them so that parsers of media types accept
/// them.
const V2_PROTOBUF: [&str; 2] = [
    "com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
const V3_PROTOBUF: [&str; 2] = [
    "com.github.proto-openapi.spec.v3@v1.0+protobuf",
    "com.github.proto-openapi.spec.v3.v1.0+protobuf",
];

/// Answers an OpenAPI path; `None` for other paths.
pub(crate) fn answer(
    shared: &Shared,
    table: &Table,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
) -> Option<Result<Response, Failure>> {
    let rest = path.strip_prefix("openapi/")?;
    let merged = shared.aggregation.documents(table);
    let documents = merged.as_deref().unwrap_or_else(|| table.documents());
    match rest {
        "v2" => Some(v2((shared, table), documents, headers)),
        "v3" => Some(Ok(index(documents, headers))),
        _ => {
            let wanted = rest.strip_prefix("v3/")?;
            let own = documents.program.versions().iter().chain(&*documents.defined);
            let (path, forms) = documents.converted.iter().chain(own).find(|(path, _)| path == wanted)?;
            Some(v3((shared, table, documents), path, forms, headers, query))
        }
    }
}

fn index(documents: &Documents, headers: &HeaderMap) -> Response {
    let etag = format!("\"{}\"", documents.index_hash);
    let mut response = if is_known(&etag, headers) {
        with_type(StatusCode::NOT_MODIFIED, JSON, Bytes::new())
    } else {
        json(StatusCode::OK, documents.index.clone())
    };
    set(&mut response, ETAG, &etag);
    response
}

fn v3(
    (shared, table, documents): (&Shared, &Table, &Documents),
    path: &str,
    [document, protobuf]: &[Document; 2],
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let Some(in_protobuf) = prefers_protobuf(headers, V3_PROTOBUF) else {
        return Ok(not_acceptable());
    };
    let asked = query.text("hash").filter(|hash| !hash.is_empty());
    if asked.is_some_and(|asked| asked != document.hash) {
        // The client knows an older one.
        let mut response = with_type(StatusCode::MOVED_PERMANENTLY, JSON, Bytes::new());
        let location = format!("/openapi/v3/{path}?hash={}", document.hash);
        set(&mut response, LOCATION, &location);
        return Ok(response);
    }
    let rows = defined(&table.kinds).remove(path);
    let schema = |row: &Registration| published_schema(&shared.store, row);
    let own = rows.as_ref().map(|rows| Defined {
        rows: rows.iter().map(|row| &**row).collect(),
        schema: &schema,
    });
    let is_meant = |own: &&Arc<Described>| own.converted().is_some_and(|(own, _)| own == path);
    let other = || documents.others.iter().find(is_meant).and_then(|own| own.v2());
    let mut response = if in_protobuf {
        served(protobuf, api::openapi::V3_PROTOBUF_MEDIA_TYPE, headers, |out| {
            let whole = match (other(), &own) {
                (Some(other), _) => other.v3_protobuf(),
                (None, Some(own)) => own.v3_protobuf(),
                (None, None) => api::openapi::v3_protobuf(api::KINDS, path).unwrap_or_default(),
            };
            out.write_all(&whole)
        })?
    } else {
        served(document, JSON, headers, |out| {
            let whole = match (other(), &own) {
                (Some(other), _) => other.v3_document(),
                (None, Some(own)) => own.v3_document(),
                (None, None) => api::openapi::v3_document(api::KINDS, path).unwrap_or_default(),
            };
            serde_json::to_writer(out, &whole).map_err(io::Error::from)
        })?
    };
    if asked.is_some() {
        // The hash in the path identifies the document, which never changes.
        set(&mut response, CACHE_CONTROL, "public, immutable");
        let year = (shared.options.clock)() + SignedDuration::from_hours(365 * 24);
        let year = DateTimePrinter::new().timestamp_to_rfc9110_string(&year);
        set(&mut response, EXPIRES, &year.unwrap_or_default());
    } else {
        set(&mut response, CACHE_CONTROL, "no-cache, private");
    }
    Ok(response)
}

fn v2((shared, table): (&Shared, &Table), documents: &Documents, headers: &HeaderMap) -> Result<Response, Failure> {
    let rows = defined(&table.kinds);
    let schema = |row: &Registration| published_schema(&shared.store, row);
    let own = rows.values().map(|rows| Defined {
        rows: rows.iter().map(|row| &**row).collect(),
        schema: &schema,
    });
    let own: Vec<Defined<'_>> = own.collect();
    let others = || documents.others.iter().filter_map(|own| own.v2()).collect();
    match prefers_protobuf(headers, V2_PROTOBUF) {
        Some(false) => served(&documents.v2, JSON, headers, |out| {
            api::openapi::v2_json(api::KINDS, &own, others(), out)
        }),
        Some(true) => {
            let media_type = api::openapi::V2_PROTOBUF_MEDIA_TYPE;
            served(&documents.v2_protobuf, media_type, headers, |out| {
                api::openapi::v2_protobuf(api::KINDS, &own, others(), out)
            })
        }
        None => Ok(not_acceptable()),
    }
}

/// True if the client prefers protobuf, by these names, over JSON; `None` when it accepts neither.
fn prefers_protobuf(headers: &HeaderMap, names: [&str; 2]) -> Option<bool> {
    clauses(headers).iter().find_map(|clause| {
        if clause.matches("application", "json") {
            return Some(false);
        }
        let takes = names.iter().any(|name| clause.matches("application", name));
        takes.then_some(true)
    })
}

/// Upstream has no message for this.
fn not_acceptable() -> Response {
    let mut response = Response::new(axum::body::Body::empty());
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
}

/// The document, or that the client knows it.
fn served(
    document: &Document,
    media_type: &'static str,
    headers: &HeaderMap,
    write: impl FnOnce(&mut GzEncoder<Vec<u8>>) -> io::Result<()>,
) -> Result<Response, Failure> {
    let etag = document.etag();
    let mut response = if is_known(&etag, headers) {
        with_type(StatusCode::NOT_MODIFIED, media_type, Bytes::new())
    } else {
        let compressed = document.compressed.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            // Nothing that writes to memory fails.
            let written = write(&mut encoder).and_then(|()| encoder.finish());
            let mut bytes = written.unwrap_or_default();
            bytes.shrink_to_fit();
            bytes.into()
        });
        inflated(compressed, media_type, headers)?
    };
    set(&mut response, ETAG, &etag);
    set(&mut response, VARY, "Accept, Accept-Encoding");
    Ok(response)
}

fn is_known(etag: &str, headers: &HeaderMap) -> bool {
    let tags = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    tags.into_iter()
        .flat_map(|tags| tags.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == etag || tag == "*")
}

fn set(response: &mut Response, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn inflated(document: &Bytes, media_type: &'static str, headers: &HeaderMap) -> Result<Response, Failure> {
    if accepts_gzip(headers) {
        return Ok(compress::compressed_response(
            StatusCode::OK,
            media_type,
            document.clone(),
        ));
    }
    let mut plain = Vec::new();
    GzDecoder::new(&**document)
        .read_to_end(&mut plain)
        .map_err(Failure::internal)?;
    Ok(with_type(StatusCode::OK, media_type, plain))
}
