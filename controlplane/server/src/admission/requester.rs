//! Who asks for a certificate is not the request's own word.

use api::Object;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::admission::Review;
use crate::failure::Failure;

/// Notes the user in a new `CertificateSigningRequest`, whatever it says itself.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(super) fn note(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if !review.is_new() {
        return Ok(());
    }
    let Some(request) = object.as_any_mut().downcast_mut::<CertificateSigningRequest>() else {
        return Ok(());
    };
    let user = &review.context.user;
    request.spec.username = Some(user.name.clone());
    request.spec.uid = Some(user.uid.clone()).filter(|uid| !uid.is_empty());
    request.spec.groups = Some(user.groups.clone());
    request.spec.extra = Some(user.extra.clone()).filter(|extra| !extra.is_empty());
    Ok(())
}
