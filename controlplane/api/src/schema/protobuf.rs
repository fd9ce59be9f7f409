//! Kubernetes protobuf, to and from JSON, driven by the table of [`schema`](crate::schema): no
//! generated types.
//!
//! A body is the four bytes `k8s\0` and a `runtime.Unknown` message: the type's name and the bytes
//! of its message. Stock clients send such bodies for every built-in kind and do not fall back to
//! JSON when they are rejected.
//!
//! Ambiguities of protobuf are resolved like in Go's JSON: empty strings, zeroes and false are left
//! out for fields that are values upstream, and kept for pointers.

mod decode;
mod encode;
mod forms;
mod list;
mod wire;

use serde_json::Value;

pub(crate) use self::wire::Writer;
use crate::schema::Schema;

pub use list::ListEncoder;

/// Media type of protobuf bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Prefix of every body.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Maximum nesting depth of messages. No kind's own messages use more than half of it.
pub const MAX_DEPTH: usize = 64;

/// Maximum number of messages and list items in one body; otherwise a body of 3 MiB could use 50
/// times its size in memory.
pub const MAX_VALUES: usize = 100_000;

/// A decoded body.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// The object with its `apiVersion` and `kind`.
    pub json: Value,
}

/// Error of decoding or encoding. `Display` is upstream's text where it has one.
#[derive(Debug, thiserror::Error)]
pub enum ProtobufError {
    /// The body lacks the prefix.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotProtobuf,
    /// The body's kind is not in the table.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// API version in the body.
        api_version: String,
        /// Kind in the body.
        kind: String,
    },
    /// The inner message is compressed or of another format.
    #[error("unsupported content type {content_type:?} or encoding {content_encoding:?} inside of a protobuf body")]
    UnsupportedContent {
        /// Content type in the body.
        content_type: String,
        /// Content encoding in the body.
        content_encoding: String,
    },
    /// The bytes end inside a value.
    #[error("unexpected EOF")]
    UnexpectedEnd,
    /// A number has more than 64 bits.
    #[error("proto: integer overflow")]
    Overflow,
    /// A field has the wrong wire type.
    #[error("proto: wrong wireType = {wire_type} for field {field}")]
    WrongWireType {
        /// Wire type in the message: 0 to 7.
        wire_type: u8,
        /// The field's name in JSON.
        field: &'static str,
    },
    /// A wire type does not exist, or is a group.
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    /// A field has the number zero.
    #[error("proto: illegal tag 0")]
    IllegalTag,
    /// A string is not UTF-8.
    #[error("proto: field {0} contains invalid UTF-8")]
    InvalidUtf8(&'static str),
    /// JSON cannot represent a value, such as a time in the year 20000.
    #[error("field {field} has no valid {what}")]
    InvalidValue {
        /// The field's name in JSON.
        field: &'static str,
        /// Expected type of the value.
        what: &'static str,
    },
    /// Embedded JSON is malformed.
    #[error("field {field} does not hold JSON")]
    InvalidJson {
        /// The field's name in JSON.
        field: &'static str,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// The JSON does not fit the message.
    #[error("the object does not fit its message")]
    Unfit(#[source] serde_json::Error),
    /// Messages are nested deeper than [`MAX_DEPTH`].
    #[error("messages are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// There are more values than [`MAX_VALUES`].
    #[error("more than {MAX_VALUES} values")]
    TooMany,
}

/// Decodes a body: `k8s\0` and a `runtime.Unknown`.
///
/// # Errors
/// The body is malformed. No body causes a panic, and none costs more than its size times a
/// constant.
pub fn decode(body: &[u8]) -> Result<Decoded, ProtobufError> {
    decode::body(body, &mut decode::Budget::new())
}

/// Encodes an object of a kind of the table from its JSON; members that the kind does not have are
/// left out.
///
/// # Errors
/// [`ProtobufError::UnknownKind`], and [`ProtobufError::Unfit`] for members of a wrong type.
pub fn encode(api_version: &str, kind: &str, json: &[u8]) -> Result<Vec<u8>, ProtobufError> {
    let mut raw = Writer(Vec::with_capacity(json.len()));
    encode::message(schema_of(api_version, kind)?, json, &mut raw)?;
    let mut body = list::head(api_version, kind, raw.0.len());
    body.0.reserve_exact(raw.0.len() + list::TAIL.len());
    body.0.extend_from_slice(&raw.0);
    body.0.extend_from_slice(&list::TAIL);
    Ok(body.0)
}

/// Frame of a watch: the event's type and its object, encoded as a body of its own, after a
/// four-byte length.
pub fn frame(event: &str, object: &[u8]) -> Vec<u8> {
    // Four bytes for the length, and the fields around the object.
    let mut frame = Writer(Vec::with_capacity(object.len() + event.len() + 24));
    frame.0.extend_from_slice(&[0; 4]);
    frame.bytes(1, event.as_bytes());
    frame.message_of_bytes(2, object);
    let length = u32::try_from(frame.0.len() - 4).unwrap_or(u32::MAX);
    if let Some(place) = frame.0.first_chunk_mut() {
        *place = length.to_be_bytes();
    }
    frame.0
}

fn schema_of(api_version: &str, kind: &str) -> Result<Schema, ProtobufError> {
    Schema::of_kind(api_version, kind).ok_or_else(|| unknown_kind(api_version, kind))
}

fn unknown_kind(api_version: &str, kind: &str) -> ProtobufError {
    ProtobufError::UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    }
}

/// True if [`decode()`] supports the kind.
pub fn knows(api_version: &str, kind: &str) -> bool {
    Schema::of_kind(api_version, kind).is_some()
}
