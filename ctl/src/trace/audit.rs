//! Reader of the audit log, if it is on this machine.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use serde_json::Value;

use crate::client::api::text_at;

/// Returns completed writes of the object, and of objects whose names begin with its name, oldest
/// first.
pub(crate) fn read(directory: &Path, namespace: &str, name: &str) -> Vec<Value> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<Value> = entries
        .filter_map(|entry| fs::File::open(entry.ok()?.path()).ok())
        .flat_map(|file| BufReader::new(file).lines().map_while(Result::ok))
        // Lines about other objects are not parsed.
        .filter(|line| line.contains(name))
        .filter_map(|line| serde_json::from_str(&line).ok())
        .filter(|event| concerns(event, namespace, name))
        .collect();
    found.sort_by(|left, right| received(left).cmp(received(right)));
    found
}

fn concerns(event: &Value, namespace: &str, name: &str) -> bool {
    let code = event
        .pointer("/responseStatus/code")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    text_at(event, "/stage") == "ResponseComplete"
        && (200..300).contains(&code)
        && text_at(event, "/objectRef/namespace") == namespace
        && subject(event).starts_with(name)
}

/// Returns the name of a request's object; with `generateName`, the generated name.
pub(crate) fn subject(event: &Value) -> &str {
    let named = text_at(event, "/objectRef/name");
    let made = text_at(event, "/responseObject/metadata/name");
    if named.is_empty() { made } else { named }
}

pub(crate) fn received(event: &Value) -> &str {
    text_at(event, "/requestReceivedTimestamp")
}
