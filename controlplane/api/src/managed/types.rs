//! What a value is to server-side apply: a scalar, or something with parts that have owners of their own.

use crate::schema::{Field, Form, ListType, Schema, Shape};

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    /// Owned as a whole.
    Scalar(Scalar),
    /// A struct.
    Struct {
        schema: Schema,
        /// Owned as a whole.
        atomic: bool,
    },
    /// A map, by the field that holds it.
    Map(&'static Field),
    /// A list, by the field that holds it.
    List(&'static Field),
}

/// Which scalars fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Text,
    Number,
    Boolean,
    /// Anything: quantities, times, raw JSON.
    Any,
}

impl Type {
    /// The type of a whole object.
    pub(super) fn of_object(schema: Schema) -> Self {
        Self::Struct { schema, atomic: false }
    }

    /// The type of a struct's member. What the schema does not know (`apiVersion`, `kind`) is a scalar.
    pub(super) fn of_member(field: Option<&'static Field>) -> Self {
        match field {
            None => Self::Scalar(Scalar::Any),
            Some(field) => match field.shape {
                Shape::List => Self::List(field),
                Shape::Map => Self::Map(field),
                Shape::One | Shape::Inline => one(field, field.list_type.as_ref()),
            },
        }
    }

    /// Whether the value is owned as a whole.
    pub(super) fn is_atomic(self) -> bool {
        match self {
            Self::Scalar(_) => true,
            Self::Struct { atomic, .. } => atomic,
            Self::Map(field) => field.list_type == Some(ListType::Atomic),
            Self::List(field) => matches!(field.list_type, None | Some(ListType::Atomic | ListType::Granular)),
        }
    }

    /// The type of the items of a list or map, and the type of anything below what is not a struct.
    pub(super) fn item(self) -> Self {
        match self {
            Self::Map(field) | Self::List(field) => one(field, None),
            Self::Scalar(_) | Self::Struct { .. } => Self::Scalar(Scalar::Any),
        }
    }

    /// The type of the member of a struct or map.
    pub(super) fn member(self, name: &str) -> Self {
        match self {
            Self::Struct { schema, .. } => Self::of_member(schema.field(name)),
            Self::Map(_) | Self::List(_) | Self::Scalar(_) => self.item(),
        }
    }
}

/// The type of one value of a field, of which the field may say whether it is owned as a whole.
fn one(field: &Field, own: Option<&ListType>) -> Type {
    match field.form {
        Form::Message(name) => match Schema::named(name) {
            Some(schema) => Type::Struct {
                schema,
                atomic: match own {
                    Some(ListType::Granular) => false,
                    Some(ListType::Atomic) => true,
                    None | Some(ListType::Set | ListType::Map(_)) => schema.is_atomic(),
                },
            },
            None => Type::Scalar(Scalar::Any),
        },
        Form::String | Form::Bytes | Form::Duration => Type::Scalar(Scalar::Text),
        Form::Bool => Type::Scalar(Scalar::Boolean),
        Form::Int32 | Form::Int64 | Form::Double => Type::Scalar(Scalar::Number),
        Form::Quantity
        | Form::IntOrString
        | Form::Time
        | Form::MicroTime
        | Form::RawExtension
        | Form::FieldsV1
        | Form::Strings => Type::Scalar(Scalar::Any),
    }
}
