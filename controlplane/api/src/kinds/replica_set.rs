//! `ReplicaSet`: replicas of one version of a pod.

use k8s_openapi::api::apps::v1::ReplicaSet;

use crate::kind::Kind;

impl Kind for ReplicaSet {
    const SHORT_NAMES: &'static [&'static str] = &["rs"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [crate::kind::Subresource] =
        &[crate::kind::Subresource::Scale, crate::kind::Subresource::Status];
    const GENERATION: bool = true;
    crate::spec_and_status!();
}
