//! Type of a value for server-side apply: a scalar, or a list, map or struct whose parts may have
//! owners of their own.

use super::shape::{Keys, Members, Scalar, Shape, Types};
use crate::schema::managed::raw;
use crate::schema::{self, Field, Form, ListType, Schema};

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(in crate::schema::managed) enum Type<'s> {
    /// Atomic value.
    Scalar(Scalar),
    /// A struct.
    Struct {
        schema: Schema,
        /// True if the struct is atomic.
        atomic: bool,
    },
    /// A map, by the field that holds it.
    Map(&'static Field),
    /// A list, by the field that holds it.
    List(&'static Field),
    /// Types from a definition.
    Shape(&'s Shape),
}

impl<'s> Type<'s> {
    /// The type of a whole object.
    pub(in crate::schema::managed) fn of_object(types: Types<'s>) -> Self {
        match types {
            Types::Message(schema) => Self::Struct { schema, atomic: false },
            Types::Shape(shape) => Self::of_shape(shape),
        }
    }

    fn of_shape(shape: &'s Shape) -> Self {
        match shape {
            Shape::Scalar(scalar) => Self::Scalar(*scalar),
            Shape::Message(schema) => Self::Struct {
                schema: *schema,
                atomic: schema.is_atomic(),
            },
            Shape::Deduced | Shape::Map(_) | Shape::List { .. } => Self::Shape(shape),
        }
    }

    /// Type of a struct's member. Members that are not in the schema (`apiVersion`, `kind`) are
    /// scalars.
    pub(in crate::schema::managed) fn of_member(field: Option<&'static Field>) -> Self {
        match field {
            None => Self::Scalar(Scalar::Any),
            Some(field) => match field.shape {
                schema::Shape::List => Self::List(field),
                schema::Shape::Map => Self::Map(field),
                schema::Shape::One | schema::Shape::Inline => one(field, field.list_type.as_ref()),
            },
        }
    }

    /// True if the value is atomic: owned as a whole.
    pub(in crate::schema::managed) fn is_atomic(self) -> bool {
        match self {
            Self::Scalar(_) => true,
            Self::Struct { atomic, .. } => atomic,
            Self::Map(field) => field.list_type == Some(ListType::Atomic),
            Self::List(field) => matches!(field.list_type, None | Some(ListType::Atomic | ListType::Granular)),
            Self::Shape(Shape::Map(members)) => members.atomic,
            Self::Shape(Shape::List { keys, .. }) => matches!(keys, Keys::Atomic),
            Self::Shape(Shape::Deduced | Shape::Scalar(_) | Shape::Message(_)) => false,
        }
    }

    /// Type of the items of a list or map, and of everything below a value that is not a struct.
    pub(in crate::schema::managed) fn item(self) -> Self {
        match self {
            Self::Map(field) | Self::List(field) => one(field, None),
            Self::Shape(Shape::List { item, .. } | Shape::Map(Members { others: Some(item), .. })) => {
                Self::of_shape(item)
            }
            Self::Shape(shape @ Shape::Deduced) => Self::Shape(shape),
            Self::Shape(_) | Self::Scalar(_) | Self::Struct { .. } => Self::Scalar(Scalar::Any),
        }
    }

    /// The type of the member of a struct or map.
    pub(in crate::schema::managed) fn member(self, name: &str) -> Self {
        match self {
            Self::Struct { schema, .. } => Self::of_member(schema.field(name)),
            Self::Shape(Shape::Map(Members { fields, .. })) => {
                fields.get(name).map_or_else(|| self.item(), Self::of_shape)
            }
            Self::Map(_) | Self::List(_) | Self::Scalar(_) | Self::Shape(_) => self.item(),
        }
    }

    /// True if the value is a granular list.
    pub(in crate::schema::managed) fn is_list(self) -> bool {
        !self.is_atomic() && matches!(self, Self::List(_) | Self::Shape(Shape::List { .. }))
    }

    /// True if the value is atomic: declared so, or a deduced one that is not an object.
    pub(in crate::schema::managed) fn is_whole(self, value: &str) -> bool {
        self.is_atomic() || (matches!(self, Self::Shape(Shape::Deduced)) && !raw::is_object(value))
    }

    /// True if a member is declared: other members belong to a map.
    pub(in crate::schema::managed) fn declares(self, name: &str) -> bool {
        match self {
            Self::Struct { schema, .. } => schema.field(name).is_some(),
            Self::Shape(Shape::Map(members)) => members.fields.contains_key(name),
            Self::Map(_) | Self::List(_) | Self::Scalar(_) | Self::Shape(_) => false,
        }
    }

    /// True if the value's members are those of a granular map.
    pub(in crate::schema::managed) fn is_map_at(self, name: &str) -> bool {
        match self {
            Self::Map(_) => true,
            Self::Shape(_) => !self.declares(name),
            Self::Struct { .. } | Self::List(_) | Self::Scalar(_) => false,
        }
    }
}

/// Type of one value of a field, which may say whether it is atomic.
fn one<'s>(field: &Field, own: Option<&ListType>) -> Type<'s> {
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
        | Form::Strings
        | Form::Alternative(_) => Type::Scalar(Scalar::Any),
    }
}
