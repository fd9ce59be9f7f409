//! Binding: the assignment of a pod to a node. An action, never stored.

use k8s_openapi::api::core::v1::Binding;

use crate::kind::{Kind, Verbs};
use crate::value::invalid::Invalid;
use crate::workload::validation::{non_empty, required};

impl Kind for Binding {
    const VERBS: Verbs = Verbs::CreateOnly;

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        if let Some(kind) = non_empty(self.target.kind.as_deref()).filter(|kind| *kind != "Node") {
            errors.push(Invalid::not_supported("target.kind", kind, &["Node", "<empty>"]));
        }
        required(&mut errors, "target.name", self.target.name.as_deref());
        errors
    }
}
