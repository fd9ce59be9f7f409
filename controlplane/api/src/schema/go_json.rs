//! JSON as Go writes it, of JSON that a serializer of Rust wrote: the members of an object in the
//! order of upstream's struct, and `null` for lists, maps and times that are not set, where their
//! fields have no `omitempty`, or one that does not apply to them.
//!
//! Upstream an object is stored as protobuf, which knows no empty lists: `rules: []` is served as
//! `rules: null`.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::schema::{Field, Named, Schema, Shape};

/// The JSON of a message in upstream's order, with a `null` wherever upstream's JSON would have
/// one.
///
/// `json` is compact and well-formed, as a serializer wrote it. Fields that are not
/// in the schema are kept.
pub fn write(schema: Schema, json: &[u8]) -> Vec<u8> {
    Writer::new(json, true).whole(Some(schema))
}

/// JSON of a document that is never stored, in upstream's order.
pub fn order(schema: Option<Schema>, json: &[u8]) -> Vec<u8> {
    Writer::new(json, false).whole(schema)
}

/// Appends JSON with the characters escaped that are special to HTML and JavaScript, as Go's
/// `json.Marshal` writes them. They occur in texts alone, so nothing else is looked at.
pub fn escape(json: &[u8], out: &mut Vec<u8>) {
    const STRIDE: usize = 64;
    let is_special = |byte: u8| matches!(byte, b'<' | b'>' | b'&' | 0xe2);
    let mut copied = 0;
    for (chunk, start) in json.chunks(STRIDE).zip((0..).step_by(STRIDE)) {
        // Without a branch for each byte, so that the compiler compares many at once.
        if !chunk.iter().fold(false, |found, byte| found | is_special(*byte)) {
            continue;
        }
        for at in start..start + chunk.len() {
            let (escaped, length) = match json.get(at..) {
                Some([b'<', ..]) => (br"\u003c", 1),
                Some([b'>', ..]) => (br"\u003e", 1),
                Some([b'&', ..]) => (br"\u0026", 1),
                Some([0xe2, 0x80, 0xa8, ..]) => (br"\u2028", 3),
                Some([0xe2, 0x80, 0xa9, ..]) => (br"\u2029", 3),
                _ => continue,
            };
            out.extend_from_slice(json.get(copied..at).unwrap_or_default());
            out.extend_from_slice(escaped);
            copied = at + length;
        }
    }
    out.extend_from_slice(json.get(copied..).unwrap_or_default());
}

/// JSON of a value in upstream's order, if it has a kind, escaped. Encoding must not fail.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct TypeMeta {
        api_version: String,
        kind: String,
    }
    let json = serde_json::to_vec(value).unwrap_or_default();
    let own: TypeMeta = serde_json::from_slice(&json).unwrap_or_default();
    // The oldest kinds of discovery have no version.
    let version = if own.api_version.is_empty() {
        "v1"
    } else {
        &own.api_version
    };
    let ordered = order(Schema::of_kind(version, &own.kind), &json);
    let mut escaped = Vec::with_capacity(ordered.len());
    escape(&ordered, &mut escaped);
    escaped
}

/// JSON as text: it is UTF-8.
pub fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).unwrap_or_default()
}

