//! Schemas of JSON values for expressions: types, limits, and comparison of lists
//! (`k8s.io/apiserver/pkg/cel/common/schemas.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names;

/// Schema of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// Type of the value.
    pub shape: Shape,
    /// True if the value may be `null`.
    pub nullable: bool,
    /// Most characters, bytes, items or entries of a value, if limited; `None` for types without a
    /// size.
    pub max: Option<u64>,
    /// Size of the shortest JSON of a value, in bytes. It limits how many a request can contain.
    pub least: u64,
}

/// Types of values.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Named fields.
    Object(Arc<ObjectSchema>),
    /// Any keys, with values of one schema.
    Map(Box<Schema>),
    /// Items of one schema.
    List {
        /// Schema of the items.
        items: Box<Schema>,
        /// Comparison and union of two lists.
        kind: ListKind,
    },
    /// A string, or the type that its format denotes.
    String(Format),
    /// Integers.
    Int,
    /// Numbers.
    Double,
    /// `true` and `false`.
    Bool,
    /// A number or a string.
    IntOrString,
    /// Any value.
    Dyn,
}

/// Format of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A plain string.
    Text,
    /// Base64.
    Bytes,
    /// A date.
    Date,
    /// A point in time.
    DateTime,
    /// A duration.
    Duration,
}

/// Comparison and union of two lists (`x-kubernetes-list-type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Compared item by item.
    Atomic,
    /// In any order, without duplicates.
    Set,
    /// By these key fields of each item.
    Map(Vec<String>),
}

/// Fields of an object, by their names in expressions.
#[derive(Debug, PartialEq)]
pub struct ObjectSchema {
    /// Name of the type.
    pub name: String,
    /// The fields.
    pub fields: BTreeMap<String, Field>,
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name in JSON.
    pub json: String,
    /// True if the field is required.
    pub required: bool,
    /// Its schema.
    pub schema: Schema,
}

/// Largest body of a request (`k8s.io/apiserver/pkg/apis/cel/config.go`).
pub const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;

impl ObjectSchema {
    /// The field with a name. A reserved word need not be escaped (`FindStructFieldType` of
    /// `k8s.io/apiserver/pkg/cel/types.go`).
    pub fn field(&self, name: &str) -> Option<&Field> {
        let escaped = || is_reserved(name).then(|| self.fields.get(&format!("__{name}__")));
        self.fields.get(name).or_else(|| escaped().flatten())
    }
}

impl Schema {
    /// A schema for any value.
    pub const fn any() -> Self {
        Self {
            shape: Shape::Dyn,
            nullable: true,
            max: None,
            least: 1,
        }
    }

    /// A schema of a type without limits, other than those of a request.
    pub fn new(shape: Shape) -> Self {
        let (least, max) = match &shape {
            Shape::Object(object) => (
                2 + object
                    .fields
                    .values()
                    .filter(|field| field.required)
                    .map(|field| u64::try_from(field.json.len()).unwrap_or(0) + field.schema.least + 4)
                    .sum::<u64>(),
                Some(0),
            ),
            Shape::Map(values) => (2, Some((MAX_REQUEST_BYTES - 2) / (values.least + 6))),
            Shape::List { items: item, .. } => (2, Some(items(item.least))),
            Shape::String(Format::Text | Format::Bytes) => (2, Some(MAX_REQUEST_BYTES - 2)),
            Shape::String(Format::Date) => (12, Some(12)),
            Shape::String(Format::DateTime) => (21, Some(32)),
            Shape::String(Format::Duration) => (3, Some(32)),
            Shape::Int | Shape::Double => (1, Some(0)),
            Shape::Bool => (4, Some(0)),
            Shape::IntOrString => (1, Some(MAX_REQUEST_BYTES - 2)),
            Shape::Dyn => (1, None),
        };
        Self {
            shape,
            nullable: false,
            max,
            least,
        }
    }

    /// The same with a limit on characters, items or entries.
    #[must_use]
    pub fn at_most(mut self, max: Option<u64>) -> Self {
        if max.is_some() {
            self.max = max;
        }
        self
    }
}

/// Most items of a size that fit into a request.
fn items(least: u64) -> u64 {
    (MAX_REQUEST_BYTES - 2) / (least + 1)
}

/// Name of a property in expressions, if it can have one (`k8s.io/apiserver/pkg/cel/escaping.go`).
pub fn escape(name: &str) -> Option<String> {
    let mut characters = name.chars();
    let first = characters.next()?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if first.is_ascii_digit() || !allowed(first) || !characters.all(allowed) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    Some(
        name.replace("__", "__underscores__")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}

fn is_reserved(name: &str) -> bool {
    names::is_reserved(name) || matches!(name, "true" | "false" | "null" | "in")
}
