//! Binding: the assignment of a pod to a node. An action, never stored.

use k8s_openapi::api::core::v1::Binding;

use crate::invalid::Invalid;
use crate::kind::{Kind, Verbs};
use crate::validation::{one_of_or_none, required};

impl Kind for Binding {
    const VERBS: Verbs = Verbs::CreateOnly;

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        one_of_or_none(&mut errors, "target.kind", self.target.kind.as_deref(), &["", "Node"]);
        required(&mut errors, "target.name", self.target.name.as_deref());
        errors
    }
}
