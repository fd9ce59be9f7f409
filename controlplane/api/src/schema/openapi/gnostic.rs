//! Parts of the v2 document as messages of gnostic's `openapi.v2`, which old clients request
//! instead of JSON.
//!
//! Paths and definitions are messages with one list each: a message that occurs several times is
//! one with all of their items, so each path and definition is written on its own. Code shared with
//! `openapi.v3` is here too.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::protobuf::Writer;

/// Writes the version and the title, which precede the paths.
pub(super) fn head(info: &Value) -> Vec<u8> {
    let mut document = Writer::default();
    document.bytes(1, b"2.0");
    within(&mut document, 2, |out| {
        text(out, 1, info.get("title"));
        text(out, 2, info.get("version"));
    });
    document.0
}

/// Encodes one path and its operations.
pub(super) fn path(path: &str, item: &Value) -> Vec<u8> {
    let mut document = Writer::default();
    within(&mut document, 8, |paths| {
        named(paths, 2, path, |out| path_item(out, item));
    });
    document.0
}

/// Writes the shared parameters.
pub(super) fn shared(parameters: &BTreeMap<String, Value>) -> Vec<u8> {
    let mut document = Writer::default();
    within(&mut document, 10, |out| {
        for (name, own) in parameters {
            named(out, 1, name, |out| parameter(out, own));
        }
    });
    document.0
}

/// Encodes one definition.
pub(super) fn definition(name: &str, definition: &Value) -> Vec<u8> {
    let mut document = Writer::default();
    within(&mut document, 9, |definitions| {
        named(definitions, 1, name, |out| schema(out, definition));
    });
    document.0
}

pub(super) fn within(out: &mut Writer, number: u32, write: impl FnOnce(&mut Writer)) {
    let written = out.nested(number, |out| {
        write(out);
        Ok::<_, std::convert::Infallible>(())
    });
    match written {
        Ok(()) => {}
    }
}

/// Writes a named entry, which is a member of an object in JSON.
pub(super) fn named(out: &mut Writer, number: u32, name: &str, write: impl FnOnce(&mut Writer)) {
    within(out, number, |entry| {
        entry.bytes(1, name.as_bytes());
        within(entry, 2, write);
    });
}

pub(super) fn text(out: &mut Writer, number: u32, value: Option<&Value>) {
    if let Some(text) = value.and_then(Value::as_str) {
        out.bytes(number, text.as_bytes());
    }
}

pub(super) fn texts(out: &mut Writer, number: u32, value: Option<&Value>) {
    for text in value.and_then(Value::as_array).into_iter().flatten() {
        self::text(out, number, Some(text));
    }
}

pub(super) fn flag(out: &mut Writer, number: u32, value: Option<&Value>) {
    if value.and_then(Value::as_bool) == Some(true) {
        out.varint(number, 1);
    }
}

/// Writes any value as YAML; JSON is YAML too.
pub(super) fn any(out: &mut Writer, number: u32, value: &Value) {
    within(out, number, |out| out.bytes(2, format!("{value}\n").as_bytes()));
}

pub(super) fn extensions(out: &mut Writer, number: u32, members: &Map<String, Value>) {
    for (name, value) in members.iter().filter(|(name, _)| name.starts_with("x-")) {
        within(out, number, |entry| {
            entry.bytes(1, name.as_bytes());
            any(entry, 2, value);
        });
    }
}

fn path_item(out: &mut Writer, item: &Value) {
    let methods = [
        ("get", 2),
        ("put", 3),
        ("post", 4),
        ("delete", 5),
        ("options", 6),
        ("head", 7),
        ("patch", 8),
    ];
    for (method, number) in methods {
        if let Some(Value::Object(members)) = item.get(method) {
            within(out, number, |out| operation(out, members));
        }
    }
    parameters(out, 9, item.get("parameters"));
}

fn operation(out: &mut Writer, members: &Map<String, Value>) {
    texts(out, 1, members.get("tags"));
    text(out, 3, members.get("description"));
    text(out, 5, members.get("operationId"));
    texts(out, 6, members.get("produces"));
    texts(out, 7, members.get("consumes"));
    parameters(out, 8, members.get("parameters"));
    within(out, 9, |out| {
        let responses = members.get("responses").and_then(Value::as_object);
        for (code, response) in responses.into_iter().flatten() {
            // The value is a oneof, whose first member is a response, not a reference.
            named(out, 1, code, |out| within(out, 1, |out| self::response(out, response)));
        }
    });
    texts(out, 10, members.get("schemes"));
    extensions(out, 13, members);
}

fn response(out: &mut Writer, response: &Value) {
    text(out, 1, response.get("description"));
    if let Some(of) = response.get("schema") {
        within(out, 2, |out| within(out, 1, |out| schema(out, of)));
    }
}

fn parameters(out: &mut Writer, number: u32, parameters: Option<&Value>) {
    for parameter in parameters.and_then(Value::as_array).into_iter().flatten() {
        within(out, number, |out| match parameter.get("$ref") {
            Some(reference) => within(out, 2, |out| text(out, 1, Some(reference))),
            None => within(out, 1, |out| self::parameter(out, parameter)),
        });
    }
}

fn parameter(out: &mut Writer, parameter: &Value) {
    let get = |name: &str| parameter.get(name);
    match get("in").and_then(Value::as_str) {
        Some("body") => within(out, 1, |out| {
            text(out, 2, get("name"));
            text(out, 3, get("in"));
            flag(out, 4, get("required"));
            if let Some(of) = get("schema") {
                within(out, 5, |out| schema(out, of));
            }
        }),
        place => {
            // Query parameters have one more field.
            let (choice, kind, unique) = if place == Some("query") { (3, 6, 20) } else { (4, 5, 19) };
            within(out, 2, |out| {
                within(out, choice, |out| {
                    flag(out, 1, get("required"));
                    text(out, 2, get("in"));
                    text(out, 3, get("description"));
                    text(out, 4, get("name"));
                    text(out, kind, get("type"));
                    flag(out, unique, get("uniqueItems"));
                });
            });
        }
    }
}

fn schema(out: &mut Writer, of: &Value) {
    let Some(members) = of.as_object() else { return };
    let get = |name: &str| members.get(name);
    text(out, 1, get("$ref"));
    text(out, 2, get("format"));
    text(out, 4, get("description"));
    texts(out, 19, get("required"));
    for value in get("enum").and_then(Value::as_array).into_iter().flatten() {
        any(out, 20, value);
    }
    match get("additionalProperties") {
        Some(Value::Bool(allowed)) => within(out, 21, |out| out.varint(2, u64::from(*allowed))),
        Some(of) => within(out, 21, |out| within(out, 1, |out| schema(out, of))),
        None => {}
    }
    if let Some(kind) = get("type") {
        within(out, 22, |out| text(out, 1, Some(kind)));
    }
    if let Some(of) = get("items") {
        within(out, 23, |out| within(out, 1, |out| schema(out, of)));
    }
    if let Some(Value::Object(properties)) = get("properties") {
        within(out, 25, |out| {
            for (name, of) in properties {
                named(out, 1, name, |out| schema(out, of));
            }
        });
    }
    extensions(out, 31, members);
}
