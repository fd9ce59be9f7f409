//! Who may do what. `system:masters` may do everything; the cluster's own components may do what a fixed table says;
//! nobody else may do anything but ask for the server's health, version and, once authenticated, discovery.
//!
//! A later authorizer over roles and bindings replaces this module; its answers to a denied request stay the same.

mod table;

use crate::failure::{Failure, GroupResource, Target};
use crate::identity::{ACCOUNTS, AUTHENTICATED, MASTERS, User};
use crate::request::RequestInfo;

/// Decides from the fixed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authorizer;

/// The group of all nodes.
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

impl Authorizer {
    /// Lets a request pass or says why not.
    ///
    /// # Errors
    /// 403
    pub fn authorize(&self, user: &User, info: &RequestInfo, segments: &[String]) -> Result<(), Failure> {
        let allowed = user.is_in(MASTERS)
            || if info.is_resource {
                may(user, info)
            } else {
                may_see(user, info, segments)
            };
        if allowed {
            Ok(())
        } else {
            Err(denied(user, info, segments))
        }
    }
}

/// Paths that name no resource: health and version for all, discovery for those who are known.
fn may_see(user: &User, info: &RequestInfo, segments: &[String]) -> bool {
    if !matches!(info.verb, "get" | "head") {
        return false;
    }
    match segments.first().map(String::as_str) {
        Some("livez" | "readyz" | "healthz" | "version") => true,
        Some("api" | "apis" | "openapi") => user.is_in(AUTHENTICATED),
        Some(".well-known" | "openid") => user.is_in(ACCOUNTS),
        _ => false,
    }
}

/// The node whose agent the user is.
pub(crate) fn node(user: &User) -> Option<&str> {
    user.name
        .strip_prefix(NODE_PREFIX)
        .filter(|_| user.is_in(NODES) && !user.is_in(MASTERS))
}

fn may(user: &User, info: &RequestInfo) -> bool {
    if let Some(node) = node(user) {
        return node_may(node, info);
    }
    let asks_of_himself = info.verb == "create" && info.resource == "selfsubjectreviews" && user.is_in(AUTHENTICATED);
    asks_of_himself || table::rules(&user.name).iter().any(|rule| rule.allows(info))
}

/// A node may write its own Node and Lease, not another's.
fn node_may(node: &str, info: &RequestInfo) -> bool {
    let owned = matches!(info.resource.as_str(), "nodes" | "leases");
    let reads = matches!(info.verb, "get" | "list" | "watch");
    if owned && !reads && info.named && info.name != node {
        return false;
    }
    if info.resource == "leases" && info.namespace != "kube-node-lease" {
        return false;
    }
    table::NODE.iter().any(|rule| rule.allows(info))
}

/// A denial of something that the table allows in general, with the reason that makes this one different.
pub(crate) fn unrelated(user: &User, info: &RequestInfo, reason: &str) -> Failure {
    let mut failure = denied(user, info, &[]);
    if let Failure::Forbidden { because, .. } = &mut failure {
        because.push_str(": ");
        because.push_str(reason);
    }
    failure
}

/// Upstream's words for a denial.
fn denied(user: &User, info: &RequestInfo, segments: &[String]) -> Failure {
    let name = &user.name;
    if !info.is_resource {
        let path = format!("/{}", segments.join("/"));
        let because = format!("User {name:?} cannot {} path {path:?}", info.verb);
        return Failure::Forbidden {
            target: None,
            because,
            causes: Vec::new(),
        };
    }
    let mut resource = info.resource.clone();
    if !info.subresource.is_empty() {
        resource.push('/');
        resource.push_str(&info.subresource);
    }
    let place = if info.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", info.namespace)
    };
    let group = &info.group;
    Failure::Forbidden {
        target: Some(Target {
            resource: GroupResource::new(info.group.clone(), info.resource.clone()),
            name: info.name.clone(),
        }),
        because: format!(
            "User {name:?} cannot {} resource {resource:?} in API group {group:?} {place}",
            info.verb
        ),
        causes: Vec::new(),
    }
}
