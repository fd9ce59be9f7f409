//! Service: one address for many pods.

use k8s_openapi::api::core::v1::Service;

use crate::kind::Kind;

impl Kind for Service {
    const SHORT_NAMES: &'static [&'static str] = &["svc"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [crate::kind::Subresource] = &[crate::kind::Subresource::Status];
    const NAME: crate::names::Rule = crate::names::Rule::Label;
    crate::spec_and_status!();
}
