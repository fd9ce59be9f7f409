//! A `Status` with its members in the order in which Go writes them, for those who read answers as they come.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, Status, StatusCause, StatusDetails};
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown<'s> {
    kind: &'static str,
    api_version: &'static str,
    metadata: &'s ListMeta,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'s> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    causes: Option<Vec<Cause<'s>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<i32>,
}

#[derive(Serialize)]
struct Cause<'s> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'s str>,
}

impl<'s> From<&'s Status> for Shown<'s> {
    fn from(status: &'s Status) -> Self {
        Self {
            kind: "Status",
            api_version: "v1",
            metadata: &status.metadata,
            status: status.status.as_deref(),
            message: status.message.as_deref(),
            reason: status.reason.as_deref(),
            details: status.details.as_ref().map(details),
            code: status.code,
        }
    }
}

fn details(own: &StatusDetails) -> Details<'_> {
    Details {
        name: own.name.as_deref(),
        group: own.group.as_deref(),
        kind: own.kind.as_deref(),
        uid: own.uid.as_deref(),
        causes: own.causes.as_ref().map(|all| all.iter().map(cause).collect()),
        retry_after_seconds: own.retry_after_seconds,
    }
}

fn cause(own: &StatusCause) -> Cause<'_> {
    Cause {
        reason: own.reason.as_deref(),
        message: own.message.as_deref(),
        field: own.field.as_deref(),
    }
}
