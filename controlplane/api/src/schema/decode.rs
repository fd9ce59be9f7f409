//! Decoding of JSON into a kind, with upstream's messages for values that do not fit.

mod cursor;
mod go_time;
mod mend;
mod misfit;
mod names;
pub mod repair;
pub mod syntax;

use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::schema::strict::ignored_path;
use crate::schema::{Schema, encode};
use crate::value::bounds;

/// Error for bytes that are not an object of the kind. `Display` is the text after upstream's
/// `X in version "v1" cannot be handled as a X: `.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{message}")]
pub struct DecodeError {
    /// Path of the value that does not fit, without indices as in upstream's; empty if the JSON
    /// itself is malformed.
    pub path: String,
    /// Upstream's text.
    pub message: String,
}

/// Decodes directly into the type. Values that upstream accepts and the types do not, such as a
/// quantity that is a bare number, are mended on a slower second path. No limits are checked:
/// stored objects were checked on the way in, and the server added to them.
pub(crate) fn decode<T: Resource + DeserializeOwned>(json: &[u8]) -> Result<T, DecodeError> {
    decode_tracking(json, None)
}

/// Like [`decode`], but as strict as upstream: texts must be valid quantities and times. Also
/// returns the paths of unknown fields, such as `spec.foo`.
pub(crate) fn decode_reporting<T: Resource + DeserializeOwned>(json: &[u8]) -> Result<(T, Vec<String>), DecodeError> {
    within_bounds(json)?;
    let mut unknown = Vec::new();
    let value = decode_tracking(json, Some(&mut unknown))?;
    let seen = misfit::find(schema::<T>(), json);
    if let Some(misfit) = seen.misfit {
        return Err(misfit.into());
    }
    let value = if seen.blanks {
        decode(&mended(schema::<T>(), json)?)?
    } else {
        value
    };
    Ok((value, unknown))
}

/// Metadata of an embedded object, and the paths of its unknown fields.
///
/// # Errors
/// A value does not fit.
pub fn metadata(value: &Value) -> Result<(ObjectMeta, Vec<String>), DecodeError> {
    let json = encode(value);
    let schema = Schema::named("meta.v1.ObjectMeta");
    if let Some(misfit) = misfit::find(schema, &json).misfit {
        return Err(misfit.into());
    }
    let mut unknown = Vec::new();
    let metadata = attempt(&mended(schema, &json)?, Some(&mut unknown)).map_err(|error| plain(&error))?;
    Ok((metadata, unknown))
}

/// Options of a deletion, whatever group they name.
///
/// # Errors
/// A value does not fit.
pub fn delete_options(json: &[u8]) -> Result<DeleteOptions, DecodeError> {
    let schema = Schema::named("meta.v1.DeleteOptions");
    if let Some(misfit) = misfit::find(schema, json).misfit {
        return Err(misfit.into());
    }
    attempt(&mended(schema, json)?, None).map_err(|error| plain(&error))
}

/// Pod template of a past revision, read by the deserializer that the kinds share.
pub fn template(value: &Value) -> Option<PodTemplateSpec> {
    attempt(&encode(value), None).ok()
}

fn schema<T: Resource>() -> Option<Schema> {
    Schema::of_kind(T::API_VERSION, T::KIND)
}

fn decode_tracking<T: Resource + DeserializeOwned>(
    json: &[u8],
    mut unknown: Option<&mut Vec<String>>,
) -> Result<T, DecodeError> {
    match attempt(json, unknown.as_deref_mut()) {
        Err(error) if error.is_data() => {
            let mended = mended(schema::<T>(), json)?;
            attempt(&mended, unknown).map_err(|error| {
                let misfit = misfit::find(schema::<T>(), json).misfit;
                misfit.map_or_else(|| plain(&error), DecodeError::from)
            })
        }
        outcome => outcome.map_err(|error| broken(&error)),
    }
}

impl From<misfit::Misfit> for DecodeError {
    fn from(misfit: misfit::Misfit) -> Self {
        Self {
            path: misfit.path,
            message: misfit.message,
        }
    }
}

/// Single call of a type's `Deserialize`: each further deserializer would cost a kind tens of
/// kilobytes of code, so reporting, path tracking and mending all go through this function.
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
    bounds::check_grown(json).map_err(|exceeded| DecodeError {
        path: String::new(),
        message: exceeded.to_string(),
    })
}

/// JSON in the form that the types expect, on one line.
fn mended(schema: Option<Schema>, json: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut value: Value = serde_json::from_slice(json).map_err(|error| broken(&error))?;
    if let Some(schema) = schema {
        mend::message(schema, &mut value);
    }
    Ok(encode(&value))
}

/// Error for a value that only the types reject.
fn plain(error: &serde_json::Error) -> DecodeError {
    let text = error.to_string();
    // The position is in the mended text and means nothing to a client.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    DecodeError {
        path: String::new(),
        message: text.to_owned(),
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
