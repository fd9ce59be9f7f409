//! Decoding of objects from clients, with upstream's messages, and encoding for the store.

use std::borrow::Cow;
use std::sync::Arc;

use api::managed::{Types, splice};
use api::{Object, Registration};
use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use store::{Attributes, Entry, Value};

use crate::request::failure::Failure;
use crate::request::options::FieldValidation;
use crate::storage;
use crate::transport::body::{self, Decoded, syntax};

/// Type metadata of a body.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: Option<String>,
    kind: Option<String>,
}

impl TypeMeta {
    fn version(&self) -> Option<&str> {
        self.api_version.as_deref().filter(|version| !version.is_empty())
    }

    fn kind(&self) -> Option<&str> {
        self.kind.as_deref().filter(|kind| !kind.is_empty())
    }
}

/// A decoded object with the complaints about its fields.
pub(crate) struct Read {
    pub(crate) object: Box<dyn Object>,
    /// JSON of the sent object.
    pub(crate) json: Bytes,
    /// Texts for `Warning` headers.
    pub(crate) warnings: Vec<String>,
}

/// Stored object in one version of its kind: converted by a webhook, where there is one.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    entry: Entry,
    converted: Option<Arc<Converted>>,
}

#[derive(Debug)]
struct Converted {
    bytes: Bytes,
    attributes: Attributes,
}

impl Live {
    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    fn is_converted(&self) -> bool {
        self.converted.is_some()
    }

    /// Sets the result of a conversion webhook.
    pub(crate) fn convert(&mut self, object: &Json) {
        let bytes: Bytes = object.to_string().into();
        let attributes = storage::of_labels(&bytes);
        self.converted = Some(Arc::new(Converted { bytes, attributes }));
    }
}

impl From<Entry> for Live {
    fn from(entry: Entry) -> Self {
        Self { entry, converted: None }
    }
}

/// A [`Live`], or an entry that needs no conversion.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) entry: &'a Entry,
    converted: Option<&'a Converted>,
}

impl<'a> Seen<'a> {
    /// Attributes that selectors match.
    pub(crate) fn attributes(self) -> &'a Attributes {
        self.converted
            .map_or(&self.entry.attributes, |converted| &converted.attributes)
    }
}

impl<'a> From<&'a Entry> for Seen<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self { entry, converted: None }
    }
}

impl<'a> From<&'a Live> for Seen<'a> {
    fn from(live: &'a Live) -> Self {
        Self {
            entry: &live.entry,
            converted: live.converted.as_deref(),
        }
    }
}

/// Decodes a request's body as an object of a kind.
///
/// # Errors
/// 400, 415
pub(crate) fn read(
    registration: &Registration,
    headers: &HeaderMap,
    body: Bytes,
    validation: FieldValidation,
) -> Result<Read, Failure> {
    let decoded = body::to_json(headers, body, registration.kind, validation != FieldValidation::Ignore)?;
    read_json(registration, decoded, validation)
}

/// Like [`read`], for a body of which the JSON is known.
///
/// # Errors
/// As [`read`]
pub(crate) fn read_json(
    registration: &Registration,
    decoded: Decoded,
    validation: FieldValidation,
) -> Result<Read, Failure> {
    let Decoded {
        json,
        duplicates,
        mut lines,
    } = decoded;
    let (object, mut complaints) = decode(registration, &json, &duplicates, validation)?;
    if validation == FieldValidation::Strict && !(lines.is_empty() && complaints.is_empty()) {
        if !lines.is_empty() {
            complaints.insert(0, api::yaml::unmarshal_errors(&lines));
        }
        let meta: TypeMeta = serde_json::from_slice(&json).unwrap_or_default();
        let because = format!("strict decoding error: {}", complaints.join(", "));
        return Err(unfit(registration, &meta, &because));
    }
    Ok(Read {
        object,
        json,
        warnings: {
            lines.append(&mut complaints);
            lines
        },
    })
}

/// Downcasts an object to the type of its registration.
///
/// # Errors
/// 500 for another one's.
pub(crate) fn part<T: Clone + 'static>(object: &dyn Object) -> Result<T, Failure> {
    let part = object.as_any().downcast_ref::<T>().cloned();
    part.ok_or_else(|| Failure::internal("the object is of another type than its kind"))
}

/// Decodes JSON; the texts are strict decoding errors.
pub(crate) fn decode(
    registration: &Registration,
    json: &[u8],
    duplicates: &[String],
    validation: FieldValidation,
) -> Result<(Box<dyn Object>, Vec<String>), Failure> {
    let decoded = decode_reporting(registration, json, validation);
    let (object, unknown) = decoded.map_err(|error| mismatch(registration, json, &error))?;
    Ok((object, complaints(registration, json, &unknown, duplicates)))
}

