//! What Go writes as `null`: lists, maps and times that are not set, where their fields have no `omitempty`, or one that
//! does not apply to them.
//!
//! Upstream an object is stored as protobuf, which knows no empty lists: `rules: []` is served as `rules: null`.

use std::ops::Range;

use crate::schema::{Field, Form, Schema, Shape};

/// The JSON of a message with a `null` wherever upstream's JSON would have one.
///
/// `json` is compact and well-formed, as a serializer wrote it. What the schema does not know stays as it is.
pub fn write(schema: Schema, json: Vec<u8>) -> Vec<u8> {
    let mut scanner = Scanner {
        json: &json,
        at: 0,
        edits: Vec::new(),
    };
    scanner.value(Some(Place::Message(schema)));
    if scanner.edits.is_empty() {
        return json;
    }
    let mut written = Vec::with_capacity(json.len() + 32 * scanner.edits.len());
    let mut from = 0;
    for Edit { span, name, comma } in &scanner.edits {
        written.extend_from_slice(json.get(from..span.start).unwrap_or_default());
        if *comma {
            written.push(b',');
        }
        if let Some(name) = name {
            written.extend_from_slice(format!("\"{name}\":").as_bytes());
        }
        written.extend_from_slice(b"null");
        from = span.end;
    }
    written.extend_from_slice(json.get(from..).unwrap_or_default());
    written
}

/// Whether a field is `null` in JSON when it is not set.
fn is_null_when_unset(field: &Field) -> bool {
    field.always_written
        && (matches!(field.shape, Shape::List | Shape::Map)
            || (field.shape == Shape::One && matches!(field.form, Form::Time | Form::MicroTime)))
}

/// What a value is, when the schema knows it.
#[derive(Clone, Copy)]
enum Place {
    Message(Schema),
    Items(Schema),
    Values(Schema),
}

fn place(field: &Field) -> Option<Place> {
    let message = field.message()?;
    Some(match field.shape {
        Shape::List => Place::Items(message),
        Shape::Map => Place::Values(message),
        Shape::One | Shape::Inline => Place::Message(message),
    })
}

/// A `null` in place of a part of the JSON.
struct Edit {
    span: Range<usize>,
    /// Of the member that is added.
    name: Option<&'static str>,
    comma: bool,
}

struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
    /// In order.
    edits: Vec<Edit>,
}

impl Scanner<'_> {
    /// Goes past one value. Only messages are entered, so this is no deeper than they are.
    fn value(&mut self, place: Option<Place>) {
        match (self.json.get(self.at), place) {
            (Some(b'{'), Some(Place::Message(schema))) => self.message(schema),
            (Some(b'{'), Some(Place::Values(schema))) => {
                while self.next(b'}') {
                    self.skip();
                    self.at += 1;
                    self.value(Some(Place::Message(schema)));
                }
            }
            (Some(b'['), Some(Place::Items(schema))) => {
                while self.next(b']') {
                    self.value(Some(Place::Message(schema)));
                }
            }
            _ => self.skip(),
        }
    }

    /// Goes to the next member or item of what is open, or past its end.
    fn next(&mut self, close: u8) -> bool {
        let is_there = matches!(self.json.get(self.at), Some(b'{' | b'[' | b','));
        let is_empty = self.json.get(self.at + 1) == Some(&close);
        self.at += if is_there && is_empty { 2 } else { 1 };
        is_there && !is_empty
    }

    fn message(&mut self, schema: Schema) {
        let mut wanted: Vec<&'static Field> = schema
            .fields()
            .iter()
            .filter(|field| is_null_when_unset(field))
            .collect();
        let is_empty = self.json.get(self.at + 1) == Some(&b'}');
        while self.next(b'}') {
            let start = self.at + 1;
            self.skip();
            let key = self.json.get(start..self.at.saturating_sub(1)).unwrap_or_default();
            let field = std::str::from_utf8(key).ok().and_then(|key| schema.field(key));
            self.at += 1;
            let Some(field) = field else {
                self.skip();
                continue;
            };
            let (start, before) = (self.at, wanted.len());
            wanted.retain(|one| !std::ptr::eq(*one, field));
            self.value(place(field));
            let value = self.json.get(start..self.at);
            if wanted.len() < before && matches!(value, Some(b"[]" | b"{}")) {
                self.edits.push(Edit {
                    span: start..self.at,
                    name: None,
                    comma: false,
                });
            }
        }
        let end = self.at.saturating_sub(1);
        for (index, field) in wanted.iter().enumerate() {
            self.edits.push(Edit {
                span: end..end,
                name: Some(field.json),
                comma: index > 0 || !is_empty,
            });
        }
    }

    /// Goes past one value, or a key, that nobody looks into.
    fn skip(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.json.get(self.at) {
            match byte {
                b'"' => self.text(),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' | b',' | b':' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
            if depth == 0 && matches!(self.json.get(self.at), Some(b'}' | b']' | b',' | b':')) {
                return;
            }
        }
    }

    fn text(&mut self) {
        self.at += 1;
        while let Some(byte) = self.json.get(self.at) {
            match byte {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return;
                }
                _ => self.at += 1,
            }
        }
    }
}
