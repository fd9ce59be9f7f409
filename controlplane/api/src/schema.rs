//! Schema of every message of the API: field numbers, names, types, patch keys and list types.
//!
//! One table, `schema/messages.txt` (written by `schema/generate.py`, which explains its columns),
//! drives strategic merge patches, the protobuf codec and OpenAPI. A message's line is parsed on
//! first use, so that a server holds in memory only what its clients use.

pub mod decode;
pub mod descriptions;
pub mod go_json;
pub mod managed;
pub mod omit;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod strict;
mod table;
pub mod yaml;
pub(crate) use table::Named;

use std::fmt;
use std::sync::OnceLock;

use serde_json::{Value, json};

/// A message of the API, such as `core.v1.PodSpec`.
#[derive(Clone, Copy)]
pub struct Schema(&'static table::Message);

impl Schema {
    /// Message of an `apiVersion` (`v1`, `apps/v1`) and `kind`. Options that every group version
    /// has (`DeleteOptions`, …) are found in each of them.
    pub fn of_kind(api_version: &str, kind: &str) -> Option<Self> {
        const EVERYWHERE: [&str; 8] = [
            "CreateOptions",
            "DeleteOptions",
            "GetOptions",
            "ListOptions",
            "PatchOptions",
            "UpdateOptions",
            "Status",
            "WatchEvent",
        ];
        const META: [&str; 5] = ["List", "APIGroup", "APIGroupList", "APIResourceList", "APIVersions"];
        if EVERYWHERE.contains(&kind) || (api_version == "v1" && META.contains(&kind)) {
            return Self::named(&format!("meta.v1.{kind}"));
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("core", api_version));
        let group = match group.split_once('.') {
            // PartialObjectMetadata is the same in both versions.
            Some(("meta", "k8s.io")) => return Self::named(&format!("meta.v1.{kind}")),
            // So is aggregated discovery.
            Some(("apidiscovery", "k8s.io")) => return Self::named(&format!("apidiscovery.v2.{kind}")),
            None => group,
            Some((first, domain)) if domain == "k8s.io" || domain.ends_with(".k8s.io") => first,
            Some(_) => return None,
        };
        Self::named(&format!("{group}.{version}.{kind}"))
    }

    /// Message by its short name: `core.v1.Pod`, `meta.v1.ObjectMeta`.
    pub fn named(name: &str) -> Option<Self> {
        table::find(name).map(Self)
    }

    /// The short name: `core.v1.Pod`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// True if server-side apply treats the whole message as one value, wherever it is used.
    pub fn is_atomic(self) -> bool {
        self.0.is_atomic()
    }

    /// Fields sorted by number. Structs that JSON inlines are one field here.
    pub fn fields(self) -> &'static [Field] {
        self.0.fields()
    }

    /// Field with this name in JSON, also one of a struct that JSON inlines.
    pub fn field(self, json: &str) -> Option<&'static Field> {
        self.fields().iter().find_map(|field| {
            if field.shape == Shape::Inline {
                field.message()?.field(json)
            } else {
                (field.json == json).then_some(field)
            }
        })
    }

    /// Fields that are `null` in JSON if they are not set.
    pub(crate) fn nulls(self) -> &'static [&'static Field] {
        self.0.nulls()
    }

    /// The members in JSON, sorted by name.
    pub(crate) fn names(self) -> &'static [Named] {
        self.0.names()
    }

    /// Field with its position among the members of the object, in Go's order.
    pub(crate) fn placed(self, json: &str) -> Option<(u32, &'static Field)> {
        let names = self.0.names();
        let at = names.binary_search_by(|(name, ..)| (*name).cmp(json)).ok()?;
        names.get(at).map(|(_, place, field)| (*place, *field))
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Schema {}

impl fmt::Debug for Schema {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Field of a message.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in JSON.
    pub json: &'static str,
    /// The number in protobuf.
    pub number: u32,
    /// The place in upstream's struct.
    place: u32,
    /// Cardinality of the field, and its form in JSON.
    pub shape: Shape,
    /// Type of one value.
    pub form: Form,
    /// True if JSON leaves out an empty string, zero or false.
    pub omit_zero: bool,
    /// Strategy of a strategic merge patch for the field.
    pub patch: PatchStrategy,
    /// Type of the list, map or struct for server-side apply.
    pub list_type: Option<ListType>,
    /// Default of a list's key, for items that lack it.
    pub key_default: Option<&'static str>,
    /// True if upstream writes the field even when it is empty: a struct as `{}`, a list or a map
    /// as `null`.
    pub always_written: bool,
    /// Message, resolved on first use.
    target: OnceLock<Option<Schema>>,
}

impl Field {
    /// Message of a field whose form is a message.
    pub fn message(&self) -> Option<Schema> {
        let Form::Message(name) = self.form else { return None };
        *self.target.get_or_init(|| Schema::named(name))
    }
}

/// Cardinality of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Single value.
    One,
    /// A list.
    List,
    /// A map with strings as keys.
    Map,
    /// A struct whose fields belong to its parent in JSON.
    Inline,
}

