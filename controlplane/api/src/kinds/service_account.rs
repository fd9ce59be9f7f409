//! `ServiceAccount`: an identity for pods.

use k8s_openapi::api::core::v1::{ObjectReference, ServiceAccount};

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::workload::warnings::has_annotation;

/// Keeps only the names of secret references.
fn name_secrets(account: &mut ServiceAccount) {
    for secret in account.secrets.iter_mut().flatten() {
        *secret = ObjectReference {
            name: secret.name.take(),
            ..ObjectReference::default()
        };
    }
}

impl Kind for ServiceAccount {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["sa"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Token];
    const COLUMNS: &'static [Column<Self>] = &[age_column()];

    fn prepare_create(&mut self) {
        name_secrets(self);
    }

    fn prepare_update(&mut self, _old: &Self) {
        name_secrets(self);
    }

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        const OLD: &str = "kubernetes.io/enforce-mountable-secrets";
        let is_new = |account: &Self| has_annotation(&account.metadata, OLD);
        let message = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        let warning = format!("metadata.annotations[{OLD}]: {message}");
        let warns = is_new(self) && old.is_none_or(|old| !is_new(old));
        warns.then_some(warning).into_iter().collect()
    }
}
