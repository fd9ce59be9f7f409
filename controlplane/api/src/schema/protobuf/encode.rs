//! Encoding of JSON as protobuf, in one pass over the text, without a tree of values.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

use super::wire::Writer;
use super::{MAX_DEPTH, ProtobufError, forms};
use crate::schema::{Alternative, Field, Form, Schema, Shape};

/// Appends the message of an object's JSON.
pub(super) fn message(schema: Schema, json: &[u8], out: &mut Writer) -> Result<(), ProtobufError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let object = Object {
        schema,
        out,
        depth: MAX_DEPTH,
    };
    object
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(ProtobufError::Unfit)
}

/// Writes an object's members.
struct Object<'w> {
    schema: Schema,
    out: &'w mut Writer,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an object of {}", self.schema.name())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { schema, out, depth } = self;
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| A::Error::custom(ProtobufError::TooDeep))?;
        let mut inlined = Inlined::default();
        let mut next = 0;
        while let Some(place) = members.next_key_seed(Key(schema, &mut next))? {
            let Some(Place { field, within }) = place else {
                members.next_value::<IgnoredAny>()?;
                continue;
            };
            let out = inlined.at(&within).unwrap_or(&mut *out);
            members.next_value_seed(Member::of(field, out, depth))?;
        }
        inlined.close(out);
        Ok(())
    }
}

/// Looks up a member's field; none if the message does not have it. Members usually are in the
/// order of the fields: the number is the field to try first.
struct Key<'n>(Schema, &'n mut usize);

/// Field that a member is encoded as.
struct Place {
    field: &'static Field,
    /// Numbers of the enclosing structs that JSON inlines, outermost first.
    within: Vec<u32>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<Place>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<Place>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(find(self.0, name, self.1))
    }
}

fn find(schema: Schema, name: &str, next: &mut usize) -> Option<Place> {
    let fields = schema.fields();
    let is_own = |field: &Field| field.json == name && field.shape != Shape::Inline;
    let (passed, ahead) = fields.split_at(fields.len().min(*next));
    let own = (*next..)
        .zip(ahead)
        .chain((0..).zip(passed))
        .find(|(_, field)| is_own(field));
    if let Some((at, field)) = own {
        *next = at + 1;
        return Some(Place {
            field,
            within: Vec::new(),
        });
    }
    let mut inlined = fields.iter().filter(|field| field.shape == Shape::Inline);
    inlined.find_map(|outer| {
        let mut place = find(outer.message()?, name, &mut 0)?;
        place.within.insert(0, outer.number);
        Some(place)
    })
}

/// Messages whose members are inlined in their parent's JSON, buffered until the parent ends:
/// number, members, nested ones.
#[derive(Default)]
struct Inlined(Vec<(u32, Writer, Inlined)>);

impl Inlined {
    fn at(&mut self, within: &[u32]) -> Option<&mut Writer> {
        let (number, deeper) = within.split_first()?;
        let known = self.0.iter().position(|(own, ..)| own == number);
        let index = known.unwrap_or(self.0.len());
        if known.is_none() {
            self.0.push((*number, Writer::default(), Self::default()));
        }
        let (_, writer, inner) = self.0.get_mut(index)?;
        if deeper.is_empty() {
            Some(writer)
        } else {
            inner.at(deeper)
        }
    }

    fn close(self, out: &mut Writer) {
        for (number, mut writer, inner) in self.0 {
            inner.close(&mut writer);
            out.bytes(number, &writer.0);
        }
    }
}

/// Writes the value of one member; nothing for null.
struct Member<'w> {
    field: &'static Field,
    number: u32,
    shape: Shape,
    out: &'w mut Writer,
    depth: usize,
}

impl<'w> Member<'w> {
    fn of(field: &'static Field, out: &'w mut Writer, depth: usize) -> Self {
        Self {
            field,
            number: field.number,
            shape: field.shape,
            out,
            depth,
        }
    }

    /// Encodes one value of a list or a map.
    fn item(field: &'static Field, number: u32, out: &'w mut Writer, depth: usize) -> Self {
        Self {
            field,
            number,
            shape: Shape::One,
            out,
            depth,
        }
    }

    /// Writes a schema or its alternative, from JSON.
    fn alternative(self, form: Alternative, raw: &str) -> Result<(), serde_json::Error> {
        let Self { number, out, depth, .. } = self;
        let Some(schema) = Alternative::schema().filter(|_| raw != "null") else {
            return Ok(());
        };
        let one = |out: &mut Writer, number: u32, raw: &str| {
            let mut deserializer = serde_json::Deserializer::from_str(raw);
            out.nested(number, |out| {
                Object { schema, out, depth }.deserialize(&mut deserializer)
            })
        };
        out.nested(number, |out| {
            if raw.starts_with('{') {
                if form == Alternative::Bool {
                    out.varint(1, 1);
                }
                return one(out, form.number(), raw);
            }
            match form {
                Alternative::Bool => out.varint(1, u64::from(serde_json::from_str::<bool>(raw)?)),
                Alternative::Schemas => {
                    for item in serde_json::from_str::<Vec<&RawValue>>(raw)? {
                        one(out, 2, item.get())?;
                    }
                }
                Alternative::Strings => {
                    for item in serde_json::from_str::<Vec<String>>(raw)? {
                        out.bytes(2, item.as_bytes());
                    }
                }
            }
            Ok(())
        })
    }

