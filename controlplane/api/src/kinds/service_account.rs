//! `ServiceAccount`: an identity for pods.

use k8s_openapi::api::core::v1::ServiceAccount;

use crate::kind::Kind;

impl Kind for ServiceAccount {
    const SHORT_NAMES: &'static [&'static str] = &["sa"];
}
