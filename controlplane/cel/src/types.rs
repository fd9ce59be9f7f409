//! Types of expressions and their names (`cel-go/checker/format.go`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::schema::{Format, ObjectSchema, Schema, Shape};

/// A type.
#[derive(Clone, Debug)]
pub enum Type {
    /// Any value.
    Dyn,
    /// The type of an expression that failed to check.
    Error,
    /// `null`
    Null,
    /// `true`, `false`
    Bool,
    /// Signed numbers.
    Int,
    /// Unsigned numbers.
    Uint,
    /// Floating-point numbers.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// Points in time.
    Timestamp,
    /// Lengths of time.
    Duration,
    /// Lists of a type.
    List(Arc<Type>),
    /// Maps from one type to another.
    Map(Arc<Type>, Arc<Type>),
    /// Values of a type that may be absent.
    Optional(Arc<Type>),
    /// Types themselves.
    Type(Arc<Type>),
    /// Objects with declared fields.
    Object(Arc<ObjectSchema>),
    /// Objects that expressions make, by the name of their type.
    Struct(Arc<str>),
    /// Values of a library's own.
    Opaque(&'static str),
    /// A parameter of a function's type.
    Param(char),
    /// A type not yet known.
    Var(usize),
}

impl Type {
    /// Lists of a type.
    pub fn list(items: Self) -> Self {
        Self::List(Arc::new(items))
    }

    /// Maps from one type to another.
    pub fn map(keys: Self, values: Self) -> Self {
        Self::Map(Arc::new(keys), Arc::new(values))
    }

    /// Values of a type that may be absent.
    pub fn optional(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    pub(crate) const fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// The types that it is made of.
    pub(crate) fn parameters(&self) -> Vec<&Self> {
        match self {
            Self::List(one) | Self::Optional(one) | Self::Type(one) => vec![one],
            Self::Map(keys, values) => vec![keys, values],
            _ => Vec::new(),
        }
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(left), Self::Object(right)) => left.name == right.name,
            (Self::Struct(left), Self::Struct(right)) => left == right,
            (Self::Opaque(left), Self::Opaque(right)) => left == right,
            (Self::Param(left), Self::Param(right)) => left == right,
            (Self::Var(left), Self::Var(right)) => left == right,
            _ => {
                std::mem::discriminant(self) == std::mem::discriminant(other) && self.parameters() == other.parameters()
            }
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => out.write_str("dyn"),
            Self::Error => out.write_str("!error!"),
            Self::Null => out.write_str("null"),
            Self::Bool => out.write_str("bool"),
            Self::Int => out.write_str("int"),
            Self::Uint => out.write_str("uint"),
            Self::Double => out.write_str("double"),
            Self::String => out.write_str("string"),
            Self::Bytes => out.write_str("bytes"),
            Self::Timestamp => out.write_str("timestamp"),
            Self::Duration => out.write_str("duration"),
            Self::List(items) => write!(out, "list({items})"),
            Self::Map(keys, values) => write!(out, "map({keys}, {values})"),
            Self::Optional(value) => write!(out, "optional_type({value})"),
            Self::Type(of) => write!(out, "type({of})"),
            Self::Object(object) => out.write_str(&object.name),
            Self::Struct(name) => out.write_str(name),
            Self::Opaque(name) => out.write_str(name),
            Self::Param(name) => write!(out, "{name}"),
            Self::Var(number) => write!(out, "_var{number}"),
        }
    }
}

impl Schema {
    /// The CEL type of the schema.
    pub fn as_type(&self) -> Type {
        match &self.shape {
            Shape::Object(object) => Type::Object(Arc::clone(object)),
            Shape::Map(values) => Type::map(Type::String, values.as_type()),
            Shape::List { items, .. } => Type::list(items.as_type()),
            Shape::String(Format::Text) => Type::String,
            Shape::String(Format::Bytes) => Type::Bytes,
            Shape::String(Format::Date | Format::DateTime) => Type::Timestamp,
            Shape::String(Format::Duration) => Type::Duration,
            Shape::Int => Type::Int,
            Shape::Double => Type::Double,
            Shape::Bool => Type::Bool,
            Shape::IntOrString | Shape::Dyn => Type::Dyn,
        }
    }
}

/// Variables for expressions.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub(crate) variables: BTreeMap<String, Type>,
    /// True if expressions may construct patch objects.
    pub(crate) makes_patches: bool,
}

impl Environment {
    /// The environment with one more variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, of: Type) -> Self {
        self.variables.insert(name.into(), of);
        self
    }

    /// The environment with the types `Object` and `JSONPatch`, which expressions may construct.
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.makes_patches = true;
        self
    }
}