    fn integer<E: Error>(self, value: i64) -> Result<(), E> {
        match (self.shape, self.field.form) {
            (Shape::One, Form::Int32 | Form::Int64) => self.out.varint(self.number, value.cast_unsigned()),
            (Shape::One, Form::IntOrString) => forms::write_int_or_string(self.out, self.number, value, None),
            // A bare number is also a quantity.
            (Shape::One, Form::Quantity) => self.out.message_of_bytes(self.number, value.to_string().as_bytes()),
            #[expect(
                clippy::cast_precision_loss,
                reason = "what JSON's other readers make of such numbers"
            )]
            (Shape::One, Form::Double) => self.out.fixed64(self.number, (value as f64).to_bits()),
            _ => return Err(Error::invalid_type(Unexpected::Signed(value), &self)),
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let (Shape::One, Form::Alternative(form)) = (self.shape, self.field.form) {
            let raw = <&RawValue>::deserialize(deserializer)?.get();
            return self.alternative(form, raw).map_err(D::Error::custom);
        }
        let raw = matches!(self.field.form, Form::RawExtension | Form::FieldsV1);
        if !(raw && self.shape == Shape::One) {
            return deserializer.deserialize_any(self);
        }
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        if raw != "null" {
            self.out.message_of_bytes(self.number, raw.as_bytes());
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Field { json, form, .. } = self.field;
        write!(formatter, "{:?} of {form:?} for {json}", self.shape)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        if (self.shape, self.field.form) != (Shape::One, Form::Bool) {
            return Err(Error::invalid_type(Unexpected::Bool(value), &self));
        }
        self.out.varint(self.number, u64::from(value));
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.integer(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.integer(value),
            Err(_too_large) => Err(Error::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        match (self.shape, self.field.form) {
            (Shape::One, Form::Double) => self.out.fixed64(self.number, value.to_bits()),
            (Shape::One, Form::Quantity) => self.out.message_of_bytes(self.number, value.to_string().as_bytes()),
            _ => return Err(Error::invalid_type(Unexpected::Float(value), &self)),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let Self { field, number, .. } = self;
        if self.shape != Shape::One {
            return Err(Error::invalid_type(Unexpected::Str(text), &self));
        }
        match field.form {
            Form::String => self.out.bytes(number, text.as_bytes()),
            Form::Bytes => {
                let bytes = STANDARD.decode(text).map_err(Error::custom)?;
                self.out.bytes(number, &bytes);
            }
            Form::Quantity => self.out.message_of_bytes(number, text.as_bytes()),
            Form::IntOrString => forms::write_int_or_string(self.out, number, 0, Some(text)),
            Form::Time | Form::MicroTime => {
                let micro = field.form == Form::MicroTime;
                let time = forms::write_time(text, field.json, micro).map_err(Error::custom)?;
                self.out.bytes(number, &time);
            }
            Form::Duration => {
                let duration = forms::write_duration(text, field.json).map_err(Error::custom)?;
                self.out.bytes(number, &duration);
            }
            Form::Bool
            | Form::Int32
            | Form::Int64
            | Form::Double
            | Form::RawExtension
            | Form::FieldsV1
            | Form::Strings
            | Form::Alternative(_)
            | Form::Message(_) => return Err(Error::invalid_type(Unexpected::Str(text), &self)),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self {
            field,
            number,
            shape,
            out,
            depth,
        } = self;
        match (shape, field.form) {
            (Shape::List, _) => {
                while items
                    .next_element_seed(Member::item(field, number, &mut *out, depth))?
                    .is_some()
                {}
                Ok(())
            }
            (Shape::One, Form::Strings) => out.nested(number, |out| {
                while let Some(text) = items.next_element::<String>()? {
                    out.bytes(1, text.as_bytes());
                }
                Ok(())
            }),
            _ => Err(Error::custom(format_args!("unexpected list in {}", field.json))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self {
            field,
            number,
            shape,
            out,
            depth,
        } = self;
        if shape == Shape::Map {
            // Entries are messages: 1 is the key, 2 the value.
            while let Some(key) = members.next_key::<String>()? {
                out.nested(number, |out| {
                    out.bytes(1, key.as_bytes());
                    members.next_value_seed(Member::item(field, 2, out, depth))
                })?;
            }
            return Ok(());
        }
        match (shape, field.message()) {
            (Shape::One, Some(schema)) => out.nested(number, |out| Object { schema, out, depth }.visit_map(members)),
            _ => Err(Error::custom(format_args!("unexpected object in {}", field.json))),
        }
    }
}