/// Type of a value, which determines its form in protobuf and JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// String in both.
    String,
    /// A varint; a boolean in JSON.
    Bool,
    /// A varint.
    Int32,
    /// A varint.
    Int64,
    /// Eight bytes.
    Double,
    /// Bytes; base64 in JSON.
    Bytes,
    /// A message with a string; that string in JSON.
    Quantity,
    /// A message with a number and a string; one of them in JSON.
    IntOrString,
    /// Seconds and nanoseconds; `2006-01-02T15:04:05Z` in JSON.
    Time,
    /// Seconds and nanoseconds; `2006-01-02T15:04:05.000000Z` in JSON.
    MicroTime,
    /// A message with nanoseconds; `1m30s` in JSON.
    Duration,
    /// A message with the bytes of a JSON value; that value in JSON.
    RawExtension,
    /// The same for `managedFields`.
    FieldsV1,
    /// A message with strings; a list of strings in JSON.
    Strings,
    /// A message with the schema of a custom kind or an alternative; one of them in JSON.
    Alternative(Alternative),
    /// Another message, by its short name.
    Message(&'static str),
}

impl Form {
    /// Go's zero value in JSON; `null` if it is not a default.
    pub(crate) fn zero(self) -> Value {
        match self {
            Self::String => json!(""),
            Self::Bool => json!(false),
            Self::Int32 | Self::Int64 | Self::Double => json!(0),
            Self::Message(_) => json!({}),
            Self::Bytes
            | Self::Quantity
            | Self::IntOrString
            | Self::Time
            | Self::MicroTime
            | Self::Duration
            | Self::RawExtension
            | Self::FieldsV1
            | Self::Strings
            | Self::Alternative(_) => Value::Null,
        }
    }
}

/// Alternatives to the schema of a custom kind
/// (`staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1/types_jsonschema.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternative {
    /// `{1: allowed, 2: schema}`; one of them in JSON.
    Bool,
    /// `{1: schema, 2: schemas}`; one or a list in JSON.
    Schemas,
    /// `{1: schema, 2: strings}`; one or a list in JSON.
    Strings,
}

impl Alternative {
    /// The message of schemas.
    pub(crate) fn schema() -> Option<Schema> {
        Schema::named("apiextensions.v1.JSONSchemaProps")
    }

    /// The number of the schema in protobuf.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Bool => 2,
            Self::Schemas | Self::Strings => 1,
        }
    }
}

/// Strategy of a strategic merge patch for a field (the struct tags `patchStrategy` and
/// `patchMergeKey` upstream).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists are merged instead of replaced.
    pub merge: bool,
    /// Key that identifies the items of a merged list; empty for lists of scalars.
    pub merge_key: &'static str,
    /// True if clients use `$retainKeys` for this field.
    pub retain_keys: bool,
    /// True if a map or a struct is replaced instead of merged.
    pub replace: bool,
}

/// The type of a list (`x-kubernetes-list-type`), or of a map or a struct
/// (`x-kubernetes-map-type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole: the value has one owner.
    Atomic,
    /// Granular map or struct, even if its message is atomic elsewhere.
    Granular,
    /// Scalars that occur once.
    Set,
    /// Items that these keys identify.
    Map(Box<[&'static str]>),
}

/// JSON of one of `k8s_openapi`'s types. Their maps have string keys and their `Serialize` returns
/// no errors of its own, except for times outside years -9999 to 9999, which do not parse either;
/// so the result is never empty.
pub(crate) fn encode<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
