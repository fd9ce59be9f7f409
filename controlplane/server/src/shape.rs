//! Objects and lists on their way out: themselves, their metadata alone, or tables; as JSON or YAML.

mod table;

use std::convert::Infallible;

use api::{Object, Registration};
use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::compress;
use crate::context::Context;
use crate::failure::Failure;
use crate::negotiation::{Encoding, MetaVersion, Representation, Shape, accepts_gzip};
use crate::respond::{Response, encode, with_type};
use crate::verbs::list::Head;

pub(crate) use table::{IncludeObject, Table};

/// Bytes of one chunk of a long list.
const CHUNK: usize = 256 * 1024;
/// Answers over this size are compressed for clients that take it.
const COMPRESS_OVER: usize = 128 * 1024;

/// Answers one object, given as its JSON.
pub(crate) fn one(
    context: &Context,
    code: StatusCode,
    representation: Representation,
    bytes: Bytes,
) -> Result<Response, Failure> {
    let registration = context.registration;
    let bytes = match representation.shape {
        Shape::Object => bytes,
        Shape::Metadata(version) => encode(&metadata(&*decode(registration, &bytes)?, version)),
        Shape::Table(version) => {
            let object = decode(registration, &bytes)?;
            let table = Table::new(
                registration,
                version,
                IncludeObject::read(&context.query)?,
                context.now(),
            );
            let revision = object.metadata().resource_version.clone().unwrap_or_default();
            encode(&table.document(&json!({ "resourceVersion": revision }), &[table.row(&*object, &bytes)]))
        }
    };
    write(representation.encoding, code, bytes)
}

/// Answers a `Status` that is no failure.
pub(crate) fn status(representation: Representation, code: StatusCode, bytes: Bytes) -> Result<Response, Failure> {
    write(representation.encoding, code, bytes)
}

/// Answers a list of objects, given as their JSON. Lists of objects as JSON are concatenated, not decoded.
pub(crate) fn list(
    context: &Context,
    representation: Representation,
    head: &Head,
    items: Vec<Bytes>,
) -> Result<Response, Failure> {
    let registration = context.registration;
    let list_metadata = list_metadata(head);
    let bytes = match representation.shape {
        Shape::Object if representation.encoding == Encoding::Json => {
            return concatenated(context, &list_metadata, items);
        }
        Shape::Object => {
            let mut items: Vec<Value> = items
                .iter()
                .map(|item| serde_json::from_slice(item))
                .collect::<Result<_, _>>()
                .map_err(Failure::internal)?;
            for members in items.iter_mut().filter_map(Value::as_object_mut) {
                members.remove("apiVersion");
                members.remove("kind");
            }
            let (kind, version) = (registration.list_kind, registration.api_version());
            encode(&json!({"kind": kind, "apiVersion": version, "metadata": list_metadata, "items": items}))
        }
        Shape::Metadata(version) => {
            let items: Vec<Value> = items
                .iter()
                .map(|item| Ok(metadata(&*decode(registration, item)?, version)))
                .collect::<Result<_, Failure>>()?;
            encode(&json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": version.api_version(),
                "metadata": list_metadata,
                "items": items,
            }))
        }
        Shape::Table(version) => {
            let table = Table::new(
                registration,
                version,
                IncludeObject::read(&context.query)?,
                context.now(),
            );
            let rows: Vec<Value> = items
                .iter()
                .map(|item| Ok(table.row(&*decode(registration, item)?, item)))
                .collect::<Result<_, Failure>>()?;
            encode(&table.document(&list_metadata, &rows))
        }
    };
    let compressible = representation.encoding == Encoding::Json && bytes.len() > COMPRESS_OVER;
    if compressible && accepts_gzip(&context.headers) {
        return Ok(compress::respond(StatusCode::OK, "application/json", &bytes));
    }
    write(representation.encoding, StatusCode::OK, bytes)
}

fn list_metadata(head: &Head) -> Value {
    let mut metadata = json!({ "resourceVersion": head.revision.to_string() });
    if let Some(members) = metadata.as_object_mut() {
        if let Some(remainder) = &head.remainder {
            members.insert("continue".to_owned(), Value::from(remainder.as_str()));
        }
        if let Some(remaining) = head.remaining {
            members.insert("remainingItemCount".to_owned(), Value::from(remaining));
        }
    }
    metadata
}

