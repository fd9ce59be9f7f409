//! `CustomResourceDefinition`: a custom kind. The server's part is in `server/src/extensions/definitions`,
//! including the checks of schemas.

pub mod names;
mod validation;

pub use validation::{schema_path, selectable_path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionStatus,
};

use crate::kind::{Kind, Subresource, Updates};
use crate::table::{Column, created_column};
use crate::value::invalid::Invalid;

/// API group of `CustomResourceDefinition`s.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Finalizer that keeps a definition until all objects of its kind are deleted.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Annotation for the approval of a kind in one of the Kubernetes project's own groups.
pub const APPROVED: &str = "api-approved.kubernetes.io";

impl Kind for CustomResourceDefinition {
    const SHORT_NAMES: &'static [&'static str] = &["crd", "crds"];
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[created_column()];
    const GENERATION: bool = true;
    const UPDATES: Updates = Updates::CONDITIONAL;

    /// `pkg/apis/apiextensions/v1/defaults.go`
    fn set_defaults(&mut self) {
        let names = &mut self.spec.names;
        if names.singular.as_deref().unwrap_or_default().is_empty() {
            names.singular = Some(names.kind.to_lowercase()).filter(|name| !name.is_empty());
        }
        if names.list_kind.as_deref().unwrap_or_default().is_empty() && !names.kind.is_empty() {
            names.list_kind = Some(format!("{}List", names.kind));
        }
        let conversion = self.spec.conversion.get_or_insert_with(|| CustomResourceConversion {
            strategy: "None".to_owned(),
            webhook: None,
        });
        let client = conversion
            .webhook
            .as_mut()
            .and_then(|webhook| webhook.client_config.as_mut());
        if let Some(service) = client.and_then(|client| client.service.as_mut()) {
            service.port.get_or_insert(443);
        }
        if self.spec.preserve_unknown_fields == Some(false) {
            self.spec.preserve_unknown_fields = None;
        }
        let stored = self.spec.versions.iter().find(|version| version.storage);
        let status = self.status.get_or_insert_default();
        if status.stored_versions.as_ref().is_none_or(Vec::is_empty) {
            status.stored_versions = stored.map(|version| vec![version.name.clone()]);
        }
        status.accepted_names.get_or_insert_default();
    }

    /// `strategy.PrepareForCreate` of `pkg/registry/customresourcedefinition/strategy.go`
    fn prepare_create(&mut self) {
        self.status = Some(CustomResourceDefinitionStatus {
            accepted_names: Some(CustomResourceDefinitionNames::default()),
            ..CustomResourceDefinitionStatus::default()
        });
        self.keep_stored();
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        self.keep_stored();
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = validation::name(self);
        errors.extend(validation::spec(self, None));
        errors.extend(validation::status(self));
        errors.extend(validation::approval(self, None));
        errors.extend(validation::preserve(self, None));
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = validation::spec(self, Some(old));
        errors.extend(validation::immutable_names(self, old));
        errors.extend(validation::status(self));
        errors.extend(validation::approval(self, Some(old)));
        errors.extend(validation::preserve(self, Some(old)));
        errors
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        validation::accepted_names(self)
    }

    crate::spec_alone!();
}

/// Preparation of both new and changed definitions.
trait Stored {
    /// Adds the storage version to `storedVersions`.
    fn keep_stored(&mut self);
}

impl Stored for CustomResourceDefinition {
    fn keep_stored(&mut self) {
        let Some(version) = self.spec.versions.iter().find(|version| version.storage) else {
            return;
        };
        let status = self.status.get_or_insert_default();
        let stored = status.stored_versions.get_or_insert_default();
        if !stored.contains(&version.name) {
            stored.push(version.name.clone());
        }
    }
}
