//! Certificate signing requests: automatic approval, signing, and cleanup.

use std::time::Duration;

use api::certificate::{self, AlternativeName, CLIENT, NODE_CLIENT, NODE_SERVING, Request, Unfit, is_the_servers};
use api::kinds::certificate_signing_request::conditions;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Time that a request is kept after it was issued, denied or failed.
const KEPT: SignedDuration = SignedDuration::from_hours(1);
/// Time that a request waits for a decision, and an approved one for its signer.
const PENDING: SignedDuration = SignedDuration::from_hours(24);

/// Permission that gets a node's certificate approved automatically: `create` on this subresource
/// of signing requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The subresource.
    pub subresource: &'static str,
    /// Message of the approval condition.
    pub message: &'static str,
}

/// A node's agent renews its client certificate.
const RENEWAL: Right = Right {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
/// A node's agent asks for its serving certificate, which the API server verifies by the node's
/// name. The addresses are only claimed by the node itself: a person has to approve those.
const OWN_SERVER: Right = Right {
    subresource: "selfnodeserver",
    message: "Auto approving self kubelet serving certificate for the node's own name after SubjectAccessReview.",
};
/// A user who may add nodes asks for a node's first certificate.
const FIRST: Right = Right {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

/// Action for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Approve the request if the requester has one of these permissions; the first one counts.
    Approve(Vec<Right>),
    /// Sign the request.
    Sign(Request),
    /// Set the `Failed` condition with this reason.
    Fail(Unfit),
    /// Delete the request.
    Delete,
    /// Do nothing.
    Rest,
}

/// Returns the action for a request, and the time after which it has to be looked at again.
/// `server` lists the API server's names.
pub fn plan(request: &CertificateSigningRequest, server: &[String], now: Timestamp) -> (Act, Option<Duration>) {
    if request.metadata.deletion_timestamp.is_some() {
        return (Act::Rest, None);
    }
    let end = end(request);
    let left = end.map(|end| end.duration_since(now));
    if left.is_some_and(|left| left <= SignedDuration::ZERO) {
        return (Act::Delete, None);
    }
    let left = left.and_then(|left| Duration::try_from(left).ok());
    (act(request, server), left)
}

fn act(request: &CertificateSigningRequest, server: &[String]) -> Act {
    let spec = &request.spec;
    let signer = spec.signer_name.as_str();
    if is_issued(request)
        || has(request, "Denied")
        || has(request, "Failed")
        || ![CLIENT, NODE_CLIENT, NODE_SERVING].contains(&signer)
    {
        return Act::Rest;
    }
    let Ok(asked) = Request::parse(&spec.request.0) else {
        return Act::Rest;
    };
    let checked = certificate::check(signer, &asked, spec.usages.as_deref().unwrap_or_default());
    let node = asked.common_name.strip_prefix("system:node:").unwrap_or_default();
    let is_taken = |name: &AlternativeName| matches!(name, AlternativeName::Dns(name) if is_the_servers(name, server));
    let shows = is_the_servers(node, server) || asked.names.iter().any(is_taken);
    if signer == NODE_SERVING && shows && checked.is_ok() {
        return if has(request, "Approved") {
            Act::Fail(Unfit::TheServers)
        } else {
            Act::Rest
        };
    }
    if has(request, "Approved") {
        return checked.map_or_else(Act::Fail, |()| Act::Sign(asked));
    }
    if checked.is_err() {
        return Act::Rest;
    }
    let is_own = spec.username.as_ref() == Some(&asked.common_name);
    // A client certificate cannot pass for a server that has a name of its own.
    if is_the_servers(node, if signer == NODE_CLIENT { &[] } else { server }) {
        return Act::Rest;
    }
    match signer {
        NODE_CLIENT if is_own => Act::Approve(vec![RENEWAL, FIRST]),
        NODE_CLIENT => Act::Approve(vec![FIRST]),
        NODE_SERVING if is_own && asked.names == [AlternativeName::Dns(node.to_owned())] => {
            Act::Approve(vec![OWN_SERVER])
        }
        _ => Act::Rest,
    }
}

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    conditions(request).iter().any(|condition| condition.type_ == kind)
}

fn certificate(request: &CertificateSigningRequest) -> &[u8] {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate
        .map(|certificate| certificate.0.as_slice())
        .unwrap_or_default()
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    !certificate(request).is_empty()
}

/// Saturates at the end of time.
fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Time at which a request is deleted (`pkg/controller/certificates/cleaner/cleaner.go`).
fn end(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let conditions = conditions(request);
    if conditions.is_empty() {
        let made = request.metadata.creation_timestamp.as_ref()?;
        return Some(later(made.0, PENDING));
    }
    let is_issued = is_issued(request);
    let told = conditions.iter().filter_map(|condition| {
        let kept = match condition.type_.as_str() {
            "Approved" if !is_issued => PENDING,
            "Approved" | "Denied" | "Failed" => KEPT,
            _ => return None,
        };
        Some(later(condition.last_update_time.as_ref()?.0, kept))
    });
    let told = told.min();
    let own = (is_issued && has(request, "Approved")).then(|| certificate::end_of(certificate(request)));
    let own = own.flatten().and_then(|second| Timestamp::from_second(second).ok());
    [told, own].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