/// Like [`decode`], for JSON that is not from a client; the error is the bare text.
pub(crate) fn decode_bare(
    registration: &Registration,
    json: &[u8],
    validation: FieldValidation,
) -> Result<(Box<dyn Object>, Vec<String>), String> {
    let (object, unknown) =
        decode_reporting(registration, json, validation).map_err(|error| other_kind(registration, json, error))?;
    Ok((object, complaints(registration, json, &unknown, &[])))
}

/// Strict decoding errors in upstream's order.
fn complaints(registration: &Registration, json: &[u8], unknown: &[String], duplicates: &[String]) -> Vec<String> {
    if registration.is_defined() {
        return api::strict::custom_complaints(unknown, duplicates);
    }
    api::strict::complaints(json, unknown, duplicates)
}

/// Error for an object that no longer decodes as its kind.
fn other_kind(registration: &Registration, json: &[u8], error: String) -> String {
    let meta: TypeMeta = serde_json::from_slice(json).unwrap_or_default();
    let own = registration.api_version();
    let (version, kind) = (meta.version().unwrap_or(&own), meta.kind().unwrap_or(registration.kind));
    if version == own && kind == registration.kind {
        return error;
    }
    let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
    if !api::is_kind(group, short, kind) {
        return unregistered(kind, version);
    }
    unconvertible(registration, short, kind)
}

fn unregistered(kind: &str, version: &str) -> String {
    format!("no kind {kind:?} is registered for version {version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\"")
}

fn unconvertible(registration: &Registration, version: &str, kind: &str) -> String {
    format!(
        "converting ({version}.{kind}) to ({}.{}): unknown conversion",
        group_package(registration.group),
        registration.kind
    )
}

/// Like [`decode_bare`], with the paths of unknown fields.
fn decode_reporting(
    registration: &Registration,
    json: &[u8],
    validation: FieldValidation,
) -> Result<(Box<dyn Object>, Vec<String>), String> {
    let json = without_empty(registration, json);
    let (object, unknown) = registration
        .decode_reporting(&json)
        .map_err(|error| error.to_string())?;
    match validation {
        FieldValidation::Ignore => Ok((object, Vec::new())),
        FieldValidation::Strict | FieldValidation::Warn => Ok((object, unknown)),
    }
}

/// JSON of an object without empty members that upstream omits, such as `volumes: []`.
pub(crate) fn without_empty<'a>(registration: &Registration, json: &'a [u8]) -> Cow<'a, [u8]> {
    match registration.types() {
        Some(Types::Message(schema)) => api::omit::empty(schema, json),
        Some(Types::Shape(_)) | None => Cow::Borrowed(json),
    }
}

/// Error for JSON that does not decode as the kind: another kind, another version, or a field of
/// the wrong type.
fn mismatch(registration: &Registration, json: &[u8], error: &str) -> Failure {
    // Only a map has a kind; a list would be read as its members.
    let meta = serde_json::from_slice::<Map<String, Json>>(json)
        .and_then(|members| serde_json::from_value::<TypeMeta>(Json::Object(members)));
    let meta = match meta {
        Ok(meta) => meta,
        Err(error) => return syntax::no_json(registration.kind, json, &error),
    };
    let own = registration.api_version();
    let version = meta.version().unwrap_or(&own);
    let kind = meta.kind().unwrap_or(registration.kind);
    if registration.is_defined() && meta.kind().is_none() {
        return syntax::unrecognized(registration.kind, json, &error);
    }
    if version == own && (kind == registration.kind || registration.is_defined()) {
        return unfit(registration, &meta, error);
    }
    let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
    if !registration.is_defined() && !api::is_kind(group, short, kind) {
        return unfit(registration, &meta, &unregistered(kind, version));
    }
    let is_event = |group: &str| matches!(group, "" | "events.k8s.io");
    let same_group =
        group == registration.group || (kind == "Event" && is_event(group) && is_event(registration.group));
    if registration.is_defined() || (kind == registration.kind && same_group) {
        // The kind is right, but its version differs from the path's.
        return Failure::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({own})"
        ));
    }
    unfit(registration, &meta, &unconvertible(registration, short, kind))
}

/// The name of upstream's internal package of a group.
pub(crate) fn group_package(group: &str) -> &str {
    if group.is_empty() {
        "core"
    } else {
        group.split('.').next().unwrap_or(group)
    }
}

fn unfit(registration: &Registration, meta: &TypeMeta, because: &str) -> Failure {
    let own = registration.api_version();
    let version = meta.version().unwrap_or(&own);
    let version = version.rsplit('/').next().unwrap_or(version);
    let kind = meta.kind().unwrap_or(registration.kind);
    Failure::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}: {because}",
        registration.kind
    ))
}

/// Bytes that a stored object may have, its managed fields included: as many as a body.
const LARGEST: usize = body::LIMIT;

