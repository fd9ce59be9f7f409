//! Encoding of objects and lists: themselves, their metadata alone, or tables; as JSON, YAML or
//! protobuf.

mod list;
mod table;

use api::managed::splice;
use api::{Object, Registration, go_json};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;
use crate::server::blocking;
use crate::transport::compress;
use crate::transport::negotiation::{Encoding, MetaVersion, Representation, Shape, accepts_gzip, negotiate_failure};
use crate::transport::respond::{self, Response, with_type};

pub(crate) use list::{Head, list};
pub(crate) use table::{IncludeObject, Row, Table, table};

/// The kind of an object's metadata alone.
pub(crate) const PARTIAL: &str = "PartialObjectMetadata";

/// Answers one object, given as its JSON.
pub(crate) async fn one(
    context: &Context,
    code: StatusCode,
    representation: Representation,
    bytes: Bytes,
) -> Result<Response, Failure> {
    let length = bytes.len();
    blocking::apart(length, async { rendered(context, code, representation, &bytes) }).await
}

fn rendered(
    context: &Context,
    code: StatusCode,
    representation: Representation,
    bytes: &[u8],
) -> Result<Response, Failure> {
    let registration = &context.registration;
    let Representation { encoding, shape } = representation;
    match shape {
        Shape::Object if encoding == Encoding::Json && code == StatusCode::OK => {
            let bytes = line(bytes);
            if bytes.len() > list::COMPRESS_OVER && accepts_gzip(&context.headers) {
                return Ok(compress::respond(code, encoding.content_type(), &bytes));
            }
            Ok(with_type(code, encoding.content_type(), bytes))
        }
        Shape::Object => {
            if encoding == Encoding::Protobuf {
                check_protobuf(registration)?;
            }
            document(encoding, code, (&registration.api_version(), registration.kind), bytes)
        }
        Shape::Metadata(version) => {
            let bytes = partial_of(bytes, version);
            document(encoding, code, (version.api_version(), PARTIAL), &bytes)
        }
        Shape::MetadataList(_) => Err(misshapen(
            "PartialObjectMetadataList",
            "not a list",
            registration,
            registration.kind,
        )),
        Shape::Table(version) => {
            let table = Table::of(context, version)?;
            let object = decode_shown(registration, bytes)?;
            let revision = object.metadata().resource_version.clone().unwrap_or_default();
            let rows = [table.row(&*object, bytes)];
            let table = table.document(&ListMeta::at(revision), &rows);
            document(encoding, code, (version.api_version(), "Table"), &table)
        }
    }
}

/// Kinds that are defined by objects have no form in protobuf.
///
/// # Errors
/// 406
pub(crate) fn check_protobuf(registration: &Registration) -> Result<(), Failure> {
    if !registration.is_defined() {
        return Ok(());
    }
    Err(Failure::NotAcceptable {
        message: "object *unstructured.Unstructured does not implement the protobuf marshalling interface and cannot be encoded \
                  to a protobuf message"
            .into(),
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
        return respond::text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    let code = StatusCode::from_u16(failure.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Failure::Overloaded { retry_after } = failure {
        let mut response = respond::text(code, format!("{failure}\n"));
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(*retry_after));
        return response;
    }
    let status = respond::encode(&failure.status());
    let encoding = negotiate_failure(accept, json);
    let plain = || respond::json(code, status.clone());
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
fn line(json: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(json.len() + 1);
    go_json::escape(json, &mut line);
    line.push(b'\n');
    line.into()
}

/// The metadata of a list, its members in upstream's order.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    remainder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_item_count: Option<usize>,
}

impl ListMeta {
    pub(crate) fn at(resource_version: String) -> Self {
        Self {
            resource_version,
            ..Self::default()
        }
    }
}

/// Decodes the fields that the cells of a table may show.
fn decode_shown(registration: &Registration, bytes: &[u8]) -> Result<Box<dyn Object>, Failure> {
    registration.decode_shown(bytes).map_err(Failure::internal)
}

fn unencodable(error: &api::protobuf::ProtobufError) -> Failure {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    Failure::internal(format_args!("{error}{}", source.unwrap_or_default()))
}

/// 406 for a shape that only lists have, or only objects.
fn misshapen(shape: &str, what: &str, registration: &Registration, kind: &str) -> Failure {
    let package = object::group_package(registration.group);
    Failure::NotAcceptable {
        message: format!("you requested {shape}, but the requested object is {what} (*{package}.{kind})").into(),
    }
}

/// An object's metadata alone, from its JSON.
pub(crate) fn partial_of(object: &[u8], version: MetaVersion) -> Vec<u8> {
    let metadata = splice::metadata(object).unwrap_or("{}");
    let api_version = version.api_version();
    format!("{{\"kind\":\"{PARTIAL}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata}}}").into_bytes()
}

/// An object's metadata alone.
pub(crate) fn partial(metadata: &ObjectMeta, version: MetaVersion) -> Value {
    json!({"kind": PARTIAL, "apiVersion": version.api_version(), "metadata": metadata})
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

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
