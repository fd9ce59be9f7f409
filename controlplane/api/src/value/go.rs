//! Words of Go: JSON values as it prints them in upstream's error texts, and its name of the machine.

use serde_json::Value;

/// `GOARCH` of the machine.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `fmt.Sprint` of a decoded JSON value: `map[name:web ports:[80 443]]`.
pub fn text(value: &Value) -> String {
    let joined = |texts: Vec<String>| texts.join(" ");
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(text).collect())),
        Value::Object(members) => {
            let mut texts: Vec<_> = members
                .iter()
                .map(|(key, member)| format!("{key}:{}", text(member)))
                .collect();
            texts.sort();
            format!("map[{}]", joined(texts))
        }
    }
}

/// `%T` of a decoded JSON value: `map[string]interface {}`.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