/// Like [`encode`], for an object that a client changes from so many bytes, none if it is new.
/// `stored` is the result of a conversion webhook, if any.
///
/// # Errors
/// 500 with upstream's message where the object has become too large.
pub(crate) fn encode_bounded(
    registration: &Registration,
    object: &mut dyn Object,
    managed: &str,
    (stored, before): (Option<Vec<u8>>, usize),
) -> Result<(Value, Attributes), Failure> {
    let (value, attributes) = match stored {
        Some(stored) => {
            let attributes = storage::of_labels(&stored);
            (Value::parse(stored).map_err(Failure::internal)?, attributes)
        }
        None => encode(registration, object, managed)?,
    };
    if value.len() > LARGEST.max(before) {
        return Err(Failure::Unexpected {
            message: "etcdserver: request is too large".to_owned(),
        });
    }
    Ok((value, attributes))
}

/// Encodes an object for the store, with the attributes that selectors match. `managed` is the text
/// of its managed fields.
///
/// # Errors
/// 500 when the kind's own encoding has no place for a revision: a mistake in the kind.
pub(crate) fn encode(
    registration: &Registration,
    object: &mut dyn Object,
    managed: &str,
) -> Result<(Value, Attributes), Failure> {
    let metadata = object.metadata_mut();
    metadata.resource_version = Some(String::new());
    metadata.managed_fields = None;
    let stored = splice::join(registration.encode_stored(object), managed);
    let attributes = storage::attributes(registration, object);
    let value = Value::parse(stored).map_err(Failure::internal)?;
    Ok((value, attributes))
}

/// Like [`encode`], for an object of which only metadata has changed since it was read.
///
/// # Errors
/// As [`encode`]
pub(crate) fn encode_marked(
    registration: &Registration,
    live: &Live,
    object: &mut dyn Object,
) -> Result<(Value, Attributes), Failure> {
    if live.is_converted() {
        return marked(&live.entry, object);
    }
    encode(registration, object, managed(&live.entry))
}

/// Stored value with other metadata. Labels and annotations stay as stored: a webhook may have
/// converted those of the object.
fn marked(entry: &Entry, object: &dyn Object) -> Result<(Value, Attributes), Failure> {
    let parts = splice::split(&entry.bytes);
    let mut stored: Json = serde_json::from_slice(&parts.object).map_err(Failure::internal)?;
    let mut metadata = object.metadata().clone();
    metadata.resource_version = Some(String::new());
    metadata.managed_fields = None;
    let mut metadata = serde_json::to_value(&metadata).map_err(Failure::internal)?;
    for name in ["labels", "annotations"] {
        let own = stored.pointer("/metadata").and_then(|own| own.get(name)).cloned();
        if let Some(members) = metadata.as_object_mut() {
            members.remove(name);
            members.extend(own.map(|own| (name.to_owned(), own)));
        }
    }
    if let Some(members) = stored.as_object_mut() {
        members.insert("metadata".to_owned(), metadata);
    }
    let stored = splice::join(stored.to_string().into_bytes(), parts.managed);
    let value = Value::parse(stored).map_err(Failure::internal)?;
    Ok((value, entry.attributes.clone()))
}

/// The object of a stored version, without its managed fields.
///
/// # Errors
/// 500 for bytes that are no longer readable as their kind.
pub(crate) fn stored<'a>(registration: &Registration, entry: impl Into<Seen<'a>>) -> Result<Box<dyn Object>, Failure> {
    let seen: Seen<'_> = entry.into();
    let decoded = match seen.converted {
        Some(converted) => registration.decode(&splice::split(&converted.bytes).object),
        None => registration.decode_stored(&seen.entry.bytes),
    };
    decoded.map_err(Failure::internal)
}

/// The JSON that clients of this kind see of a stored version.
///
/// # Errors
/// As [`stored`], only for kinds whose objects are stored as another kind.
pub(crate) fn external<'a>(registration: &Registration, entry: impl Into<Seen<'a>>) -> Result<Bytes, Failure> {
    let seen: Seen<'_> = entry.into();
    if let Some(converted) = seen.converted {
        return Ok(converted.bytes.clone());
    }
    if registration.converts {
        let object = stored(registration, seen)?.to_json();
        return Ok(splice::join(object, managed(seen.entry)).into());
    }
    Ok(seen.entry.bytes.clone())
}

/// Text of the managed fields of a stored object; may be empty.
pub(crate) fn managed(entry: &Entry) -> &str {
    splice::split(&entry.bytes).managed
}

/// JSON of an object of which only metadata has changed, made from its stored form.
///
/// # Errors
/// As [`external`]
pub(crate) fn external_marked(
    registration: &Registration,
    live: &Live,
    object: &mut dyn Object,
    entry: &Entry,
) -> Result<Bytes, Failure> {
    if live.is_converted() {
        return Ok(unstored(object, Some(entry.revision), managed(entry)));
    }
    external(registration, entry)
}

/// JSON of an object that is not stored, as after a dry run: with its previous revision, or none.
pub(crate) fn unstored(object: &mut dyn Object, revision: Option<u64>, managed: &str) -> Bytes {
    object.metadata_mut().resource_version = revision.map(|revision| revision.to_string());
    splice::join(object.to_json(), managed).into()
}
