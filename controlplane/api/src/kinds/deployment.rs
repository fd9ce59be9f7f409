//! Deployment: replicas of a pod, rolled from version to version.

use k8s_openapi::api::apps::v1::Deployment;

use crate::kind::Kind;

impl Kind for Deployment {
    const SHORT_NAMES: &'static [&'static str] = &["deploy"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [crate::kind::Subresource] =
        &[crate::kind::Subresource::Scale, crate::kind::Subresource::Status];
    const GENERATION: bool = true;
    crate::spec_and_status!();
}
