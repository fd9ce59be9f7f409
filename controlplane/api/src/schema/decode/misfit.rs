//! Errors of Go's JSON decoder for JSON that does not fit a message.
//!
//! Go keeps the first value of a wrong type, reads on, and gives up at once where a type that reads
//! itself (a quantity, a time) refuses. It names the innermost struct, the fields that lead there
//! without indices and keys, and the Go type.

use std::borrow::Cow;

use super::cursor::{Cursor, Found, Malformed};
use super::{go_time, names};
use crate::schema::{Field, Form, Schema, Shape};
use crate::value::quantity::Quantity;

/// JSON value that does not fit the schema.
#[derive(Debug, PartialEq)]
pub(super) struct Misfit {
    /// The path of the value, without indices and keys.
    pub(super) path: String,
    /// Go's message.
    pub(super) message: String,
}

/// Findings of Go's decoder.
#[derive(Default)]
pub(super) struct Seen {
    /// The first error.
    pub(super) misfit: Option<Misfit>,
    /// True if the decoder drops blanks around a quantity.
    pub(super) blanks: bool,
}

/// True for white space that a quantity may have around it. JSON must not write it as an escape,
/// which Go does not resolve there.
pub(super) fn is_blank(character: char) -> bool {
    character.is_whitespace() && character >= ' '
}

/// Looks through well-formed JSON. Malformed JSON is not reported here.
pub(super) fn find(schema: Option<Schema>, json: &[u8]) -> Seen {
    let Some(schema) = schema else { return Seen::default() };
    let mut walk = Walk {
        text: Cursor { json, at: 0 },
        path: Vec::new(),
        saved: None,
        blanks: false,
    };
    let root = Context {
        owner: names::of_message(schema),
    };
    let misfit = match walk.message(schema, &root) {
        Err(Stop::Refused(misfit)) => Some(misfit),
        Ok(()) | Err(Stop::Malformed) => walk.saved,
    };
    let blanks = walk.blanks;
    Seen { misfit, blanks }
}

/// Reason for which a walk ends.
enum Stop {
    /// A type with an unmarshaler of its own rejects its value.
    Refused(Misfit),
    /// The text is not JSON.
    Malformed,
}

impl From<Malformed> for Stop {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Struct whose field is read.
struct Context {
    owner: &'static str,
}

struct Walk<'j> {
    text: Cursor<'j>,
    path: Vec<&'static str>,
    saved: Option<Misfit>,
    blanks: bool,
}

impl<'j> Walk<'j> {
    fn message(&mut self, schema: Schema, context: &Context) -> Result<(), Stop> {
        if self.text.peek()? != b'{' {
            let go_type = names::type_of_message(schema);
            return self.misplaced(context, &go_type);
        }
        let own = Context {
            owner: names::of_message(schema),
        };
        self.members(|walk, key| match schema.field(key) {
            Some(field) => {
                walk.path.push(field.json);
                let read = walk.field(schema, field, &own);
                walk.path.pop();
                read
            }
            None => Ok(walk.text.skip()?),
        })
    }

    fn field(&mut self, schema: Schema, field: &'static Field, context: &Context) -> Result<(), Stop> {
        match field.shape {
            Shape::One | Shape::Inline => self.one(schema, field, context),
            Shape::List if self.text.peek()? == b'[' => self.items(|walk| walk.one(schema, field, context)),
            Shape::Map if self.text.peek()? == b'{' => self.members(|walk, _| walk.one(schema, field, context)),
            Shape::List | Shape::Map => self.misplaced(context, &names::type_of_field(schema, field)),
        }
    }

