//! Binding: the assignment of a pod to a node. An action, never stored.

use k8s_openapi::api::core::v1::Binding;

use crate::kind::Kind;

impl Kind for Binding {
    const VERBS: crate::kind::Verbs = crate::kind::Verbs::CreateOnly;
}
