//! `StorageClass`: parameters for provisioning volumes.

use k8s_openapi::api::storage::v1::StorageClass;

use crate::kind::Kind;
use crate::table::{self, Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::validation::{immutable, one_of, storage};
use crate::workload::warnings::old_label;

impl Kind for StorageClass {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["sc"];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Provisioner", "storage.v1.StorageClass.provisioner", |class, _| {
            class.provisioner.as_str().into()
        }),
        Column::text("ReclaimPolicy", "storage.v1.StorageClass.reclaimPolicy", |class, _| {
            class.reclaim_policy.as_deref().unwrap_or("Delete").into()
        }),
        Column::text(
            "VolumeBindingMode",
            "storage.v1.StorageClass.volumeBindingMode",
            |class, _| class.volume_binding_mode.as_deref().unwrap_or("Immediate").into(),
        ),
        Column::text(
            "AllowVolumeExpansion",
            "storage.v1.StorageClass.allowVolumeExpansion",
            |class, _| class.allow_volume_expansion.unwrap_or(false).into(),
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.reclaim_policy.get_or_insert_with(|| "Delete".to_owned());
        self.volume_binding_mode.get_or_insert_with(|| "Immediate".to_owned());
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let topologies = self.allowed_topologies.iter().flatten().enumerate();
        let warnings = topologies.flat_map(|(at, topology)| {
            let expressions = topology.match_label_expressions.iter().flatten().enumerate();
            expressions.filter_map(move |(index, expression)| {
                let message = old_label(&expression.key)?;
                let path = format!("allowedTopologies[{at}].matchLabelExpressions[{index}]");
                Some(format!("{path}.key: {} is {message}", expression.key))
            })
        });
        warnings.collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        storage::driver(&mut errors, "provisioner", &self.provisioner);
        storage::parameters(&mut errors, self.parameters.as_ref());
        let policies = ["Delete", "Retain"];
        one_of(&mut errors, "reclaimPolicy", self.reclaim_policy.as_deref(), &policies);
        let modes = ["Immediate", "WaitForFirstConsumer"];
        one_of(
            &mut errors,
            "volumeBindingMode",
            self.volume_binding_mode.as_deref(),
            &modes,
        );
        storage::topologies(&mut errors, self.allowed_topologies.as_deref().unwrap_or_default());
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        let changed = [
            (self.parameters != old.parameters, "parameters"),
            (self.provisioner != old.provisioner, "provisioner"),
            (self.reclaim_policy != old.reclaim_policy, "reclaimPolicy"),
        ];
        for (_, field) in changed.into_iter().filter(|(changed, _)| *changed) {
            errors.push(Invalid::forbidden(field, format!("updates to {field} are forbidden.")));
        }
        let (new, old) = (&self.volume_binding_mode, &old.volume_binding_mode);
        immutable(&mut errors, "volumeBindingMode", new, old);
        errors
    }

    fn shown_name(&self) -> String {
        let keys = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        table::class_name(&self.metadata, &keys)
    }
}
