//! Namespace: a scope for names.

use k8s_openapi::api::core::v1::{Namespace, NamespaceStatus};

use crate::kind::{Field, Kind, Subresource, Verbs};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;
use crate::workload::validation::metadata;

impl Kind for Namespace {
    const SHORT_NAMES: &'static [&'static str] = &["ns"];
    const VERBS: Verbs = Verbs::OneByOne;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Finalize, Subresource::Status];
    const NAME: Rule = Rule::Label;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "The status of the namespace", |namespace, _| {
            phase(namespace).into()
        }),
        age_column(),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field::new("status.phase", |namespace| phase(namespace).to_owned())];

    fn set_defaults(&mut self) {
        let name = self.metadata.name.clone().unwrap_or_default();
        if !name.is_empty() {
            self.metadata
                .labels
                .get_or_insert_default()
                .insert("kubernetes.io/metadata.name".to_owned(), name);
        }
    }

    fn prepare_create(&mut self) {
        let finalizers = self.spec.get_or_insert_default().finalizers.get_or_insert_default();
        if !finalizers.iter().any(|name| name == "kubernetes") {
            finalizers.push("kubernetes".to_owned());
        }
        self.status = Some(NamespaceStatus {
            phase: Some("Active".to_owned()),
            ..NamespaceStatus::default()
        });
    }

    fn prepare_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn validate(&self) -> Vec<Invalid> {
        let finalizers = self.spec.as_ref().and_then(|spec| spec.finalizers.as_deref());
        metadata::finalizer_names(finalizers.unwrap_or_default(), "spec.finalizers")
    }

    fn validate_own(&self, _old: &Self) -> Vec<Invalid> {
        let finalizers = self.spec.iter().filter_map(|spec| spec.finalizers.as_ref()).flatten();
        let named = finalizers.enumerate().flat_map(|(index, name)| {
            let path = format!("spec.finalizers[{index}]");
            metadata::finalizer_names(std::slice::from_ref(name), &path)
        });
        named.collect()
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let (expected, detail) = if self.metadata.deletion_timestamp.is_none() {
            ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
        } else {
            (
                "Terminating",
                "may only be 'Terminating' if `deletionTimestamp` is not empty",
            )
        };
        // A missing phase counts as Active.
        let phase = Some(phase(self)).filter(|phase| !phase.is_empty()).unwrap_or("Active");
        let wrong = (phase != expected).then(|| Invalid::value("status.Phase", phase, detail));
        wrong.into_iter().collect()
    }

    fn prepare_own(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }
}

/// `Active` or `Terminating`.
pub fn phase(namespace: &Namespace) -> &str {
    namespace
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}
