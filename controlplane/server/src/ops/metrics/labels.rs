//! Labels of requests.

use api::Registration;
use api::kind::{Scope, Subresource};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use prometheus_client::encoding::EncodeLabelSet;

use crate::request::info::RequestInfo;
use crate::request::query::Query;
use crate::request::subresource;

/// Labels of long-running requests and response sizes.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Subject {
    verb: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Request {
    #[prometheus(flatten)]
    subject: Subject,
    dry_run: &'static str,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Answer {
    code: u32,
    #[prometheus(flatten)]
    request: Request,
}

/// Request that the server did not take.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Termination {
    pub(super) code: u32,
    #[prometheus(flatten)]
    pub(super) subject: Subject,
}

/// Audit plugin.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Plugin {
    pub(super) plugin: &'static str,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct InFlight {
    pub(super) request_kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Stored {
    pub(super) resource: String,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Resource {
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Watched {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) resource: &'static str,
}

/// `name` and `type`.
pub(super) type Health = [(&'static str, &'static str); 2];

/// `name`, `type` and `status`.
pub(super) type Checked = [(&'static str, &'static str); 3];

/// Attributes of a request that are not in its path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    dry_run: &'static str,
    applies: bool,
}

impl Manner {
    pub(crate) fn of(parts: &Parts) -> Self {
        // Most requests have no query.
        let query = parts
            .uri
            .query()
            .filter(|query| query.contains("dryRun"))
            .and_then(|query| Query::parse(Some(query)).ok());
        let dry_run = query.map_or("", |query| {
            let mut values = query.all("dryRun");
            match values.next() {
                None => "",
                Some(first) if first == "All" && values.all(|value| value == "All") => "All",
                Some(_) => "invalid",
            }
        });
        let media = parts
            .headers
            .get(CONTENT_TYPE)
            .map_or(&b""[..], |value| value.as_bytes());
        Self {
            dry_run,
            applies: media.starts_with(b"application/apply-patch"),
        }
    }
}

impl Subject {
    pub(super) fn of(info: &RequestInfo, row: Option<&Registration>, manner: Manner) -> Self {
        let scope = if !info.is_resource {
            ""
        } else if !info.name.is_empty() || info.verb == "create" {
            "resource"
        } else if info.namespace.is_empty() || row.is_some_and(|row| row.scope == Scope::Cluster) {
            "cluster"
        } else {
            "namespace"
        };
        let sub = row.and_then(|row| subresource::find(row, &info.subresource));
        let verb = match sub {
            Some(Subresource::Exec | Subresource::Attach | Subresource::PortForward | Subresource::Proxy) => "CONNECT",
            Some(_) | None if info.verb == "patch" && manner.applies => "APPLY",
            Some(_) | None => verb(info.verb),
        };
        Self {
            verb,
            group: row.map_or("", |row| row.group),
            version: row.map_or("", |row| row.version),
            resource: row.map_or("", |row| row.plural),
            subresource: sub.map_or("", |sub| sub.name()),
            scope,
            component: "apiserver",
        }
    }

    /// True if upstream records the size of the answer.
    pub(super) fn is_read(self) -> bool {
        matches!(self.verb, "GET" | "LIST")
    }

    pub(super) fn asked(self, manner: Manner) -> Request {
        Request {
            subject: self,
            dry_run: manner.dry_run,
        }
    }
}

impl Request {
    pub(super) fn answered(self, code: u16) -> Answer {
        Answer {
            code: code.into(),
            request: self,
        }
    }
}

/// Upstream counts by these names.
fn verb(verb: &'static str) -> &'static str {
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}
