//! Namespace: a set of names.

use k8s_openapi::api::core::v1::Namespace;

use crate::kind::Kind;

impl Kind for Namespace {
    const SHORT_NAMES: &'static [&'static str] = &["ns"];
    const SUBRESOURCES: &'static [crate::kind::Subresource] =
        &[crate::kind::Subresource::Finalize, crate::kind::Subresource::Status];
    const NAME: crate::names::Rule = crate::names::Rule::Label;
    crate::spec_and_status!();
}
