//! A table of expressions with their values or errors in Kubernetes' environment.

#![allow(
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and shows what it does not expect as it is"
)]

use controlplane_cel::{CompileError, Environment, JSON_BYTES, Type, Value};
use serde_json::json;

/// Formats a value like a literal.
fn show(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => format!("{number}u"),
        Value::Double(number) => format!("{number:?}"),
        Value::String(text) => format!("'{}'", &**text),
        Value::Bytes(bytes) => format!("b'{}'", String::from_utf8_lossy(bytes)),
        Value::List(list) => {
            let items: Vec<String> = list.iter().map(|item| show(&item.expect("an item"))).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let entries: Vec<String> = map
                .keys()
                .iter()
                .map(|key| {
                    let value = map.get(key).expect("the key is there").expect("a value");
                    format!("{key:?}: {}", show(&value))
                })
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Object(object) => format!(
            "{}{}",
            object.type_name(),
            object.to_json(&mut { JSON_BYTES }).expect("JSON")
        ),
        Value::Timestamp(time) => time.to_string(),
        Value::Duration(nanos) => format!("{nanos}ns"),
        Value::Type(name) => format!("type {}", &**name),
        Value::Optional(None) => "none".to_owned(),
        Value::Optional(Some(value)) => format!("some {}", show(value)),
        Value::Ip(address) => address.to_string(),
        Value::Cidr(range) => range.to_string(),
        other => format!("{other:?}"),
    }
}

fn answer(text: &str) -> String {
    let object = json!({
        "name": "web", "replicas": 3, "ratio": 0.5, "whole": 2.0, "on": true, "none": null,
        "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}],
        "labels": {"app": "web", "tier": "front"}, "a-b": 1
    });
    let environment = Environment::default()
        .with("self", Type::Dyn)
        .with("text", Type::String)
        .with_patches();
    let program = match environment.compile(text) {
        Ok(program) => program,
        Err(CompileError::Constant(error)) => return format!("refused: {error}"),
        Err(CompileError::Issues(error)) => {
            let line = error.lines().next().unwrap_or_default();
            return format!("refused: {}", line.splitn(5, ':').nth(4).unwrap_or(line).trim());
        }
    };
    let object = controlplane_cel::view(&object, None).expect("a view");
    let mut budget = 10_000_000;
    let bindings = [("self", object), ("text", Value::from("héllo"))];
    match program.evaluate(&bindings, &mut budget) {
        Ok(value) => show(&value),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn expressions_answer_as_upstreams_environment_does() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in include_str!("expressions.txt").lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (text, expected) = line.rsplit_once(" => ").unwrap_or_else(|| panic!("no answer: {line}"));
        count += 1;
        let found = answer(text.trim());
        if found != expected.trim() {
            wrong.push(format!(
                "{}\n    expected {}\n    found    {found}",
                text.trim(),
                expected.trim()
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {count} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(count >= 300, "the table has {count} lines");
}