fn concatenated(context: &Context, metadata: &Value, items: Vec<Bytes>) -> Result<Response, Failure> {
    let registration = context.registration;
    let (kind, version) = (registration.list_kind, registration.api_version());
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[");
    let items = Items::new(registration, items);
    let total = head.len() + items.length() + 2;
    let compressed = total > COMPRESS_OVER && accepts_gzip(&context.headers);
    if total <= CHUNK || compressed {
        let mut whole = BytesMut::with_capacity(total);
        whole.put_slice(head.as_bytes());
        items.append_to(&mut whole);
        whole.put_slice(b"]}\n");
        let whole = whole.freeze();
        if compressed {
            return Ok(compress::respond(StatusCode::OK, "application/json", &whole));
        }
        return write(Encoding::Json, StatusCode::OK, whole);
    }
    let chunks = Chunks {
        items,
        head: Some(head),
        ended: false,
    };
    let mut response = Response::new(Body::from_stream(futures::stream::iter(
        chunks.map(Ok::<_, Infallible>),
    )));
    let content_type = http::HeaderValue::from_static(Encoding::Json.content_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

/// The objects of a list as they stand in it: without their own `apiVersion` and `kind`, which the list's say.
struct Items {
    left: std::vec::IntoIter<Bytes>,
    /// How every object of the kind begins.
    type_meta: String,
    first: bool,
}

impl Items {
    fn new(registration: &Registration, items: Vec<Bytes>) -> Self {
        let (version, kind) = (registration.api_version(), registration.kind);
        Self {
            left: items.into_iter(),
            type_meta: format!("{{\"apiVersion\":\"{version}\",\"kind\":\"{kind}\","),
            first: true,
        }
    }

    /// Bytes that they take at most.
    fn length(&self) -> usize {
        self.left.as_slice().iter().map(|item| item.len() + 1).sum()
    }

    /// Appends the next one; `false` when there is none.
    fn append_next(&mut self, buffer: &mut BytesMut) -> bool {
        let Some(item) = self.left.next() else { return false };
        if !std::mem::replace(&mut self.first, false) {
            buffer.put_u8(b',');
        }
        match item.strip_prefix(self.type_meta.as_bytes()) {
            Some(rest) => {
                buffer.put_u8(b'{');
                buffer.put_slice(rest);
            }
            None => buffer.put_slice(&item),
        }
        true
    }

    fn append_to(mut self, buffer: &mut BytesMut) {
        while self.append_next(buffer) {}
    }
}

/// A long list as chunks that are put together when they are sent, so that it is in memory once.
struct Chunks {
    items: Items,
    head: Option<String>,
    ended: bool,
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut chunk = BytesMut::with_capacity(CHUNK + 4096);
        if let Some(head) = self.head.take() {
            chunk.put_slice(head.as_bytes());
        }
        while chunk.len() < CHUNK {
            if !self.items.append_next(&mut chunk) {
                chunk.put_slice(b"]}\n");
                self.ended = true;
                break;
            }
        }
        Some(chunk.freeze())
    }
}

fn decode(registration: &Registration, bytes: &[u8]) -> Result<Box<dyn Object>, Failure> {
    registration.decode(bytes).map_err(Failure::internal)
}

/// `PartialObjectMetadata`
pub(crate) fn metadata(object: &dyn Object, version: MetaVersion) -> Value {
    partial(object.metadata(), version)
}

/// An object's metadata alone.
pub(crate) fn partial(metadata: &ObjectMeta, version: MetaVersion) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": metadata})
}

fn write(encoding: Encoding, code: StatusCode, bytes: Bytes) -> Result<Response, Failure> {
    let bytes = match encoding {
        Encoding::Json => bytes,
        Encoding::PrettyJson => {
            let value: Value = serde_json::from_slice(&bytes).map_err(Failure::internal)?;
            serde_json::to_vec_pretty(&value).map_err(Failure::internal)?.into()
        }
        Encoding::Yaml => {
            let value: Value = serde_json::from_slice(&bytes).map_err(Failure::internal)?;
            serde_yaml::to_string(&value).map_err(Failure::internal)?.into()
        }
    };
    Ok(with_type(code, encoding.content_type(), bytes))
}
