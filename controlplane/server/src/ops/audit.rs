//! The seam to the audit log: one record for each stage of each request.

pub mod file;
pub mod policy;
pub(crate) mod recording;

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::Path;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use k8s_openapi::jiff::Timestamp;

use crate::authn::identity::User;

/// Wait of a record for a place in the log; it continues when this is dropped.
pub type Waiting = tokio::task::JoinHandle<()>;

/// Takes records, and never holds up the thread that brings them.
pub trait Sink: Send + Sync {
    /// Takes one record. A sink that cannot keep up may return a wait that delays the answer to a
    /// write.
    fn record(&self, record: Record) -> Option<Waiting>;

    /// Number of records that were written.
    fn events(&self) -> u64 {
        0
    }

    /// Number of records that could not be written.
    fn failures(&self) -> u64 {
        0
    }

    /// Directory of the log, whose newest part is `audit.log` and the one before it `audit.log.1`.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// True if the sink takes records of the stage `RequestReceived`.
    fn wants_received(&self) -> bool {
        false
    }
}

/// Stage of a request at which a record is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Stage {
    /// The request has arrived.
    RequestReceived,
    /// A long answer has begun: a watch.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// The work on the request broke down; nothing here does.
    Panic,
}

/// Layer of the server whose part in a slow request's latency is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Authentication,
    Authorization,
    Queue,
    Storage,
    MutatingWebhook,
    ValidatingWebhook,
    Total,
}

impl Layer {
    /// Annotation of the latency (`AuditAnnotationsFromLatencyTrackers` of
    /// `pkg/endpoints/request/webhook_duration.go`).
    fn annotation(self) -> &'static str {
        match self {
            Self::Authentication => "apiserver.latency.k8s.io/authentication",
            Self::Authorization => "apiserver.latency.k8s.io/authorization",
            Self::Queue => "apiserver.latency.k8s.io/apf-queue-wait",
            Self::Storage => "apiserver.latency.k8s.io/etcd",
            Self::MutatingWebhook => "apiserver.latency.k8s.io/mutating-webhook",
            Self::ValidatingWebhook => "apiserver.latency.k8s.io/validating-webhook",
            Self::Total => "apiserver.latency.k8s.io/total",
        }
    }

    /// True if the longest of several times counts, not their sum.
    fn is_parallel(self) -> bool {
        matches!(self, Self::Authorization | Self::Queue | Self::ValidatingWebhook)
    }
}

/// The object that a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// Plural name.
    pub resource: String,
    /// Namespace, empty for cluster scope.
    pub namespace: String,
    /// Name in the path; empty for create with a generated name.
    pub name: String,
    /// Uid, where it is known.
    pub uid: String,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// `status`, `binding` …
    pub subresource: String,
    /// Revision that was sent, where there was one.
    pub resource_version: String,
}

/// Audit record of a request.
#[derive(Debug, Clone)]
pub struct Record {
    /// Unique for the request.
    pub id: String,
    /// Stage of the request.
    pub stage: Stage,
    /// Time at which the request arrived.
    pub received: Timestamp,
    /// Time at which this stage was reached.
    pub staged: Timestamp,
    /// Path and query as sent.
    pub uri: String,
    /// Verb as authorization sees it.
    pub verb: String,
    /// Authenticated user.
    pub user: User,
    /// Impersonated user.
    pub impersonated: Option<User>,
    /// The verb that allowed that, where it is bound to the request.
    pub constraint: Option<String>,
    /// User agent of the client.
    pub user_agent: String,
    /// Source IPs of the client; empty for requests inside the process.
    pub sources: Vec<IpAddr>,
    /// Reference to the object.
    pub object: Option<ObjectRef>,
    /// HTTP status of the answer.
    pub code: u16,
    /// The failure, if it is one.
    pub failure: Option<Box<Status>>,
    /// JSON that was sent. The sink must redact it.
    pub request_object: Option<Bytes>,
    /// JSON that was answered. The sink must redact it.
    pub response_object: Option<Bytes>,
    /// Further facts.
    pub annotations: Vec<(Cow<'static, str>, String)>,
}

#[cfg(test)]
mod tests {
    use super::{ObjectRef, Record, Stage};
    use crate::authn::identity::User;
    use bytes::Bytes;
    use k8s_openapi::jiff::Timestamp;

    /// A record of a request for a resource of namespace `default`.
    pub(super) fn record(verb: &str, resource: &str) -> Record {
        Record {
            id: "5b4f5e2c".into(),
            stage: Stage::ResponseComplete,
            received: Timestamp::from_microsecond(1_790_000_000_000_001).unwrap(),
            staged: Timestamp::from_second(1_790_000_001).unwrap(),
            uri: format!("/api/v1/namespaces/default/{resource}?fieldManager=kubectl"),
            verb: verb.into(),
            user: User::new("jane", ["system:masters"]),
            impersonated: Some(User::new("joe", [])),
            constraint: Some("impersonate:user-info".into()),
            user_agent: "kubectl/v1.33.0".into(),
            sources: vec![[10, 0, 0, 1].into()],
            object: Some(ObjectRef {
                resource: resource.into(),
                namespace: "default".into(),
                version: "v1".into(),
                ..ObjectRef::default()
            }),
            code: 201,
            failure: None,
            request_object: None,
            response_object: Some(Bytes::from_static(br#"{"metadata":{"name":"web"}}"#)),
            annotations: vec![("authorization.k8s.io/decision".into(), "allow".into())],
        }
    }
}