    fn one(&mut self, schema: Schema, field: &'static Field, context: &Context) -> Result<(), Stop> {
        let go_type = || names::type_of_one(schema, field);
        match field.form {
            Form::Message(_) => match field.message() {
                Some(message) => self.message(message, context),
                None => Ok(self.text.skip()?),
            },
            Form::Strings if self.text.peek()? == b'[' => {
                self.items(|walk| walk.text(context, || "string".to_owned()).map(drop))
            }
            Form::Strings => self.misplaced(context, "v1.ExtraValue"),
            Form::RawExtension | Form::FieldsV1 | Form::Duration | Form::Alternative(_) => Ok(self.text.skip()?),
            Form::String => self.text(context, go_type).map(drop),
            Form::Bytes => self.bytes(context),
            Form::Bool => match self.text.scalar()? {
                Found::Null | Found::Bool => Ok(()),
                other @ (Found::Number(_) | Found::Text(_) | Found::List | Found::Object) => {
                    self.save(context, &other, "bool")
                }
            },
            Form::Int32 => self.integer(context, go_type, i64::from(i32::MIN)..=i64::from(i32::MAX)),
            Form::Int64 => self.integer(context, go_type, i64::MIN..=i64::MAX),
            Form::Double => match self.text.scalar()? {
                Found::Null => Ok(()),
                Found::Number(number) if number.parse().is_ok_and(f64::is_finite) => Ok(()),
                Found::Number(number) => self.save_as(context, &format!("number {number}"), "float64"),
                other @ (Found::Bool | Found::Text(_) | Found::List | Found::Object) => {
                    self.save(context, &other, "float64")
                }
            },
            Form::Quantity => self.quantity(),
            Form::IntOrString => self.int_or_string(context),
            Form::Time => self.time(context, go_time::SECONDS),
            Form::MicroTime => self.time(context, go_time::MICROSECONDS),
        }
    }

