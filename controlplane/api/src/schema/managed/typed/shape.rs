//! Schemas of custom kinds for server-side apply
//! (`staging/src/k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager/schemaconv`, kube-openapi's
//! `pkg/schemaconv`).

use std::collections::BTreeMap;

use crate::schema::Schema;

/// The types of the values of a kind.
#[derive(Clone, Copy, Debug)]
pub enum Types<'s> {
    /// A message of the tables.
    Message(Schema),
    /// Shape from a definition.
    Shape(&'s Shape),
}

impl From<Schema> for Types<'_> {
    fn from(schema: Schema) -> Self {
        Self::Message(schema)
    }
}

/// The type of a value.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Shape deduced from the value: maps are granular, lists are atomic.
    Deduced,
    /// Atomic value.
    Scalar(Scalar),
    /// A message of the tables, as metadata.
    Message(Schema),
    /// An object.
    Map(Members),
    /// A list.
    List {
        /// The type of the items.
        item: Box<Shape>,
        /// Identity of the items.
        keys: Keys,
    },
}

/// Type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Texts.
    Text,
    /// Numbers.
    Number,
    /// Truth values.
    Boolean,
    /// Anything: quantities, times, raw JSON.
    Any,
}

/// The members of an object.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Declared fields.
    pub fields: BTreeMap<String, Shape>,
    /// Type of all other members, if they are allowed.
    pub others: Option<Box<Shape>>,
    /// True if the object is atomic.
    pub atomic: bool,
}

/// Identity of the items of a list.
#[derive(Clone, Debug)]
pub enum Keys {
    /// None: the list is atomic.
    Atomic,
    /// The items are unique scalars.
    Set,
    /// Key members of the items, each with its default as JSON.
    Map(Vec<(String, Option<String>)>),
}
