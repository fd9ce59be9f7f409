//! PATCH of an object or of its status: JSON patch, merge patch, strategic merge patch.

mod unrestorable;

use std::borrow::Cow;

use api::managed::splice;
use api::patch::{PatchError, json, merge, strategic};
use api::schema::Schema;
use api::{Object, Registration, go};
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::request::context::Context;
use crate::request::failure::{Cause, Failure, GroupResource, shown};
use crate::request::object::{self, Live};
use crate::request::options::{FieldValidation, WriteOptions};
use crate::transport::body::{self, check_bounds, check_operations, media_type, syntax};
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape;
use crate::write::admission::Part;
use crate::write::amend::{Amendment, amend};
use crate::write::apply::apply;
use crate::write::owners;

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
     application/strategic-merge-patch+json, application/apply-patch+yaml";
/// The same for kinds that are defined by objects.
const ACCEPTED_DEFINED: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

/// A patch by its kind.
#[derive(Debug)]
pub(crate) enum Patch {
    /// RFC 6902
    Json(Value),
    /// RFC 7386
    Merge(Value),
    /// Lists are merged by key.
    Strategic(Value),
}

impl Patch {
    /// Reads a patch by its `Content-Type`.
    ///
    /// # Errors
    /// 415 for other types, 400 for parse errors.
    pub(crate) fn read(registration: &Registration, headers: &HeaderMap, body: &Bytes) -> Result<Self, Failure> {
        type Check = fn(&[u8]) -> Result<(), Failure>;
        let (kind, check): (fn(Value) -> Self, Check) = match media_type(headers).as_str() {
            "application/json-patch+json" => (Self::Json, check_operations),
            "application/merge-patch+json" => (Self::Merge, check_bounds),
            // Nothing says how to merge the lists of a kind that is defined by an object.
            "application/strategic-merge-patch+json" if !registration.is_defined() => (Self::Strategic, check_bounds),
            _ => {
                let accepted = if registration.is_defined() {
                    ACCEPTED_DEFINED
                } else {
                    ACCEPTED
                };
                return Err(Failure::UnsupportedMediaType { accepted });
            }
        };
        check(body)?;
        if media_type(headers) == "application/json-patch+json" {
            json::check_count(body).map_err(|error| failure(&error))?;
        }
        let value = serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(format!("error decoding patch: {}", syntax::words(body, &error))))?;
        let patch = kind(value);
        patch.check_type()?;
        Ok(patch)
    }

    /// Rejects documents of the wrong JSON type, with the messages of Go's decoder.
    fn check_type(&self) -> Result<(), Failure> {
        const OBJECT: &str = "map[string]interface {}";
        let (value, prefix, wanted) = match self {
            Self::Json(Value::Array(_) | Value::Null)
            | Self::Merge(Value::Object(_) | Value::Null)
            | Self::Strategic(Value::Object(_) | Value::Null) => return Ok(()),
            Self::Json(value) => (value, "error decoding patch: ", "[]handlers.jsonPatchOp"),
            Self::Merge(value) => (value, "error decoding patch: ", OBJECT),
            Self::Strategic(value) => (value, "", OBJECT),
        };
        Err(Failure::bad_request(format!(
            "{prefix}{}",
            json::mismatch(value, wanted)
        )))
    }

    /// 422 for a patch whose result does not decode as the kind.
    fn spoils(&self, registration: &Registration, patched: &str, because: &str) -> Failure {
        let (value, because) = match self {
            Self::Json(_) | Self::Merge(_) => (Cow::Borrowed(patched), Cow::Borrowed(because)),
            Self::Strategic(patch) => (
                go::text(patch).into(),
                unrestorable::words(registration, because).into(),
            ),
        };
        let message = format!("Invalid value: {:?}: {}", shown(&value), shown(&because));
        Failure::Invalid {
            kind: GroupResource::new("", ""),
            name: String::new(),
            causes: vec![Cause {
                reason: "FieldValueInvalid".into(),
                field: "patch".to_owned(),
                text: format!("patch: {message}"),
                message,
            }],
        }
    }

    /// True if the patch may read or change `metadata.managedFields`; for other patches they are
    /// not decoded.
    fn may_edit_managers(&self) -> bool {
        match self {
            Self::Json(operations) => {
                let paths = operations.as_array().into_iter().flatten().flat_map(|operation| {
                    let path = |member: &str| operation.get(member).and_then(Value::as_str);
                    [path("path"), path("from")]
                });
                paths
                    .flatten()
                    .any(|path| matches!(path, "" | "/metadata") || path.starts_with("/metadata/managedFields"))
            }
            Self::Merge(patch) | Self::Strategic(patch) => patch
                .get("metadata")
                .is_some_and(|metadata| metadata.get("managedFields").is_some() || metadata.get("$patch").is_some()),
        }
    }

    /// Strict decoding errors of a patch itself: duplicate fields, and unknown members of
    /// operations.
    pub(crate) fn complaints(&self, body: &[u8], validation: FieldValidation) -> Vec<String> {
        if validation == FieldValidation::Ignore {
            return Vec::new();
        }
        // It was read before.
        let duplicates = api::strict::duplicates(body).unwrap_or_default();
        let Self::Json(operations) = self else {
            return api::strict::complaints(body, &[], &duplicates);
        };
        let is_known = |member: &str| matches!(member, "op" | "path" | "from" | "value");
        let operations = operations.as_array().into_iter().flatten().enumerate();
        let unknown = operations.flat_map(|(index, operation)| {
            let members = operation.as_object().into_iter().flat_map(serde_json::Map::keys);
            let strange = members.filter(|member| !is_known(member));
            strange.map(move |member| format!("[{index}].{member}"))
        });
        let unknown: Vec<String> = unknown.take(api::strict::MAX_FINDINGS).collect();
        let found = api::strict::complaints(body, &unknown, &duplicates);
        found.into_iter().map(|text| format!("json patch {text}")).collect()
    }

    /// Applies the patch to an object's JSON.
    ///
    /// # Errors
    /// 400, 413, 422, 500, depending on the patch.
    pub(crate) fn apply(&self, api_version: &str, kind: &str, document: &mut Value) -> Result<(), Failure> {
        let outcome = match self {
            Self::Json(operations) => json::apply(document, operations),
            Self::Merge(patch) => merge::apply(document, patch),
            Self::Strategic(patch) => {
                let schema = Schema::of_kind(api_version, kind)
                    .ok_or_else(|| Failure::internal(format!("no schema of {api_version} {kind}")))?;
                let outcome = strategic::apply(schema, document, patch);
                // Upstream decodes the result into the type of the path, regardless of its own type
                // metadata.
                if let Some(members) = document.as_object_mut() {
                    members.insert("apiVersion".to_owned(), api_version.into());
                    members.insert("kind".to_owned(), kind.into());
                }
                outcome
            }
        };
        outcome.map_err(|error| failure(&error))
    }
}