    /// Reads a string. The type's name is built only for an error: most values are strings.
    fn text(&mut self, context: &Context, go_type: impl FnOnce() -> String) -> Result<Option<Cow<'j, str>>, Stop> {
        match self.text.scalar()? {
            Found::Text(text) => Ok(Some(text)),
            Found::Null => Ok(None),
            other @ (Found::Bool | Found::Number(_) | Found::List | Found::Object) => {
                self.save(context, &other, &go_type()).map(|()| None)
            }
        }
    }

    fn bytes(&mut self, context: &Context) -> Result<(), Stop> {
        if self.text.peek()? == b'[' {
            // A list of numbers is bytes, too.
            return Ok(self.text.skip()?);
        }
        if let Some(text) = self.text(context, || "[]uint8".to_owned())?
            && let Some(at) = misspelt(text.as_bytes())
        {
            let message = format!("illegal base64 data at input byte {at}");
            let misfit = self.misfit(message);
            self.saved.get_or_insert(misfit);
        }
        Ok(())
    }

    fn integer(
        &mut self,
        context: &Context,
        go_type: impl FnOnce() -> String,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<(), Stop> {
        match self.text.scalar()? {
            Found::Null => Ok(()),
            Found::Number(number) if number.parse().is_ok_and(|number: i64| range.contains(&number)) => Ok(()),
            Found::Number(number) => self.save_as(context, &format!("number {number}"), &go_type()),
            other @ (Found::Bool | Found::Text(_) | Found::List | Found::Object) => {
                self.save(context, &other, &go_type())
            }
        }
    }

    fn quantity(&mut self) -> Result<(), Stop> {
        let start = self.text.at;
        let text = match self.text.scalar()? {
            Found::Null => return Ok(()),
            Found::Text(text) => text,
            Found::Bool | Found::Number(_) | Found::List | Found::Object => {
                let json: &'j [u8] = self.text.json;
                String::from_utf8_lossy(json.get(start..self.text.at).unwrap_or_default())
            }
        };
        let bare = text.trim_matches(is_blank);
        self.blanks |= bare.len() < text.len();
        match bare.parse::<Quantity>() {
            Ok(_) => Ok(()),
            Err(error) => Err(self.refuse(error.to_string())),
        }
    }

    fn int_or_string(&mut self, context: &Context) -> Result<(), Stop> {
        let found = match self.text.scalar()? {
            Found::Null | Found::Text(_) => return Ok(()),
            Found::Number(number) if number.parse::<i32>().is_ok() => return Ok(()),
            Found::Number(number) => format!("number {number}"),
            other @ (Found::Bool | Found::List | Found::Object) => kind_of(&other).to_owned(),
        };
        Err(self.refuse(self.words(context, &found, "int32")))
    }

    fn time(&mut self, context: &Context, layout: go_time::Layout) -> Result<(), Stop> {
        let message = match self.text.scalar()? {
            Found::Null => return Ok(()),
            Found::Text(text) => match go_time::check(&text, layout) {
                Ok(()) => return Ok(()),
                Err(message) => message,
            },
            other @ (Found::Bool | Found::Number(_) | Found::List | Found::Object) => {
                self.words(context, kind_of(&other), "string")
            }
        };
        Err(self.refuse(message))
    }

    /// Records a value that does not fit, unless it is null.
    fn misplaced(&mut self, context: &Context, go_type: &str) -> Result<(), Stop> {
        match self.text.scalar()? {
            Found::Null => Ok(()),
            other @ (Found::Bool | Found::Number(_) | Found::Text(_) | Found::List | Found::Object) => {
                self.save(context, &other, go_type)
            }
        }
    }

    fn save(&mut self, context: &Context, found: &Found<'_>, go_type: &str) -> Result<(), Stop> {
        self.save_as(context, kind_of(found), go_type)
    }

    #[expect(clippy::unnecessary_wraps, reason = "it ends the reading of a value, which may fail")]
    fn save_as(&mut self, context: &Context, found: &str, go_type: &str) -> Result<(), Stop> {
        let misfit = self.misfit(self.words(context, found, go_type));
        self.saved.get_or_insert(misfit);
        Ok(())
    }

    fn refuse(&self, message: String) -> Stop {
        Stop::Refused(self.misfit(message))
    }

    fn misfit(&self, message: String) -> Misfit {
        Misfit {
            path: self.path.join("."),
            message,
        }
    }

    fn words(&self, context: &Context, found: &str, go_type: &str) -> String {
        if self.path.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {go_type}");
        }
        format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {go_type}",
            context.owner,
            self.path.join(".")
        )
    }

    fn members(&mut self, mut each: impl FnMut(&mut Self, &str) -> Result<(), Stop>) -> Result<(), Stop> {
        self.text.at += 1;
        loop {
            match self.text.peek()? {
                b'}' => {
                    self.text.at += 1;
                    return Ok(());
                }
                b',' => self.text.at += 1,
                b'"' => {
                    let key = self.text.string()?;
                    if self.text.peek()? != b':' {
                        return Err(Stop::Malformed);
                    }
                    self.text.at += 1;
                    each(self, &key)?;
                }
                _ => return Err(Stop::Malformed),
            }
        }
    }

    fn items(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        self.text.at += 1;
        loop {
            match self.text.peek()? {
                b']' => {
                    self.text.at += 1;
                    return Ok(());
                }
                b',' => self.text.at += 1,
                _ => each(self)?,
            }
        }
    }
}

fn kind_of(found: &Found<'_>) -> &'static str {
    match found {
        Found::Null => "null",
        Found::Bool => "bool",
        Found::Number(_) => "number",
        Found::Text(_) => "string",
        Found::List => "array",
        Found::Object => "object",
    }
}

/// Offset of the first byte that is not padded base64. As in Go, line ends are skipped.
fn misspelt(text: &[u8]) -> Option<usize> {
    let digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut letters = text
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    let mut count = 0_usize;
    loop {
        let Some((at, byte)) = letters.next() else {
            // The last group is incomplete: Go reports its start.
            return (!count.is_multiple_of(4)).then(|| text.len() - count % 4);
        };
        if digit(byte) {
            count += 1;
            continue;
        }
        if byte != b'=' || count % 4 < 2 {
            return Some(at);
        }
        if count % 4 == 2 {
            match letters.next() {
                None => return Some(text.len()),
                Some((_, b'=')) => {}
                Some((at, _)) => return Some(at - 1),
            }
        }
        return letters.next().map(|(at, _)| at);
    }
}
