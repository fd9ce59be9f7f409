//! Removal of what Go's `omitempty` leaves out: empty lists, maps and strings, zeroes and false of
//! fields that are values.
//!
//! Upstream, an object that a client sent with `volumes: []` is the same as one without, is stored
//! and shown without, and has the same hash. The types here distinguish an empty list from none, so
//! empty values are removed from clients' JSON before it is decoded.

use std::borrow::Cow;
use std::ops::Range;

use crate::schema::{Field, Form, Schema, Shape};

/// The JSON of a message without the members that upstream's JSON would not have. Well-formed JSON
/// stays well-formed; fields that are not in the schema are kept.
pub fn empty(schema: Schema, json: &[u8]) -> Cow<'_, [u8]> {
    let mut scanner = Scanner {
        schema,
        json,
        levels: Vec::new(),
        cuts: Vec::new(),
    };
    let mut at = 0;
    while at < json.len() {
        at = scanner.step(at);
    }
    scanner.rest()
}

/// Value that may be empty.
#[derive(Clone, Copy)]
enum Empty {
    List,
    Map,
    Text,
    Zero,
    False,
}

/// Type of the members or items of an open object or list.
#[derive(Clone, Copy)]
enum Place {
    Message(Schema),
    Items(&'static Field),
    Values(&'static Field),
    Unknown,
}

impl Place {
    fn of_field(field: &'static Field) -> Self {
        match field.shape {
            Shape::List => Self::Items(field),
            Shape::Map => Self::Values(field),
            Shape::One | Shape::Inline => Self::of_value(field),
        }
    }

    fn of_value(field: &Field) -> Self {
        field.message().map_or(Self::Unknown, Self::Message)
    }
}

/// Open object or list.
struct Level {
    is_object: bool,
    expects_key: bool,
    /// Offset of the last member, and its key without the quotation marks.
    member: usize,
    key: Range<usize>,
    /// Offset of the last comma that stays.
    comma: Option<usize>,
    /// Looked up on first use.
    place: Option<Place>,
}

struct Scanner<'a> {
    schema: Schema,
    json: &'a [u8],
    levels: Vec<Level>,
    /// Ranges to remove, in order and not adjacent.
    cuts: Vec<Range<usize>>,
}

impl<'a> Scanner<'a> {
    /// Reads the token at an offset; returns the offset of the next.
    fn step(&mut self, at: usize) -> usize {
        match self.json.get(at) {
            Some(b'"') => self.text(at),
            Some(b'{') => self.open(at, b'}', Empty::Map),
            Some(b'[') => self.open(at, b']', Empty::List),
            Some(b'}' | b']') => {
                self.levels.pop();
                at + 1
            }
            Some(b',') => {
                if let Some(level) = self.levels.last_mut() {
                    level.comma = Some(at);
                    level.expects_key = level.is_object;
                }
                at + 1
            }
            Some(b'f') => self.value(at..at + 5, Some(Empty::False)),
            Some(b'-' | b'0'..=b'9') => {
                let end = self.skip(at, |byte| {
                    matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                });
                let zero = self.json.get(at..end) == Some(b"0");
                self.value(at..end, zero.then_some(Empty::Zero))
            }
            _ => at + 1,
        }
    }

    /// Reads a key or a string value.
    fn text(&mut self, at: usize) -> usize {
        let end = text_end(self.json, at);
        if let Some(level) = self.levels.last_mut().filter(|level| level.expects_key) {
            level.member = at;
            level.key = at + 1..end.saturating_sub(1);
            level.expects_key = false;
            return end;
        }
        self.value(at..end, (end == at + 2).then_some(Empty::Text))
    }

