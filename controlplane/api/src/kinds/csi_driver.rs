//! `CSIDriver`: capabilities of a storage driver.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::CSIDriver;

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::validation::{immutable, one_of_or_none};

impl Kind for CSIDriver {
    const ANSWERS_DELETED: bool = true;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::boolean(
            "AttachRequired",
            "storage.v1.CSIDriverSpec.attachRequired",
            |driver, _| driver.spec.attach_required.unwrap_or(true).into(),
        ),
        Column::boolean(
            "PodInfoOnMount",
            "storage.v1.CSIDriverSpec.podInfoOnMount",
            |driver, _| driver.spec.pod_info_on_mount.unwrap_or(false).into(),
        ),
        Column::boolean(
            "StorageCapacity",
            "storage.v1.CSIDriverSpec.storageCapacity",
            |driver, _| driver.spec.storage_capacity.unwrap_or(false).into(),
        ),
        Column::text(
            "TokenRequests",
            "storage.v1.CSIDriverSpec.tokenRequests",
            |driver, _| {
                let requests = driver.spec.token_requests.as_deref().unwrap_or_default();
                if requests.is_empty() {
                    return "<unset>".into();
                }
                let audiences = requests.iter().map(|request| request.audience.as_str());
                audiences.collect::<Vec<_>>().join(",").into()
            },
        ),
        Column::boolean(
            "RequiresRepublish",
            "storage.v1.CSIDriverSpec.requiresRepublish",
            |driver, _| driver.spec.requires_republish.unwrap_or(false).into(),
        ),
        Column::text("Modes", "storage.v1.CSIDriverSpec.volumeLifecycleModes", |driver, _| {
            let modes = driver.spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
            if modes.is_empty() {
                return "<none>".into();
            }
            modes.join(",").into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.fs_group_policy
            .get_or_insert_with(|| "ReadWriteOnceWithFSType".to_owned());
        if spec.volume_lifecycle_modes.as_ref().is_none_or(Vec::is_empty) {
            spec.volume_lifecycle_modes = Some(vec!["Persistent".to_owned()]);
        }
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
    }

    /// Only counts changes: a new object has no generation.
    fn prepare_update(&mut self, old: &Self) {
        if self.spec != old.spec {
            self.metadata.generation = Some(old.metadata.generation.unwrap_or(0) + 1);
        }
    }

    /// Recommends secrets for tokens that the driver asks for
    /// (`pkg/registry/storage/csidriver/strategy.go`).
    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let asked = |driver: &Self| driver.spec.token_requests.clone().unwrap_or_default();
        let requests = asked(self);
        let is_new = !requests.is_empty() && old.is_none_or(|old| asked(old) != requests);
        let is_unset = self.spec.service_account_token_in_secrets.is_none();
        let warning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to \
                       prevent possible logging of tokens in volume attributes";
        (is_new && is_unset).then(|| warning.to_owned()).into_iter().collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let spec = &self.spec;
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        let policy = spec.fs_group_policy.as_deref();
        one_of_or_none(&mut errors, "spec.fsGroupPolicy", policy, &policies);
        let requests = spec.token_requests.as_deref().unwrap_or_default();
        let mut audiences = BTreeSet::new();
        for (index, request) in requests.iter().enumerate() {
            let path = format!("spec.tokenRequests[{index}]");
            if !audiences.insert(&request.audience) {
                errors.push(Invalid::duplicate(format!("{path}.audience"), &request.audience));
                continue;
            }
            let (field, seconds) = (format!("{path}.expirationSeconds"), request.expiration_seconds);
            if let Some(short) = seconds.filter(|seconds| *seconds < 600) {
                let detail = "may not specify a duration less than 10 minutes";
                errors.push(Invalid::value(field.as_str(), short, detail));
            }
            if let Some(long) = seconds.filter(|seconds| *seconds > 1 << 32) {
                let detail = "may not specify a duration larger than 2^32 seconds";
                errors.push(Invalid::value(field, long, detail));
            }
        }
        for mode in spec.volume_lifecycle_modes.iter().flatten() {
            let modes = ["Persistent", "Ephemeral"];
            one_of_or_none(&mut errors, "spec.volumeLifecycleModes", Some(mode), &modes);
        }
        if let Some(period) = spec
            .node_allocatable_update_period_seconds
            .filter(|period| *period < 10)
        {
            let detail = "must be greater than or equal to 10 seconds";
            errors.push(Invalid::value(
                "spec.nodeAllocatableUpdatePeriodSeconds",
                period,
                detail,
            ));
        }
        if let Some(in_secrets) = spec.service_account_token_in_secrets.filter(|_| requests.is_empty()) {
            let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            errors.push(Invalid::value("spec.serviceAccountTokenInSecrets", in_secrets, detail));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        let (new, old) = (&self.spec, &old.spec);
        let attach = "spec.attachedRequired";
        immutable(&mut errors, attach, &new.attach_required, &old.attach_required);
        let modes = "spec.volumeLifecycleModes";
        immutable(
            &mut errors,
            modes,
            &new.volume_lifecycle_modes,
            &old.volume_lifecycle_modes,
        );
        errors
    }
}
