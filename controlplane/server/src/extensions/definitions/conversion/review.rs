//! `ConversionReview`: the question as a webhook gets it, and its answer.
//!
//! A webhook may change only labels and annotations of an object's metadata.

use api::Invalid;
use api::go;
use api::validation::metadata;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::transport::respond::encode;
use crate::write::admission::webhooks::answer::{Reviewed, Version, read_answer};
use crate::write::admission::webhooks::client::Answer;

/// The group of `ConversionReview`.
const GROUP: &str = "apiextensions.k8s.io";

/// Invalid answer of a conversion webhook, with its `failure_type` in the metrics.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) failure_type: &'static str,
    pub(super) because: String,
}

impl Fault {
    pub(super) fn call(because: String) -> Self {
        Self {
            failure_type: "conversion_webhook_call_failure",
            because,
        }
    }

    fn malformed(because: String) -> Self {
        Self {
            failure_type: "conversion_webhook_malformed_response_failure",
            because,
        }
    }

    fn invalid(because: String) -> Self {
        Self {
            failure_type: "conversion_webhook_invalid_converted_object_failure",
            because,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: String,
    request: Request<'a>,
    /// Upstream writes it, empty as it is.
    response: Value,
}

#[derive(Serialize)]
struct Request<'a> {
    uid: &'a str,
    #[serde(rename = "desiredAPIVersion")]
    desired: &'a str,
    objects: &'a [Value],
}

/// The question about objects.
pub(super) fn question(version: Version, uid: &str, desired: &str, objects: &[Value]) -> Bytes {
    encode(&Question {
        kind: "ConversionReview",
        api_version: version.in_group(GROUP),
        request: Request { uid, desired, objects },
        response: json!({"uid": "", "convertedObjects": null, "result": {"metadata": {}}}),
    })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    uid: Option<String>,
    converted_objects: Option<Vec<Value>>,
    result: Option<Outcome>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Outcome {
    status: Option<String>,
    message: Option<String>,
}

/// Decodes an answer (`getConvertedObjectsFromResponse`). The fault's text follows `failed: `.
pub(super) fn converted(version: Version, uid: &str, answer: &Answer) -> Result<Vec<Value>, Fault> {
    let reviewed: Reviewed<Response> = read_answer(answer).map_err(|(because, _code)| Fault::call(because))?;
    // `v1beta1` requires neither its own version nor the uid.
    let is_strict = version == Version::V1;
    if is_strict {
        let version = version.in_group(GROUP);
        reviewed.check(&version, "ConversionReview").map_err(Fault::malformed)?;
    }
    let response = reviewed.response;
    let response = response.ok_or_else(|| Fault::malformed("no response provided".to_owned()))?;
    let given = response.uid.unwrap_or_default();
    if is_strict && given != uid {
        return Err(Fault::malformed(format!(
            "expected response.uid={uid:?}, got {given:?}"
        )));
    }
    let Outcome { status, message } = response.result.unwrap_or_default();
    let status = status.unwrap_or_default();
    if status != "Success" {
        let message = message.filter(|message| !message.is_empty());
        let because = message.unwrap_or_else(|| format!("response.result.status was '{status}', not 'Success'"));
        return Err(Fault::malformed(because));
    }
    Ok(response.converted_objects.unwrap_or_default())
}

/// Merges converted objects, each with its original. The fault's text is complete.
pub(super) fn take(kind: &str, desired: &str, originals: &[Value], converted: Vec<Value>) -> Result<Vec<Value>, Fault> {
    if converted.len() != originals.len() {
        let (given, expected) = (converted.len(), originals.len());
        return Err(Fault {
            failure_type: "conversion_webhook_partial_response_failure",
            because: format!("conversion webhook for {kind} returned {given} objects, expected {expected}"),
        });
    }
    let is_list = originals.len() > 1;
    let pairs = originals.iter().zip(converted).enumerate();
    let taken = pairs.map(|(index, (original, converted))| {
        let at = if is_list { "converted object" } else { "object" };
        let invalid = |because: String| {
            Fault::invalid(format!(
                "conversion webhook for {kind} returned invalid {at} at index {index}: {because}"
            ))
        };
        readable(&converted).map_err(|because| {
            if is_list {
                invalid(because)
            } else {
                Fault::invalid(because)
            }
        })?;
        let (own, expected) = (text(&converted, "/apiVersion"), desired);
        if own != expected {
            let because = format!("invalid groupVersion (expected {expected}, received {own})");
            return Err(invalid(because));
        }
        let (own, expected) = (text(&converted, "/kind"), text(original, "/kind"));
        if own != expected {
            return Err(invalid(format!("invalid kind (expected {expected}, received {own})")));
        }
        same(original, &converted).map_err(|because| {
            if is_list {
                invalid(because)
            } else {
                Fault::invalid(format!(
                    "conversion webhook for {kind} returned invalid object: {because}"
                ))
            }
        })?;
        restored(original, converted).map_err(|because| {
            let of = if is_list {
                format!(" in object at index {index}")
            } else {
                String::new()
            };
            Fault::invalid(format!(
                "conversion webhook for {kind} returned invalid metadata{of}: {because}"
            ))
        })
    });
    taken.collect()
}

fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn readable(converted: &Value) -> Result<(), String> {
    match converted {
        Value::Null => Err("unexpected end of JSON input".to_owned()),
        Value::Object(_) if text(converted, "/kind").is_empty() => {
            Err(format!("Object 'Kind' is missing in '{converted}'"))
        }
        Value::Object(_) => Ok(()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(api::patch::json::mismatch(converted, "map[string]interface {}"))
        }
    }
}

/// `validateConvertedObject`
fn same(original: &Value, converted: &Value) -> Result<(), String> {
    let fixed = [
        ("name", "/metadata/name"),
        ("namespace", "/metadata/namespace"),
        ("UID", "/metadata/uid"),
    ];
    for (what, path) in fixed {
        let (own, given) = (text(original, path), text(converted, path));
        if own != given {
            return Err(format!("must have the same {what}: {own} != {given}"));
        }
    }
    Ok(())
}

/// `restoreObjectMeta`
fn restored(original: &Value, mut converted: Value) -> Result<Value, String> {
    const MISSING: &str = "missing metadata in converted object";
    let members = converted.as_object_mut().ok_or(MISSING)?;
    let mut given = match members.remove("metadata") {
        None => return Err(MISSING.to_owned()),
        Some(Value::Object(given)) => given,
        Some(other) => {
            let found = go::type_name(&other);
            return Err(format!("invalid metadata of type {found} in converted object"));
        }
    };
    let own = original.get("metadata").and_then(Value::as_object);
    let mut own = own.cloned().unwrap_or_default();
    for name in ["labels", "annotations"] {
        let Some(field) = given.remove(name).filter(|field| !field.is_null()) else {
            own.remove(name);
            continue;
        };
        let Value::Object(texts) = &field else {
            let found = go::type_name(&field);
            return Err(format!("invalid metadata.{name} of type {found} in converted object"));
        };
        if let Some((key, value)) = texts.iter().find(|(_, value)| !value.is_string()) {
            let found = go::type_name(value);
            return Err(format!(
                "metadata.{name}[{key}] must be a string, but is {found} in converted object"
            ));
        }
        if own.get(name) != Some(&field) {
            let texts = texts.iter();
            let texts = texts.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()));
            let texts = Some(texts.collect());
            let faults = if name == "labels" {
                metadata::labels(texts.as_ref(), "metadata.labels")
            } else {
                metadata::annotations(texts.as_ref(), "metadata.annotation")
            };
            if !faults.is_empty() {
                return Err(aggregate(&faults));
            }
        }
        own.insert(name.to_owned(), field);
    }
    members.insert("metadata".to_owned(), own.into());
    Ok(converted)
}

fn aggregate(faults: &[Invalid]) -> String {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}