    fn open(&mut self, at: usize, close: u8, empty: Empty) -> usize {
        let inner = self.skip(at + 1, u8::is_ascii_whitespace);
        if self.json.get(inner) == Some(&close) {
            return self.value(at..inner + 1, Some(empty));
        }
        self.levels.push(Level {
            is_object: matches!(empty, Empty::Map),
            expects_key: matches!(empty, Empty::Map),
            member: at,
            key: 0..0,
            comma: None,
            place: None,
        });
        at + 1
    }

    /// Handles a complete value: removes its member if it is empty.
    fn value(&mut self, span: Range<usize>, empty: Option<Empty>) -> usize {
        let omitted = empty.is_some_and(|empty| self.field().is_some_and(|field| omits(field, empty)));
        let Some(level) = self.levels.last_mut().filter(|_| omitted) else {
            return span.end;
        };
        let next = skip(self.json, span.end, u8::is_ascii_whitespace);
        let (start, end) = if self.json.get(next) == Some(&b',') {
            level.expects_key = true;
            (level.member, next + 1)
        } else {
            (level.comma.unwrap_or(level.member), span.end)
        };
        while self.cuts.last().is_some_and(|cut| start <= cut.start) {
            self.cuts.pop();
        }
        self.cuts.push(start..end);
        end
    }

    /// Field whose value is read, if it belongs to a message.
    fn field(&mut self) -> Option<&'static Field> {
        let Place::Message(schema) = self.place()? else {
            return None;
        };
        schema.field(key(self.json, self.levels.last()?))
    }

    /// Type of the innermost open object; none in a list.
    fn place(&mut self) -> Option<Place> {
        if !self.levels.last()?.is_object {
            return None;
        }
        let mut place = Place::Message(self.schema);
        let mut outer: Option<&Level> = None;
        for level in &mut self.levels {
            let found = *level.place.get_or_insert_with(|| match (outer, place) {
                (None, root) => root,
                (Some(outer), Place::Message(schema)) if outer.is_object => schema
                    .field(key(self.json, outer))
                    .map_or(Place::Unknown, Place::of_field),
                (Some(outer), Place::Values(field)) if outer.is_object => Place::of_value(field),
                (Some(outer), Place::Items(field)) if !outer.is_object => Place::of_value(field),
                (Some(_), _) => Place::Unknown,
            });
            place = found;
            outer = Some(level);
        }
        Some(place)
    }

    fn skip(&self, at: usize, wanted: impl Fn(&u8) -> bool) -> usize {
        skip(self.json, at, wanted)
    }

    fn rest(self) -> Cow<'a, [u8]> {
        if self.cuts.is_empty() {
            return Cow::Borrowed(self.json);
        }
        let mut kept = Vec::with_capacity(self.json.len());
        let mut from = 0;
        for cut in self.cuts {
            kept.extend_from_slice(self.json.get(from..cut.start).unwrap_or_default());
            from = cut.end;
        }
        kept.extend_from_slice(self.json.get(from..).unwrap_or_default());
        Cow::Owned(kept)
    }
}

/// First offset from `at` on whose byte is not wanted.
fn skip(json: &[u8], at: usize, wanted: impl Fn(&u8) -> bool) -> usize {
    let rest = json.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| wanted(byte)).count()
}

/// Last key as it is written: one with escapes is no field's.
fn key<'a>(json: &'a [u8], level: &Level) -> &'a str {
    let bytes = json.get(level.key.clone()).unwrap_or_default();
    std::str::from_utf8(bytes).unwrap_or_default()
}

fn omits(field: &Field, empty: Empty) -> bool {
    match empty {
        // Also of fields that are always written: they are written as null.
        Empty::List => field.shape == Shape::List,
        Empty::Map => field.shape == Shape::Map,
        Empty::Text => field.omit_zero && field.form == Form::String,
        Empty::Zero => field.omit_zero && matches!(field.form, Form::Int32 | Form::Int64),
        Empty::False => field.omit_zero && field.form == Form::Bool,
    }
}

/// Offset after the string that starts here.
fn text_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    json.len()
}

#[cfg(test)]
mod tests;
