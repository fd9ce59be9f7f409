//! Bodies of subresources: kinds that cannot be listed and have no path of their own.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::policy::v1::Eviction;

use crate::kind::{Kind, Verbs};
use crate::registration::Registration;

impl Kind for Eviction {
    const VERBS: Verbs = Verbs::CreateOnly;
}

impl Kind for Scale {
    const VERBS: Verbs = Verbs::CreateOnly;
}

impl Kind for TokenRequest {
    const VERBS: Verbs = Verbs::CreateOnly;
}

/// The body of `eviction`.
pub static EVICTION: Registration = Registration::of::<Eviction>();
/// The body of `scale`.
pub static SCALE: Registration = Registration::of::<Scale>();
/// The body of `token`.
pub static TOKEN_REQUEST: Registration = Registration::of::<TokenRequest>();

/// True if the kind is the body of a subresource.
pub(super) fn is_one(group: &str, version: &str, kind: &str) -> bool {
    [&EVICTION, &SCALE, &TOKEN_REQUEST]
        .iter()
        .any(|row| row.group == group && row.version == version && row.kind == kind)
}
