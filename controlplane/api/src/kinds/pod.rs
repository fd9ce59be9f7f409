//! Pod: containers that share a network and a life.

use k8s_openapi::api::core::v1::Pod;

use crate::kind::Kind;

impl Kind for Pod {
    const SHORT_NAMES: &'static [&'static str] = &["po"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [crate::kind::Subresource] = &[
        crate::kind::Subresource::Binding,
        crate::kind::Subresource::Eviction,
        crate::kind::Subresource::Log,
        crate::kind::Subresource::Status,
    ];
    const GENERATION: bool = true;
    crate::spec_and_status!();
}
