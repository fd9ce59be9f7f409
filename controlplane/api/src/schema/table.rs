//! Parser of `schema/messages.txt`.

use std::sync::{LazyLock, OnceLock};

use super::{Alternative, Field, Form, ListType, PatchStrategy, Shape};

static TEXT: &str = include_str!("../../schema/messages.txt");

/// Line of the table; its fields are parsed on first use.
pub(super) struct Message {
    pub(super) name: &'static str,
    line: &'static str,
    fields: OnceLock<Box<[Field]>>,
    names: OnceLock<Box<[Named]>>,
    nulls: OnceLock<Box<[&'static Field]>>,
}

/// Member of a message in JSON: its name, its position in upstream's struct, and its field.
pub(crate) type Named = (&'static str, u32, &'static Field);

impl Message {
    pub(super) fn fields(&self) -> &[Field] {
        self.fields.get_or_init(|| {
            let texts = self.line.split_ascii_whitespace().filter_map(field);
            let mut fields: Vec<Field> = (0..)
                .zip(texts)
                .map(|(place, field)| Field { place, ..field })
                .collect();
            fields.sort_by_key(|field| field.number);
            fields.into()
        })
    }

    /// Members of the message in JSON, sorted by name, including those of structs that JSON
    /// inlines.
    pub(super) fn names(&'static self) -> &'static [Named] {
        self.names.get_or_init(|| {
            let mut fields: Vec<&Field> = self.fields().iter().collect();
            fields.sort_by_key(|field| field.place);
            let mut names: Vec<Named> = Vec::new();
            for field in fields {
                if field.shape == Shape::Inline {
                    let mut own = field
                        .message()
                        .map(|inner| inner.0.names().to_vec())
                        .unwrap_or_default();
                    own.sort_by_key(|(_, place, _)| *place);
                    names.extend(own);
                } else {
                    names.push((field.json, 0, field));
                }
            }
            for (place, named) in (0..).zip(&mut names) {
                named.1 = place;
            }
            names.sort_by_key(|(name, ..)| *name);
            names.into()
        })
    }

    /// The fields that Go writes as `null` when they are not set.
    pub(super) fn nulls(&'static self) -> &'static [&'static Field] {
        self.nulls.get_or_init(|| {
            let is_time = |field: &&Field| matches!(field.form, Form::Time | Form::MicroTime);
            let is_null = |field: &&Field| match field.shape {
                Shape::List | Shape::Map => field.always_written,
                Shape::One => field.always_written && is_time(field),
                Shape::Inline => false,
            };
            self.fields().iter().filter(is_null).collect()
        })
    }

    pub(super) fn is_atomic(&self) -> bool {
        self.line.starts_with("atomic")
    }
}

/// Sorted by name, like the lines.
static MESSAGES: LazyLock<Box<[Message]>> = LazyLock::new(|| {
    TEXT.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, line)| Message {
            name,
            line,
            fields: OnceLock::new(),
            names: OnceLock::new(),
            nulls: OnceLock::new(),
        })
        .collect()
});

pub(super) fn find(name: &str) -> Option<&'static Message> {
    let index = MESSAGES.binary_search_by(|message| message.name.cmp(name)).ok()?;
    MESSAGES.get(index)
}

/// All messages, for tests of the table itself.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    MESSAGES.iter().map(|message| message.name)
}

/// `NAME=NUMBER SHAPE TYPE MARKS` without the blanks.
fn field(text: &'static str) -> Option<Field> {
    let (json, rest) = text.split_once('=')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at_checked(digits)?;
    let (shape, rest) = match rest.as_bytes().first()? {
        b'*' => (Shape::List, rest.get(1..)?),
        b'%' => (Shape::Map, rest.get(1..)?),
        b'<' => (Shape::Inline, rest.get(1..)?),
        _ => (Shape::One, rest),
    };
    let mut parts = rest.split(',');
    let kind = parts.next()?;
    let omit_zero = kind.len() == 2 && kind.ends_with('0');
    let form = form(if omit_zero { kind.get(..1)? } else { kind });
    let mut field = Field {
        json,
        number: number.parse().ok()?,
        place: 0,
        shape,
        form,
        omit_zero,
        patch: PatchStrategy::default(),
        list_type: None,
        key_default: None,
        always_written: false,
        target: OnceLock::new(),
    };
    for mark in parts {
        match mark.split_once('=') {
            None if mark == "p" => field.patch.merge = true,
            None if mark == "v" => field.always_written = true,
            None if mark == "w" => field.patch.replace = true,
            None => field.patch.retain_keys = true,
            Some(("d", default)) => field.key_default = Some(default),
            Some(("p", key)) => {
                field.patch.merge = true;
                field.patch.merge_key = key;
            }
            Some((_, list)) => field.list_type = Some(list_type(list)),
        }
    }
    Some(field)
}

fn form(kind: &'static str) -> Form {
    match kind {
        "s" => Form::String,
        "b" => Form::Bool,
        "i" => Form::Int32,
        "l" => Form::Int64,
        "d" => Form::Double,
        "y" => Form::Bytes,
        "Q" => Form::Quantity,
        "I" => Form::IntOrString,
        "T" => Form::Time,
        "M" => Form::MicroTime,
        "D" => Form::Duration,
        "R" => Form::RawExtension,
        "F" => Form::FieldsV1,
        "V" => Form::Strings,
        "A" => Form::Alternative(Alternative::Schemas),
        "B" => Form::Alternative(Alternative::Bool),
        "P" => Form::Alternative(Alternative::Strings),
        message => Form::Message(message),
    }
}

fn list_type(text: &'static str) -> ListType {
    match text {
        "atomic" => ListType::Atomic,
        "granular" => ListType::Granular,
        "set" => ListType::Set,
        keys => ListType::Map(keys.split(':').skip(1).collect()),
    }
}
