//! Discovery: which groups, versions and resources there are, in the legacy and the aggregated forms.
//!
//! All documents follow from the table of kinds, so they are built once. Of the aggregated form there
//! is only `v2` (`AggregatedDiscoveryRemoveBetaType`): older clients get the legacy one, if they accept
//! it.

pub(crate) mod added;
mod aggregated;
mod legacy;
pub(crate) mod openapi;
pub(crate) mod priorities;
pub mod version;

use std::collections::BTreeMap;

use api::{Kinds, Registration, Row};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::request::failure::Failure;
use crate::request::query::Query;
use crate::transport::negotiation::{Encoding, clauses, for_people};
use crate::transport::respond::{self, Response, encode};
use added::{Added, arrange};

/// The kind of the aggregated form.
const LIST: &str = "APIGroupDiscoveryList";

/// A document with its entity tag.
#[derive(Debug, Clone)]
struct Document {
    bytes: Bytes,
    etag: HeaderValue,
}

impl Document {
    fn new(value: &Value) -> Self {
        let bytes = encode(value);
        let digest: Vec<String> = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let tag = format!("\"{}\"", digest.concat());
        let etag = HeaderValue::from_str(&tag).unwrap_or_else(|_error| HeaderValue::from_static("\"\""));
        Self { bytes, etag }
    }
}

/// The groups by their priority: each with its versions, each with its resources.
pub(crate) fn groups(kinds: &Kinds) -> Vec<(&'static str, Vec<Version>)> {
    let mut groups: Vec<(&'static str, Vec<Version>)> = Vec::new();
    for registration in kinds.rows() {
        let at = groups
            .iter()
            .position(|(name, _)| *name == registration.group)
            .unwrap_or(groups.len());
        if at == groups.len() {
            groups.push((registration.group, Vec::new()));
        }
        let Some((_, versions)) = groups.get_mut(at) else {
            continue;
        };
        match versions.iter_mut().find(|version| version.name == registration.version) {
            Some(version) => version.kinds.push(registration),
            None => versions.push(Version {
                name: registration.version,
                is_defined: registration.is_defined(),
                kinds: vec![registration],
            }),
        }
    }
    for (group, versions) in &mut groups {
        versions.sort_by_cached_key(|version| {
            let own = priorities::local(group, version.name);
            std::cmp::Reverse((own.1, priority(version.name)))
        });
    }
    groups.sort_by_cached_key(|(group, versions)| {
        let priorities = versions.iter().map(|version| priorities::local(group, version.name).0);
        (std::cmp::Reverse(priorities.max()), *group)
    });
    for version in groups.iter_mut().flat_map(|(_, versions)| versions) {
        version.kinds.sort_by_key(|registration| registration.plural);
    }
    groups
}

/// Order of versions (`staging/src/k8s.io/apimachinery/pkg/version/helpers.go`): `v2`, `v1`,
/// `v2beta1`, `v1alpha2`, then other names in reverse lexical order.
pub(crate) fn priority(name: &str) -> (bool, u8, u32, u32, std::cmp::Reverse<&str>) {
    let other = (false, 0, 0, 0, std::cmp::Reverse(name));
    let Some(rest) = name.strip_prefix('v') else {
        return other;
    };
    let digits = |text: &str| text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (major, rest) = rest.split_at(digits(rest));
    let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        (None, None) if rest.is_empty() => (2, "0"),
        (None, None) => return other,
    };
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => (true, stability, major, minor, std::cmp::Reverse("")),
        (_, _) => other,
    }
}

/// Version of an API group.
pub(crate) struct Version {
    pub(crate) name: &'static str,
    /// True if it has no built-in kind.
    pub(crate) is_defined: bool,
    pub(crate) kinds: Vec<Row>,
}

/// The verbs of a kind, in upstream's order
/// (`staging/src/k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_discovery_controller.go`).
fn verbs(registration: &Registration) -> &'static [&'static str] {
    if registration.is_defined() {
        return &[
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "create",
            "update",
            "watch",
        ];
    }
    registration.verbs.names()
}

/// Discovery documents, ready to be sent.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// Documents by path: `api`, `api/v1`, `apis`, `apis/GROUP`, `apis/GROUP/VERSION`.
    legacy: BTreeMap<String, Document>,
    /// Aggregated documents by path (`api`, `apis`).
    aggregated: BTreeMap<&'static str, Document>,
}

