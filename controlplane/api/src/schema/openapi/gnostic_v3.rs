//! A v3 document as a message of gnostic's `openapi.v3`.

use serde_json::{Map, Value};

use super::gnostic::{any, extensions, flag, named, text, texts, within};
use crate::schema::protobuf::Writer;

/// The whole document, from its JSON.
pub(super) fn document(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    text(&mut out, 1, document.get("openapi"));
    within(&mut out, 2, |out| {
        text(out, 1, document.pointer("/info/title"));
        text(out, 6, document.pointer("/info/version"));
    });
    within(&mut out, 4, |out| {
        each(document.get("paths"), |path, item| {
            named(out, 1, path, |out| path_item(out, item));
        });
    });
    within(&mut out, 5, |out| {
        within(out, 1, |out| schemas(out, document.pointer("/components/schemas")));
        within(out, 7, |out| {
            each(document.pointer("/components/securitySchemes"), |name, scheme| {
                named(out, 1, name, |out| within(out, 1, |out| security_scheme(out, scheme)));
            });
        });
    });
    out.0
}

fn each(members: Option<&Value>, mut visit: impl FnMut(&str, &Value)) {
    for (name, value) in members.and_then(Value::as_object).into_iter().flatten() {
        visit(name, value);
    }
}

fn items(list: Option<&Value>) -> impl Iterator<Item = &Value> {
    list.and_then(Value::as_array).into_iter().flatten()
}

fn security_scheme(out: &mut Writer, scheme: &Value) {
    for (number, name) in [(1, "type"), (2, "description"), (3, "name"), (4, "in")] {
        text(out, number, scheme.get(name));
    }
}

fn path_item(out: &mut Writer, item: &Value) {
    let methods = [
        ("get", 4),
        ("put", 5),
        ("post", 6),
        ("delete", 7),
        ("options", 8),
        ("head", 9),
        ("patch", 10),
    ];
    for (method, number) in methods {
        if let Some(Value::Object(members)) = item.get(method) {
            within(out, number, |out| operation(out, members));
        }
    }
    parameters(out, 13, item.get("parameters"));
}

fn operation(out: &mut Writer, members: &Map<String, Value>) {
    texts(out, 1, members.get("tags"));
    text(out, 3, members.get("description"));
    text(out, 5, members.get("operationId"));
    parameters(out, 6, members.get("parameters"));
    if let Some(body) = members.get("requestBody") {
        // Bodies, responses and parameters are oneofs, whose first member is the value, not a
        // reference.
        within(out, 7, |out| {
            within(out, 1, |out| {
                text(out, 1, body.get("description"));
                content(out, 2, body.get("content"));
                flag(out, 3, body.get("required"));
            });
        });
    }
    within(out, 8, |out| {
        each(members.get("responses"), |code, response| {
            named(out, 2, code, |out| {
                within(out, 1, |out| {
                    text(out, 1, response.get("description"));
                    content(out, 3, response.get("content"));
                });
            });
        });
    });
    extensions(out, 13, members);
}

fn content(out: &mut Writer, number: u32, content: Option<&Value>) {
    let Some(content) = content else { return };
    within(out, number, |out| {
        each(Some(content), |media_type, media| {
            named(out, 1, media_type, |out| {
                if let Some(of) = media.get("schema") {
                    within(out, 1, |out| schema_or_reference(out, of));
                }
            });
        });
    });
}

fn parameters(out: &mut Writer, number: u32, parameters: Option<&Value>) {
    for parameter in items(parameters) {
        within(out, number, |out| {
            within(out, 1, |out| {
                text(out, 1, parameter.get("name"));
                text(out, 2, parameter.get("in"));
                text(out, 3, parameter.get("description"));
                flag(out, 4, parameter.get("required"));
                if let Some(of) = parameter.get("schema") {
                    within(out, 10, |out| schema_or_reference(out, of));
                }
            });
        });
    }
}

fn schemas(out: &mut Writer, schemas: Option<&Value>) {
    each(schemas, |name, of| {
        named(out, 1, name, |out| schema_or_reference(out, of));
    });
}

fn schema_or_reference(out: &mut Writer, of: &Value) {
    match of.get("$ref") {
        Some(reference) => within(out, 2, |out| text(out, 1, Some(reference))),
        None => within(out, 1, |out| schema(out, of)),
    }
}

fn schema(out: &mut Writer, of: &Value) {
    let Some(members) = of.as_object() else { return };
    let get = |name: &str| members.get(name);
    flag(out, 20, get("uniqueItems"));
    texts(out, 23, get("required"));
    for value in items(get("enum")) {
        any(out, 24, value);
    }
    text(out, 25, get("type"));
    for (number, name) in [(26, "allOf"), (27, "oneOf"), (28, "anyOf")] {
        for of in items(get(name)) {
            within(out, number, |out| schema_or_reference(out, of));
        }
    }
    if let Some(of) = get("items") {
        within(out, 30, |out| within(out, 1, |out| schema_or_reference(out, of)));
    }
    if let Some(properties) = get("properties") {
        within(out, 31, |out| schemas(out, Some(properties)));
    }
    match get("additionalProperties") {
        Some(Value::Bool(allowed)) => within(out, 32, |out| out.varint(2, u64::from(*allowed))),
        Some(of) => within(out, 32, |out| within(out, 1, |out| schema_or_reference(out, of))),
        None => {}
    }
    if let Some(default) = get("default") {
        // An object as default has no form of its own: upstream writes an empty message as well.
        within(out, 33, |out| match default {
            Value::Number(number) => out.fixed64(1, number.as_f64().unwrap_or_default().to_bits()),
            Value::Bool(is) => out.varint(2, u64::from(*is)),
            Value::String(text) => out.bytes(3, text.as_bytes()),
            Value::Null | Value::Array(_) | Value::Object(_) => {}
        });
    }
    text(out, 34, get("description"));
    text(out, 35, get("format"));
    extensions(out, 36, members);
}
