//! From bytes to a kind, with upstream's words for what does not fit.

use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::bounds;
use crate::object::encode;
use crate::place::path_before;
use crate::strict::ignored_path;

/// The bytes are not an object of the kind. `Display` is the text after upstream's
/// `X in version "v1" cannot be handled as a X: `.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{message}")]
pub struct DecodeError {
    /// Path of the value that does not fit, indices left out as upstream does; empty when the JSON itself is broken.
    pub path: String,
    /// Upstream's text.
    pub message: String,
}

/// Decodes straight into the type. What upstream tolerates and the types do not, such as a quantity that is a bare
/// number, is mended on a second, slower way.
pub(crate) fn decode<T: DeserializeOwned>(json: &[u8], kind: &'static str) -> Result<T, DecodeError> {
    decode_tracking(json, kind, None)
}

/// Like [`decode`]; also returns the paths of fields that the type does not know, such as `spec.foo`.
pub(crate) fn decode_reporting<T: DeserializeOwned>(
    json: &[u8],
    kind: &'static str,
) -> Result<(T, Vec<String>), DecodeError> {
    let mut unknown = Vec::new();
    let value = decode_tracking(json, kind, Some(&mut unknown))?;
    Ok((value, unknown))
}

fn decode_tracking<T: DeserializeOwned>(
    json: &[u8],
    kind: &'static str,
    mut unknown: Option<&mut Vec<String>>,
) -> Result<T, DecodeError> {
    within_bounds(json)?;
    match attempt(json, unknown.as_deref_mut()) {
        Err(error) if error.is_data() => {
            let mended = mended(json)?;
            attempt(&mended, unknown).map_err(|error| misfit(&mended, &error, kind))
        }
        outcome => outcome.map_err(|error| broken(&error)),
    }
}

/// The one place where a type's `Deserialize` is put to work: each further deserializer would cost a kind tens of
/// kilobytes of code, so reporting, tracking of paths and mending all go through this one.
fn attempt<T: DeserializeOwned>(json: &[u8], unknown: Option<&mut Vec<String>>) -> Result<T, serde_json::Error> {
    let mut nowhere = Vec::new();
    let report = unknown.is_some();
    let found = unknown.unwrap_or(&mut nowhere);
    found.clear();
    let mut note = |path: serde_ignored::Path<'_>| {
        if report {
            found.push(ignored_path(&path));
        }
    };
    let callback: &mut dyn FnMut(serde_ignored::Path<'_>) = &mut note;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_ignored::deserialize(&mut deserializer, callback)?;
    deserializer.end()?;
    Ok(value)
}

fn within_bounds(json: &[u8]) -> Result<(), DecodeError> {
    bounds::check(json).map_err(|exceeded| DecodeError {
        path: String::new(),
        message: exceeded.to_string(),
    })
}

/// The JSON as the types want it, on one line.
fn mended(json: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut value: Value = serde_json::from_slice(json).map_err(|error| broken(&error))?;
    mend(&mut value);
    Ok(encode(&value))
}

/// Fields whose values, or whose members' values, are quantities: upstream reads bare numbers there.
const QUANTITIES: &[&str] = &[
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "overhead",
    "allocatedResources",
    "sizeLimit",
    "divisor",
    "hard",
    "used",
    "default",
    "defaultRequest",
    "min",
    "max",
    "maxLimitRequestRatio",
    "podFixed",
];

fn mend(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(mend),
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::Object(quantities) if QUANTITIES.contains(&name.as_str()) => {
                        quantities.values_mut().for_each(number_to_text);
                    }
                    Value::Number(_) if QUANTITIES.contains(&name.as_str()) => number_to_text(member),
                    Value::Array(_) | Value::Object(_) => mend(member),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn number_to_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}

fn broken(error: &serde_json::Error) -> DecodeError {
    let text = error.to_string();
    let message = if error.is_eof() {
        "unexpected end of JSON input".to_owned()
    } else {
        format!("invalid JSON: {text}")
    };
    DecodeError {
        path: String::new(),
        message,
    }
}

/// Turns `invalid type: string "x", expected i32` at a path into
/// `json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32`.
fn misfit(json: &[u8], error: &serde_json::Error, kind: &'static str) -> DecodeError {
    let text = error.to_string();
    // The position is of no use to a client: it is one in the mended text.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let path = path_before(json, error.column());
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let path = names.join(".");
    let message = match text
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.split_once(", expected "))
    {
        Some((found, expected)) => {
            let (found, expected) = (go_value(found), go_type(expected));
            let owner = owner(&names, kind);
            format!("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {expected}")
        }
        None if path.is_empty() => text.to_owned(),
        None => format!("{path}: {text}"),
    };
    DecodeError { path, message }
}

fn go_value(found: &str) -> String {
    match found.split([' ', ',']).next().unwrap_or(found) {
        "string" => "string".to_owned(),
        "boolean" => "bool".to_owned(),
        "sequence" => "array".to_owned(),
        "map" => "object".to_owned(),
        // Upstream names the number where it is one of the wrong sort: `number 1.5`.
        "floating" => format!("number {}", found.split('`').nth(1).unwrap_or_default()),
        "integer" => "number".to_owned(),
        "null" => "null".to_owned(),
        other => other.to_owned(),
    }
}

fn go_type(expected: &str) -> String {
    match expected {
        "a string" => "string".to_owned(),
        "a boolean" => "bool".to_owned(),
        "i32" => "int32".to_owned(),
        "i64" => "int64".to_owned(),
        "u32" => "uint32".to_owned(),
        "a sequence" => "[]interface {}".to_owned(),
        "a map" => "map[string]string".to_owned(),
        name if name.chars().all(char::is_alphanumeric) => format!("v1.{name}"),
        other => other.to_owned(),
    }
}

/// The name of the structure that holds the field: known for the usual places, else the kind.
fn owner(names: &[&str], kind: &'static str) -> String {
    let parent = names.len().checked_sub(2).and_then(|index| names.get(index));
    match (names.len(), parent.copied()) {
        (2, Some("spec")) => format!("{kind}Spec"),
        (2, Some("status")) => format!("{kind}Status"),
        (_, Some("metadata" | "labels" | "annotations")) => "ObjectMeta".to_owned(),
        (_, Some("template")) => "PodTemplateSpec".to_owned(),
        (_, Some("containers" | "initContainers")) => "Container".to_owned(),
        (_, Some("env")) => "EnvVar".to_owned(),
        (_, Some("ports")) if names.len() > 3 => "ContainerPort".to_owned(),
        (_, Some("ports")) => "ServicePort".to_owned(),
        (_, Some("volumeMounts")) => "VolumeMount".to_owned(),
        (_, Some("volumes")) => "Volume".to_owned(),
        (_, Some("selector" | "matchLabels")) => "LabelSelector".to_owned(),
        (_, Some("securityContext")) => "SecurityContext".to_owned(),
        (_, Some("resources" | "limits" | "requests")) => "ResourceRequirements".to_owned(),
        (_, Some("readinessProbe" | "livenessProbe" | "startupProbe")) => "Probe".to_owned(),
        (_, Some("tolerations")) => "Toleration".to_owned(),
        (_, Some("spec")) => "PodSpec".to_owned(),
        _ => kind.to_owned(),
    }
}
