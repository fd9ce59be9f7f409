//! Audit record as one line of JSON.

use api::go_json;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::authn::identity::User;
use crate::ops::audit::policy::{Decision, Level};
use crate::ops::audit::{ObjectRef, Record, Stage};

/// Resources whose objects must be hidden from readers of the log.
const SECRET: [&str; 5] = [
    "secrets",
    "tokenreviews",
    "tokenrequests",
    "selfsubjectreviews",
    "certificatesigningrequests",
];
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// True if the request changes objects.
pub(super) fn is_write(record: &Record) -> bool {
    WRITES.contains(&record.verb.as_str())
}

/// Default level without a policy.
pub(super) fn usual_level(record: &Record) -> Option<Level> {
    if is_noise(record) || record.stage == Stage::RequestReceived {
        return None;
    }
    let events = record.object.as_ref().is_some_and(|object| object.resource == "events");
    Some(if is_write(record) && !events {
        Level::RequestResponse
    } else {
        Level::Metadata
    })
}

/// True for periodic renewals of leases, which are not worth a record.
fn is_noise(record: &Record) -> bool {
    let lease = record.object.as_ref().is_some_and(|object| object.resource == "leases");
    let renewal = matches!(record.verb.as_str(), "get" | "list" | "watch" | "update" | "patch");
    lease && renewal && record.code < 400
}

/// True if the objects must stay out of the log.
pub(super) fn is_secret(record: &Record) -> bool {
    let Some(object) = &record.object else { return false };
    let named = SECRET.contains(&object.resource.as_str()) || object.subresource == "token";
    // A Secret sent to the wrong place is refused, but it was sent.
    named || record.request_object.as_deref().is_some_and(says_secret)
}

/// True if JSON has a member `"kind"` that is `"Secret"` or `"SecretList"`.
fn says_secret(json: &[u8]) -> bool {
    let mut rest = json;
    while let Some(at) = rest.windows(6).position(|window| window == b"\"kind\"") {
        rest = rest.get(at + 6..).unwrap_or_default();
        let value = rest.trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        if value.is_some_and(|value| value.starts_with(b"\"Secret\"") || value.starts_with(b"\"SecretList\"")) {
            return true;
        }
    }
    false
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: Who<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<Who<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authentication_metadata: Option<HowProven<'a>>,
    #[serde(rename = "sourceIPs")]
    source_ips: Vec<String>,
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<Reference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Answer<'a>>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    annotations: std::collections::BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HowProven<'a> {
    impersonation_constraint: &'a str,
}

#[derive(Serialize)]
struct Who<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    extra: &'a std::collections::BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference<'a> {
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'a str,
    api_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
}

#[derive(Serialize)]
struct Answer<'a> {
    metadata: Empty,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    code: u16,
}

#[derive(Serialize)]
struct Empty {}

/// Appends the record's line, with its end.
pub(super) fn write(record: &Record, decision: Decision, line: &mut Vec<u8>) {
    let event = Line {
        kind: "Event",
        api_version: "audit.k8s.io/v1",
        level: match decision.level {
            Level::None | Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        },
        audit_id: &record.id,
        stage: match record.stage {
            Stage::RequestReceived => "RequestReceived",
            Stage::Panic => "Panic",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
        },
        request_uri: &record.uri,
        verb: &record.verb,
        user: who(&record.user),
        impersonated_user: record.impersonated.as_ref().map(who),
        authentication_metadata: record.constraint.as_deref().map(|verb| HowProven {
            impersonation_constraint: verb,
        }),
        source_ips: record.sources.iter().map(ToString::to_string).collect(),
        user_agent: &record.user_agent,
        object_ref: record.object.as_ref().map(reference),
        response_status: (record.stage != Stage::RequestReceived)
            .then(|| answer(record.code, record.failure.as_deref(), decision.hides_messages)),
        request_received_timestamp: micros(record.received),
        stage_timestamp: micros(record.staged),
        annotations: record
            .annotations
            .iter()
            .map(|(name, value)| (name.as_ref(), value.as_str()))
            .collect(),
    };
    let mut plain = match serde_json::to_vec(&event) {
        Ok(plain) => plain,
        Err(failure) => {
            tracing::error!(error = &failure as &dyn std::error::Error, "encode an audit line");
            return;
        }
    };
    for (name, json) in [
        ("requestObject", &record.request_object),
        ("responseObject", &record.response_object),
    ] {
        match json {
            Some(json) if decision.without_managed_fields => {
                embed(&mut plain, name, without_managed_fields(json).as_deref());
            }
            json => embed(&mut plain, name, json.as_deref()),
        }
    }
    go_json::escape(&plain, line);
    line.push(b'\n');
}

/// An object, or the objects of a list, without `metadata.managedFields`.
fn without_managed_fields(json: &[u8]) -> Option<Vec<u8>> {
    let mut object: Value = serde_json::from_slice(json).ok()?;
    let strip = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    strip(&mut object);
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(strip);
    }
    serde_json::to_vec(&object).ok()
}

/// Puts a further member, which is JSON already, before the closing brace.
fn embed(line: &mut Vec<u8>, name: &str, json: Option<&[u8]>) {
    let Some(json) = json.filter(|json| serde_json::from_slice::<IgnoredAny>(json).is_ok()) else {
        return;
    };
    line.pop();
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":");
    // Between the tokens of JSON a line's end means no more than a space, and inside strings it cannot be.
    line.extend(
        json.iter()
            .map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }),
    );
    line.push(b'}');
}

fn who(user: &User) -> Who<'_> {
    Who {
        username: &user.name,
        uid: &user.uid,
        groups: &user.groups,
        extra: &user.extra,
    }
}

fn reference(object: &ObjectRef) -> Reference<'_> {
    Reference {
        resource: &object.resource,
        namespace: &object.namespace,
        name: &object.name,
        uid: &object.uid,
        api_group: &object.group,
        api_version: &object.version,
        resource_version: &object.resource_version,
        subresource: &object.subresource,
    }
}

fn answer(code: u16, failure: Option<&Status>, secret: bool) -> Answer<'_> {
    let status = failure.and_then(|failure| failure.status.as_deref());
    let reason = failure.and_then(|failure| failure.reason.as_deref());
    // A message may quote the value that it complains about.
    let message = failure
        .and_then(|failure| failure.message.as_deref())
        .filter(|_| !secret);
    Answer {
        metadata: Empty {},
        status,
        message,
        reason,
        code,
    }
}

/// `2026-01-02T03:04:05.678901Z`, the form of upstream's `MicroTime`.
fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}
