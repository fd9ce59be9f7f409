//! Encoding of objects and lists: themselves, their metadata alone, or tables; as JSON, YAML or
//! protobuf.

mod list;
mod table;

use api::managed::splice;
use api::{Object, Registration};
use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;
use crate::server::blocking;
use crate::transport::compress;
use crate::transport::negotiation::{Encoding, MetaVersion, Representation, Shape, accepts_gzip};
use crate::transport::respond::{Response, document, line, with_type};

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