/// Multi-line JSON like that of `json.MarshalIndent`; all lines but the first are indented by
/// `blanks`.
pub fn indent(json: &[u8], blanks: usize) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(json.len());
    escape(json, &mut escaped);
    let json = escaped;
    let mut out = Vec::with_capacity(json.len().saturating_mul(2));
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + blanks + 2 * depth, b' ');
    };
    for (at, byte) in json.iter().enumerate() {
        if in_text {
            out.push(*byte);
            in_text = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'{' | b'[' => {
                out.push(*byte);
                depth += 1;
                if !matches!(json.get(at + 1), Some(b'}' | b']')) {
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if !matches!(at.checked_sub(1).and_then(|at| json.get(at)), Some(b'{' | b'[')) {
                    line(&mut out, depth);
                }
                out.push(*byte);
            }
            b',' => {
                out.push(*byte);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            _ => {
                in_text = *byte == b'"';
                out.push(*byte);
            }
        }
    }
    out
}

/// Position of a value in the schema, if the schema knows it.
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

/// Number and field of a message's member. `apiVersion` and `kind` belong to no message. `names`
/// are the ones after the last that was looked up: Rust serializers write the members of most
/// structs in order.
fn placed(schema: Option<Schema>, names: &mut &'static [Named], key: &[u8]) -> (u32, Option<&'static Field>) {
    let key = std::str::from_utf8(key).unwrap_or_default();
    let passed = names.iter().position(|(name, ..)| *name >= key).unwrap_or(names.len());
    let rest = names.get(passed..).unwrap_or_default();
    if let Some(((name, place, field), rest)) = rest.split_first()
        && *name == key
    {
        *names = rest;
        return (place.saturating_add(2), Some(field));
    }
    match (schema.and_then(|schema| schema.placed(key)), key) {
        (Some((place, field)), _) => (place.saturating_add(2), Some(field)),
        (None, "kind") => (0, None),
        (None, "apiVersion") => (1, None),
        (None, _) => (u32::MAX, None),
    }
}

struct Writer<'a> {
    json: &'a [u8],
    at: usize,
    /// True if unset fields are written as `null`.
    nulls: bool,
    out: Vec<u8>,
    /// Members of the open messages: their positions and their ranges in the output.
    members: Vec<(u32, Range<usize>)>,
    /// Buffer for members that are moved.
    moving: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(json: &'a [u8], nulls: bool) -> Self {
        Self {
            json,
            at: 0,
            nulls,
            out: Vec::with_capacity(json.len() + 64),
            members: Vec::new(),
            moving: Vec::new(),
        }
    }

    fn whole(mut self, schema: Option<Schema>) -> Vec<u8> {
        if self.json.first() == Some(&b'{') {
            self.message(schema);
        }
        let rest = self.json.get(self.at..).unwrap_or_default();
        self.out.extend_from_slice(rest);
        self.out
    }

    /// Writes one value. Only messages are entered, so the recursion is no deeper than they are.
    fn value(&mut self, place: Option<Place>) {
        match (self.json.get(self.at), place) {
            (Some(b'{'), Some(Place::Message(schema))) => self.message(Some(schema)),
            (Some(b'{'), Some(Place::Values(schema))) => {
                while self.next(b'}') {
                    let at = self.at;
                    self.key();
                    self.pass(at);
                    self.value(Some(Place::Message(schema)));
                }
            }
            (Some(b'['), Some(Place::Items(schema))) => {
                while self.next(b']') {
                    self.value(Some(Place::Message(schema)));
                }
            }
            _ => {
                let at = self.at;
                self.skip();
                self.pass(at);
            }
        }
    }

    /// Advances to the next member or item of the open value, or past its end, and copies the text
    /// in between.
    fn next(&mut self, close: u8) -> bool {
        let is_there = matches!(self.json.get(self.at), Some(b'{' | b'[' | b','));
        let is_empty = self.json.get(self.at + 1) == Some(&close);
        let start = self.at;
        self.at += if is_there && is_empty { 2 } else { 1 };
        self.pass(start);
        is_there && !is_empty
    }

    /// Skips a key and its colon; returns the key.
    fn key(&mut self) -> &'a [u8] {
        let start = self.at + 1;
        self.text();
        self.at += 1;
        self.json.get(start..self.at.saturating_sub(2)).unwrap_or_default()
    }

    fn message(&mut self, schema: Option<Schema>) {
        let mut names = schema.map(Schema::names).unwrap_or_default();
        let nulls = schema.filter(|_| self.nulls).map(Schema::nulls).unwrap_or_default();
        let mut wanted: Vec<&'static Field> = nulls.to_vec();
        let first = self.members.len();
        self.out.push(b'{');
        let mut is_there = self.json.get(self.at + 1) != Some(&b'}');
        self.at += if is_there { 1 } else { 2 };
        while is_there {
            let (start, at) = (self.out.len(), self.at);
            let key = self.key();
            let (place, field) = placed(schema, &mut names, key);
            let before = wanted.len();
            if before > 0 {
                wanted.retain(|one| !field.is_some_and(|field| std::ptr::eq(*one, field)));
            }
            let value = self.at;
            match field.and_then(self::place) {
                None => {
                    self.skip();
                    self.pass(at);
                }
                inner => {
                    self.pass(at);
                    self.value(inner);
                }
            }
            if wanted.len() < before && matches!(self.json.get(value..self.at), Some(b"[]" | b"{}")) {
                self.out.truncate(self.out.len() - 2);
                self.out.extend_from_slice(b"null");
            }
            // k8s-openapi's LocalObjectReference has an empty `name` where Go's has none.
            let is_empty = matches!(self.json.get(value..self.at), Some(b"\"\""));
            if is_empty && field.is_some_and(|field| field.omit_zero && field.key_default == Some("")) {
                self.out.truncate(start);
            } else {
                self.end_of_member(place, start);
            }
            is_there = self.json.get(self.at) == Some(&b',');
            self.at += 1;
        }
        for field in wanted {
            let start = self.out.len();
            for part in ["\"", field.json, "\":null"] {
                self.out.extend_from_slice(part.as_bytes());
            }
            let (place, _) = placed(schema, &mut names, field.json.as_bytes());
            self.end_of_member(place, start);
        }
        self.sort(first);
        if self.out.last() == Some(&b',') {
            self.out.pop();
        }
        self.out.push(b'}');
    }

    fn end_of_member(&mut self, place: u32, start: usize) {
        self.out.push(b',');
        self.members.push((place, start..self.out.len()));
    }

    /// Sorts the members from `first` on, each with its comma, and forgets them.
    fn sort(&mut self, first: usize) {
        let Some(members) = self.members.get_mut(first..) else {
            return;
        };
        if !members.is_sorted_by_key(|(place, _)| *place) {
            let start = members.first().map_or(self.out.len(), |(_, span)| span.start);
            members.sort_by_key(|(place, _)| *place);
            self.moving.clear();
            for (_, span) in members {
                self.moving
                    .extend_from_slice(self.out.get(span.clone()).unwrap_or_default());
            }
            self.out.truncate(start);
            self.out.extend_from_slice(&self.moving);
        }
        self.members.truncate(first);
    }

    /// Copies the text since `start`.
    fn pass(&mut self, start: usize) {
        let passed = self.json.get(start..self.at).unwrap_or_default();
        self.out.extend_from_slice(passed);
    }

    /// Skips one value or key without reading it.
    fn skip(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.json.get(self.at) {
            match byte {
                b'"' => {
                    self.text();
                    if depth == 0 {
                        return;
                    }
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' | b',' | b':' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.at += 1,
            }
        }
    }

    fn text(&mut self) {
        let mut rest = self.json.get(self.at + 1..).unwrap_or_default().iter();
        while let Some(byte) = rest.next() {
            match byte {
                b'\\' => {
                    rest.next();
                }
                b'"' => break,
                _ => {}
            }
        }
        self.at = self.json.len() - rest.len();
    }
}
