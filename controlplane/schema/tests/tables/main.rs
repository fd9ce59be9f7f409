//! Tables: a schema, an input, and the result. In flow YAML, since it is shorter than JSON.

#![allow(
    clippy::indexing_slicing,
    clippy::let_underscore_must_use,
    clippy::panic,
    clippy::too_many_lines,
    reason = "a test fails by panicking, and a table is as long as its cases"
)]

mod definitions;
mod formats;
mod patterns;
mod properties;
mod values;

use serde_json::Value;

fn read(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn lines(errors: &[controlplane_schema::Invalid]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
