//! Node: a machine that runs pods.

use k8s_openapi::api::core::v1::Node;

use crate::kind::Kind;

impl Kind for Node {
    const SHORT_NAMES: &'static [&'static str] = &["no"];
    const SUBRESOURCES: &'static [crate::kind::Subresource] = &[crate::kind::Subresource::Status];
    crate::spec_and_status!();
}
