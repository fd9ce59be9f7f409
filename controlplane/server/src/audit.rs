//! The seam to the audit log: one record for each stage of each request.

pub mod file;

use std::net::IpAddr;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use k8s_openapi::jiff::Timestamp;

use crate::identity::User;

/// Takes records. A sink that cannot keep up may hold up writes, never reads.
pub trait Sink: Send + Sync {
    /// Takes one record.
    fn record(&self, record: Record);
}

/// When a record is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A long answer has begun: a watch.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
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

/// What is known of a request.
#[derive(Debug, Clone)]
pub struct Record {
    /// Unique for the request.
    pub id: String,
    /// When in the request's life.
    pub stage: Stage,
    /// When the request arrived.
    pub received: Timestamp,
    /// When this stage was reached.
    pub staged: Timestamp,
    /// Path and query as sent.
    pub uri: String,
    /// Verb as authorization sees it.
    pub verb: String,
    /// Who asked.
    pub user: User,
    /// As whom, where the one who asked acted as somebody else.
    pub impersonated: Option<User>,
    /// With which client.
    pub user_agent: String,
    /// From where; nothing inside the process.
    pub source: Option<IpAddr>,
    /// About what.
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
    pub annotations: Vec<(&'static str, String)>,
}