fn failure(error: &PatchError) -> Failure {
    let message = error.to_string();
    match error {
        PatchError::Malformed { .. } => Failure::bad_request(message),
        PatchError::TooManyOperations { .. } => Failure::TooManyParts { message },
        PatchError::Unprocessable { .. } => Failure::Unprocessable,
        PatchError::Unmergeable { .. } => Failure::Unexpected { message },
    }
}

/// True if the request is a server-side apply.
pub(crate) fn is_apply(context: &Context) -> bool {
    media_type(&context.headers) == "application/apply-patch+yaml"
}

/// Answers the object as stored.
pub(crate) async fn patch(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let part = Part::of(&context.info.subresource);
    if is_apply(context) {
        return apply(context, body, part).await;
    }
    let representation = negotiate(&context.headers, &context.query)?;
    let options = WriteOptions::of_patch(&context.query, false)?;
    let body = body::repaired(body::read(body).await?)?;
    let patch = Patch::read(&context.registration, &context.headers, &body)?;
    let own = patch.complaints(&body, options.field_validation);
    context.notes.request = Some(body);
    let registration = &context.registration;
    let name = context.info.name.clone();
    let amendment = Amendment {
        name: &name,
        part,
        dry_run: options.dry_run,
    };
    let mut warnings = Vec::new();
    let bytes = amend(context, amendment, &mut |live, _old| {
        let (object, complaints) = patched(registration, &patch, &own, live, options.field_validation)?;
        warnings = complaints;
        Ok(object.into())
    })
    .await?;
    context.warnings.extend(warnings);
    context.notes.response = Some(bytes.clone());
    shape::one(context, StatusCode::OK, representation, bytes).await
}

fn patched(
    registration: &Registration,
    patch: &Patch,
    own: &[String],
    live: &Live,
    validation: FieldValidation,
) -> Result<(Box<dyn Object>, Vec<String>), Failure> {
    let current = object::external(registration, live)?;
    let parts = splice::split(&current);
    let mut document: Value = serde_json::from_slice(&parts.object).map_err(Failure::internal)?;
    if patch.may_edit_managers() {
        let managed: Value = serde_json::from_str(parts.managed).unwrap_or_default();
        if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut)
            && managed.is_array()
        {
            metadata.insert("managedFields".to_owned(), managed);
        }
    }
    let (mut object, mut complaints) = apply_to(registration, patch, own, document, validation)?;
    complaints.extend(owners::once(object.metadata_mut(), true));
    Ok((object, complaints))
}

/// Applies a patch to an object's JSON and decodes the result; the texts are strict decoding
/// errors, after those about the patch itself.
///
/// # Errors
/// As [`Patch::apply`], and 422 for what is no object of the kind any more.
pub(crate) fn apply_to(
    registration: &Registration,
    patch: &Patch,
    own: &[String],
    mut document: Value,
    validation: FieldValidation,
) -> Result<(Box<dyn Object>, Vec<String>), Failure> {
    patch.apply(&registration.api_version(), registration.kind, &mut document)?;
    let json = document.to_string();
    let (object, unknown) = object::decode_bare(registration, json.as_bytes(), validation)
        .map_err(|because| patch.spoils(registration, &json, &because))?;
    let complaints: Vec<String> = own.iter().cloned().chain(unknown).collect();
    if validation == FieldValidation::Strict && !complaints.is_empty() {
        let because = format!("strict decoding error: {}", complaints.join(", "));
        return Err(patch.spoils(registration, &json, &because));
    }
    Ok((object, complaints))
}
