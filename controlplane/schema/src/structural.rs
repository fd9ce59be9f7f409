//! Structural schemas, in the form that requests are validated with
//! (`pkg/apiserver/schema/{structural,convert}.go`).

mod build;

use serde_json::Value;

use crate::pattern::LazyPattern;

pub use build::NotStructural;

/// Fields that every object has, declared or not.
pub(crate) const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Deepest nesting of a schema. Request bodies are less deep.
pub const MAX_DEPTH: usize = 100;

/// The schema of one version of a kind.
#[derive(Debug)]
pub struct Structural {
    pub(crate) root: Node,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A struct, or a map if it has additional properties.
    Object,
    /// A list.
    Array,
    /// A string.
    String,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// A boolean.
    Boolean,
}

impl Kind {
    /// The name in a schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let all = [
            Self::Object,
            Self::Array,
            Self::String,
            Self::Integer,
            Self::Number,
            Self::Boolean,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// `x-kubernetes-list-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    Atomic,
    /// Items are unique.
    Set,
    /// Items are unique by their key fields.
    Map,
}

/// `x-kubernetes-map-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapType {
    /// Replaced as a whole.
    Atomic,
    /// Each field has its own managers.
    Granular,
}

/// `additionalProperties`
#[derive(Debug)]
pub enum Additional {
    /// Any value (`true`), or none (`false`).
    Any(bool),
    /// Values of this schema.
    Schema(Box<Node>),
}

/// A rule of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The expression.
    pub rule: String,
    /// Message if the rule is false; may be empty.
    pub message: String,
    /// Expression that returns the message; may be empty.
    pub message_expression: String,
    /// Reason of the error, such as `FieldValueForbidden`.
    pub reason: Option<String>,
    /// Field that the error names, relative to the rule's; may be empty.
    pub field_path: String,
    /// If set, whether the rule runs without an old value.
    pub optional_old_self: Option<bool>,
}

/// A node of a schema, or of one of its `allOf`, `anyOf`, `oneOf` and `not`.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the schema has as many")]
pub struct Node {
    kind: Option<Kind>,
    list_type: Option<ListType>,
    map_type: Option<MapType>,
    nullable: bool,
    preserves: bool,
    embedded: bool,
    int_or_string: bool,
    additional: Option<Additional>,
    items: Option<Box<Node>>,
    /// Properties, sorted by name.
    properties: Box<[(Box<str>, Node)]>,
    default: Option<Box<Value>>,
    rules: Box<[Rule]>,
    list_keys: Box<[Box<str>]>,
    values: Option<Box<Values>>,
}

/// Value validations, for the nodes that have any.
#[derive(Debug, Default)]
pub struct Values {
    pub(crate) format: Box<str>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) pattern: Option<LazyPattern>,
    pub(crate) enumeration: Box<[Value]>,
    pub(crate) required: Box<[Box<str>]>,
    pub(crate) all_of: Box<[Node]>,
    pub(crate) any_of: Box<[Node]>,
    pub(crate) one_of: Box<[Node]>,
    pub(crate) not: Option<Box<Node>>,
}

impl Structural {
    /// The schema of the whole object.
    pub fn root(&self) -> &Node {
        &self.root
    }
}

impl Node {
    /// The type; `None` if several are possible.
    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// `nullable`
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// `x-kubernetes-preserve-unknown-fields`
    pub fn preserves_unknown_fields(&self) -> bool {
        self.preserves
    }

    /// `x-kubernetes-embedded-resource`
    pub fn is_embedded(&self) -> bool {
        self.embedded
    }

    /// `x-kubernetes-int-or-string`
    pub fn is_int_or_string(&self) -> bool {
        self.int_or_string
    }

    /// `x-kubernetes-list-type`
    pub fn list_type(&self) -> Option<ListType> {
        self.list_type
    }

    /// `x-kubernetes-list-map-keys`
    pub fn list_keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.list_keys.iter().map(AsRef::as_ref)
    }

    /// `x-kubernetes-map-type`
    pub fn map_type(&self) -> Option<MapType> {
        self.map_type
    }

    /// The schema of undeclared fields.
    pub fn additional(&self) -> Option<&Additional> {
        self.additional.as_ref()
    }

    /// The schema of a list's items.
    pub fn items(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// Declared fields, sorted by name.
    pub fn properties(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.properties.iter().map(|(name, node)| (name.as_ref(), node))
    }

    /// A declared field.
    pub fn property(&self, name: &str) -> Option<&Self> {
        let at = self.properties.binary_search_by(|(own, _)| (**own).cmp(name)).ok()?;
        self.properties.get(at).map(|(_, node)| node)
    }

    /// `default`
    pub fn default_value(&self) -> Option<&Value> {
        self.default.as_deref()
    }

    /// `x-kubernetes-validations`
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Value validations, if there are any.
    pub fn values(&self) -> Option<&Values> {
        self.values.as_deref()
    }

    /// `format`, empty if there is none.
    pub fn format(&self) -> &str {
        self.values().map_or("", |values| &values.format)
    }

    /// Names of the required fields.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        self.values().into_iter().flat_map(Values::required)
    }
}

impl Values {
    /// `required`
    pub fn required(&self) -> impl ExactSizeIterator<Item = &str> {
        self.required.iter().map(AsRef::as_ref)
    }

    /// `pattern`, in RE2's syntax.
    pub fn pattern(&self) -> Option<&str> {
        self.pattern.as_ref().map(LazyPattern::text)
    }

    /// True if a string matches the `pattern`, or there is none.
    pub fn matches(&self, text: &str) -> bool {
        let pattern = self.pattern.as_ref().and_then(LazyPattern::get);
        pattern.is_none_or(|pattern| pattern.is_match(text))
    }
}
