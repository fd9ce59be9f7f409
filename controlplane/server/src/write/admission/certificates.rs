//! Signing requests: the server sets the requesting user, and approvers and signers need the right
//! for the signer (upstream's `CertificateApproval`, `CertificateSigning` and
//! `CertificateSubjectRestriction`).

use api::Object;
use api::certificate::{CLIENT, Request};
use api::kinds::certificate_signing_request::conditions;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Review;
use crate::authn::identity::MASTERS;
use crate::authz::{Attributes, Resource};
use crate::request::failure::Failure;
use crate::write::admission::Part;

const GROUP: &str = "certificates.k8s.io";

/// Sets the user in a new request, overwriting the client's value, and missing times of conditions.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(super) fn note(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let Some(request) = object.as_any_mut().downcast_mut::<CertificateSigningRequest>() else {
        return Ok(());
    };
    let Some(old) = review.old else {
        let user = &review.context.user;
        request.spec.username = Some(user.name.clone());
        request.spec.uid = Some(user.uid.clone()).filter(|uid| !uid.is_empty());
        request.spec.groups = Some(user.groups.clone());
        request.spec.extra = Some(user.extra.clone()).filter(|extra| !extra.is_empty());
        return Ok(());
    };
    if let (Part::Own | Part::Status, Some(old)) = (review.part, old.as_any().downcast_ref()) {
        date(request, old, &Time(review.context.now()));
    }
    Ok(())
}

/// A condition that stays as it was keeps the time since when it is so.
fn date(request: &mut CertificateSigningRequest, old: &CertificateSigningRequest, now: &Time) {
    let status = request.status.as_mut();
    for condition in status
        .and_then(|status| status.conditions.as_mut())
        .into_iter()
        .flatten()
    {
        condition.last_update_time.get_or_insert_with(|| now.clone());
        let before = conditions(old)
            .iter()
            .find(|old| old.type_ == condition.type_ && old.status == condition.status);
        let since = before.and_then(|old| old.last_transition_time.as_ref()).unwrap_or(now);
        condition.last_transition_time.get_or_insert_with(|| since.clone());
    }
}

/// Checks that approvers and signers are authorized for the signer, and that no request is for
/// `system:masters`.
pub(super) fn check(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    let Some(request) = object.as_any().downcast_ref::<CertificateSigningRequest>() else {
        return Ok(());
    };
    let Some(old) = review.old.and_then(|old| old.as_any().downcast_ref()) else {
        return check_subject(request).map_err(|because| review.forbid(object, because));
    };
    let verb = match review.part {
        Part::Own => "approve",
        Part::Status if is_decided_by_signer(request, old) => "sign",
        Part::Object | Part::Status | Part::EphemeralContainers | Part::Resize | Part::Decided => return Ok(()),
    };
    let signer = &old.spec.signer_name;
    if may(review, verb, signer) {
        return Ok(());
    }
    let because = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(review.forbid(object, because))
}

fn check_subject(request: &CertificateSigningRequest) -> Result<(), String> {
    if request.spec.signer_name != CLIENT {
        return Ok(());
    }
    let asked = Request::parse(&request.spec.request.0).map_err(|error| format!("failed to parse CSR: {error}"))?;
    if asked.organizations.iter().any(|group| group == MASTERS) {
        return Err(format!("use of {CLIENT} signer with {MASTERS} group is not allowed"));
    }
    Ok(())
}

fn is_decided_by_signer(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> bool {
    let certificate = |request: &CertificateSigningRequest| {
        let status = request.status.as_ref();
        status
            .and_then(|status| status.certificate.clone())
            .unwrap_or_default()
            .0
    };
    certificate(new) != certificate(old) || conditions(new) != conditions(old)
}

/// True if the caller may use the verb on the signer or on all signers of its domain.
fn may(review: &Review<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    let context = review.context;
    [signer, &format!("{domain}/*")].into_iter().any(|name| {
        let signer = Resource {
            group: GROUP,
            resource: "signers",
            name,
            ..Resource::default()
        };
        let attributes = Attributes::resource(verb, signer);
        let decision = context.server.authorizer.decide(&context.user, &attributes);
        decision.is_allowed()
    })
}
