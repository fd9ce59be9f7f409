//! Types of the values of a kind that is defined by an object
//! (`staging/src/k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager/schemaconv`, kube-openapi's `pkg/schemaconv`).

use std::collections::BTreeMap;

use super::types::Scalar;
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
    /// Shape deduced from the value: members of maps have owners of their own, lists are owned as a whole.
    Deduced,
    /// Owned as a whole.
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

/// The members of an object.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Declared fields.
    pub fields: BTreeMap<String, Shape>,
    /// The type of all others, if there may be others.
    pub others: Option<Box<Shape>>,
    /// Tells whether the object is owned as a whole.
    pub atomic: bool,
}

/// Identity of the items of a list.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Nothing: the list is owned as a whole.
    Atomic,
    /// The items are scalars that occur once.
    Set,
    /// Members of the items, each with what it is taken to be where it is missing, as JSON.
    Map(Vec<(String, Option<String>)>),
}