impl Discovery {
    /// Builds the documents. `address` is where clients reach the server, as `host:port`.
    pub fn new(kinds: &Kinds, address: &str) -> Self {
        let groups = groups(kinds);
        let legacy = legacy::documents(&groups, address)
            .into_iter()
            .map(|(path, value)| (path, Document::new(&value)))
            .collect();
        let aggregated = ["api", "apis"]
            .into_iter()
            .map(|path| (path, Document::new(&aggregated::document(&groups, path))))
            .collect();
        Self { legacy, aggregated }
    }

    /// Documents including aggregated group versions.
    pub(crate) fn with(&self, added: &[Added]) -> Self {
        let read = |document: &Document| serde_json::from_slice::<Value>(&document.bytes).unwrap_or_default();
        let mut all = self.clone();
        if let Some(document) = all.legacy.get_mut("apis") {
            let mut list = read(document);
            let groups = list.get_mut("groups").and_then(Value::as_array_mut);
            let groups = groups.map(|groups| {
                for own in added {
                    own.to_legacy(groups);
                }
                arrange(groups, added, "/name");
                groups.clone()
            });
            *document = Document::new(&list);
            for group in groups.into_iter().flatten() {
                let name = group.get("name").and_then(Value::as_str).unwrap_or_default();
                if !added.iter().any(|own| own.group == name) {
                    continue;
                }
                let path = format!("apis/{name}");
                let mut one = json!({"kind": "APIGroup", "apiVersion": "v1"});
                legacy::merge(&mut one, &group);
                all.legacy.insert(path, Document::new(&one));
            }
        }
        if let Some(document) = all.aggregated.get_mut("apis") {
            let mut list = read(document);
            if let Some(items) = list.get_mut("items").and_then(Value::as_array_mut) {
                for own in added {
                    own.to_aggregated(items);
                }
                arrange(items, added, "/metadata/name");
            }
            *document = Document::new(&list);
        }
        all
    }

    /// The paths that are served, for the index at `/`.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        self.legacy.keys().map(|path| format!("/{path}"))
    }

    /// Answers a path; `None` when it is not one of discovery.
    ///
    /// # Errors
    /// 406 when the client accepts nothing that is served.
    pub fn answer(&self, path: &str, headers: &HeaderMap, query: &Query) -> Option<Result<Response, Failure>> {
        let legacy = self.legacy.get(path)?;
        Some(self.negotiate(path, legacy, headers, query))
    }

    fn negotiate(
        &self,
        path: &str,
        legacy: &Document,
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Response, Failure> {
        for clause in clauses(headers) {
            let Some(encoding) = Encoding::of(&clause) else {
                continue;
            };
            let encoding = for_people(encoding, headers, query);
            let Some(wanted) = clause.parameter("as") else {
                return served(legacy, encoding, ("v1", kind(path)), "", headers);
            };
            let version = (clause.parameter("g"), clause.parameter("v"));
            if wanted == LIST
                && version == (Some("apidiscovery.k8s.io"), Some("v2"))
                && let Some(document) = self.aggregated.get(path)
            {
                let parameters = format!(";g=apidiscovery.k8s.io;v=v2;as={LIST}");
                return served(
                    document,
                    encoding,
                    ("apidiscovery.k8s.io/v2", LIST),
                    &parameters,
                    headers,
                );
            }
        }
        Err(Failure::accepts_only(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ))
    }
}

/// Kind of the document at a path.
fn kind(path: &str) -> &'static str {
    match (path, path.split('/').count()) {
        ("api", _) => "APIVersions",
        ("apis", _) => "APIGroupList",
        (_, 2) if path.starts_with("apis/") => "APIGroup",
        _ => "APIResourceList",
    }
}

/// The document in an encoding, or that the client knows it.
fn served(
    document: &Document,
    encoding: Encoding,
    kind: (&str, &str),
    parameters: &str,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let fresh = headers.get(IF_NONE_MATCH).is_some_and(|tag| *tag == document.etag);
    let mut response = if fresh {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        respond::document(encoding, StatusCode::OK, kind, &document.bytes)?
    };
    let headers = response.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(&format!("{}{parameters}", encoding.content_type())) {
        headers.insert(CONTENT_TYPE, content_type);
    }
    headers.insert(ETAG, document.etag.clone());
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}
