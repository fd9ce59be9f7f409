//! `AdmissionReview`: the question as a webhook gets it, and its verdict (`pkg/admission/plugin/webhook/request`).

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use super::answer::{Reviewed, Version, read_answer, status};
use super::asked::{Asked, Fit, GroupVersionKind, GroupVersionResource};
use super::client::Answer;
use crate::request::failure::Failure;
use crate::transport::respond::encode;

/// The group of `AdmissionReview`.
const GROUP: &str = "admission.k8s.io";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: String,
    request: About<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct About<'a> {
    uid: &'a str,
    kind: &'a GroupVersionKind,
    resource: &'a GroupVersionResource,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: &'a GroupVersionKind,
    request_resource: &'a GroupVersionResource,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'static str,
    user_info: UserInfo,
    object: Option<&'a RawValue>,
    old_object: Option<&'a RawValue>,
    dry_run: bool,
    options: &'a Value,
}

/// The question of a request.
///
/// # Errors
/// 500 for an object that is no JSON.
pub(super) fn question(
    asked: &Asked<'_>,
    fit: &Fit,
    version: Version,
    uid: &str,
    (object, old): (Option<&[u8]>, Option<&[u8]>),
) -> Result<Bytes, Failure> {
    let raw = |json: Option<&'_ [u8]>| -> Result<Option<Box<RawValue>>, Failure> {
        json.map(serde_json::from_slice).transpose().map_err(Failure::internal)
    };
    let (object, old) = (raw(object)?, raw(old)?);
    Ok(encode(&Question {
        kind: "AdmissionReview",
        api_version: version.in_group(GROUP),
        request: About {
            uid,
            object: object.as_deref(),
            old_object: old.as_deref(),
            ..About::new(asked, fit)
        },
    }))
}

impl<'a> About<'a> {
    /// The request without the objects.
    fn new(asked: &'a Asked<'_>, fit: &'a Fit) -> Self {
        let subresource = asked.context.info.subresource.as_str();
        Self {
            uid: "",
            kind: &fit.kind,
            resource: &fit.resource,
            sub_resource: subresource,
            request_kind: &asked.kind,
            request_resource: &asked.resource,
            request_sub_resource: subresource,
            name: &asked.name,
            namespace: &asked.namespace,
            operation: asked.operation.name(),
            user_info: asked.context.user.info(),
            object: None,
            old_object: None,
            dry_run: asked.dry_run,
            options: &asked.options,
        }
    }
}

/// The request as expressions see it: the objects are variables of their own.
pub(in crate::write::admission) fn request(asked: &Asked<'_>, fit: &Fit) -> Value {
    // A value that serializes for a webhook serializes for an expression.
    let mut request = serde_json::to_value(About::new(asked, fit)).unwrap_or_default();
    if let Some(members) = request.as_object_mut() {
        for name in ["uid", "object", "oldObject"] {
            members.remove(name);
        }
    }
    request
}

/// Verdict of a webhook.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) allowed: bool,
    pub(super) patch: Vec<u8>,
    /// Empty where there is no patch.
    pub(super) patch_type: String,
    pub(super) status: Option<Status>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) warnings: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    uid: Option<String>,
    allowed: Option<bool>,
    status: Option<Value>,
    patch: Option<ByteString>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// Invalid answer of a webhook.
#[derive(Debug, Error)]
pub(super) enum AnswerError {
    /// The answer is not a review; `code` labels it in metrics.
    #[error("failed to call webhook: {because}")]
    NoReview { because: String, code: u16 },
    /// The answer is a review, but not of this request.
    #[error("received invalid webhook response: {because}")]
    Invalid { because: String },
}

/// Reads an answer.
///
/// # Errors
/// Reasons for which the answer is invalid or a rejection, with upstream's messages.
pub(super) fn verdict(version: Version, uid: &str, mutates: bool, answer: &Answer) -> Result<Verdict, AnswerError> {
    let mut reviewed: Reviewed<Response> =
        read_answer(answer).map_err(|(because, code)| AnswerError::NoReview { because, code })?;
    let invalid = |because: String| AnswerError::Invalid { because };
    let response = reviewed.response.take();
    let response = response.ok_or_else(|| invalid("webhook response was absent".to_owned()))?;
    let (patch, mut patch_type) = (response.patch.unwrap_or_default().0, response.patch_type);
    if version == Version::V1 {
        let given = response.uid.as_deref().unwrap_or_default();
        if given != uid {
            return Err(invalid(format!("expected response.uid={uid:?}, got {given:?}")));
        }
        reviewed
            .check(&version.in_group(GROUP), "AdmissionReview")
            .map_err(invalid)?;
        check_patch(mutates, &patch, patch_type.as_deref()).map_err(|because| invalid(because.to_owned()))?;
    } else {
        // `v1beta1` has no required patch type.
        patch_type = (!patch.is_empty()).then(|| "JSONPatch".to_owned());
    }
    Ok(Verdict {
        allowed: response.allowed.unwrap_or(false),
        patch: if mutates { patch } else { Vec::new() },
        patch_type: patch_type.unwrap_or_default(),
        status: response.status.and_then(status),
        annotations: response.audit_annotations.unwrap_or_default(),
        warnings: response.warnings.unwrap_or_default(),
    })
}

fn check_patch(mutates: bool, patch: &[u8], patch_type: Option<&str>) -> Result<(), &'static str> {
    match (mutates, patch.is_empty(), patch_type) {
        (true, false, None) => Err("webhook returned response.patch but not response.patchType"),
        (true, true, Some(_)) => Err("webhook returned response.patchType but not response.patch"),
        (true, false, Some("")) => Err("webhook returned invalid response.patchType of \"\""),
        (false, false, _) => Err("validating webhook may not return response.patch"),
        (false, true, Some(_)) => Err("validating webhook may not return response.patchType"),
        (_, _, _) => Ok(()),
    }
}

/// The refusal of a webhook as the client gets it (`pkg/admission/plugin/webhook/errors/statuserror.go`).
pub(super) fn refusal(webhook: &str, status: Option<Status>) -> Status {
    let mut status = status.unwrap_or_default();
    if status.code.unwrap_or(0) < 400 {
        status.code = Some(400);
    }
    if matches!(status.status.as_deref(), None | Some("" | "Success")) {
        status.status = Some("Failure".to_owned());
    }
    let denied = format!("admission webhook {webhook:?} denied the request");
    let said = [&status.message, &status.reason]
        .into_iter()
        .flatten()
        .find(|text| !text.is_empty());
    status.message = Some(match said {
        Some(said) => format!("{denied}: {said}"),
        None => format!("{denied} without explanation"),
    });
    status
}
