//! `PersistentVolume`: storage that outlives pods.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, PersistentVolumeStatus};

mod drivers;
mod validation;

use super::persistent_volume_claim::{modes, storage, storage_class};
use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::{amounts, drivers as filled_in, text};
use crate::workload::warnings;

impl Kind for PersistentVolume {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["pv"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Capacity", "core.v1.PersistentVolumeSpec.capacity", |volume, _| {
            storage(spec(volume).and_then(|spec| spec.capacity.as_ref())).into()
        }),
        Column::text(
            "Access Modes",
            "core.v1.PersistentVolumeSpec.accessModes",
            |volume, _| modes(spec(volume).and_then(|spec| spec.access_modes.as_deref())).into(),
        ),
        Column::text(
            "Reclaim Policy",
            "core.v1.PersistentVolumeSpec.persistentVolumeReclaimPolicy",
            |volume, _| of_spec(volume, |spec| spec.persistent_volume_reclaim_policy.as_ref()).into(),
        ),
        Column::text("Status", "core.v1.PersistentVolumeStatus.phase", |volume, _| {
            phase(volume).into()
        }),
        Column::text("Claim", "core.v1.PersistentVolumeSpec.claimRef", |volume, _| {
            claim(volume).into()
        }),
        Column::text("StorageClass", "StorageClass of the pv", |volume, _| {
            let class = spec(volume).and_then(|spec| spec.storage_class_name.as_deref());
            storage_class(&volume.metadata, class).into()
        }),
        Column::text(
            "VolumeAttributesClass",
            "VolumeAttributesClass of the pv",
            |volume, _| {
                let class = spec(volume).and_then(|spec| spec.volume_attributes_class_name.as_deref());
                class.unwrap_or("<unset>").into()
            },
        ),
        Column::text("Reason", "core.v1.PersistentVolumeStatus.reason", |volume, _| {
            let status = volume.status.as_ref();
            status
                .and_then(|status| status.reason.as_deref())
                .unwrap_or_default()
                .into()
        }),
        age_column(),
        Column::wide("VolumeMode", "core.v1.PersistentVolumeSpec.volumeMode", |volume, _| {
            let mode = spec(volume).and_then(|spec| spec.volume_mode.as_deref());
            mode.unwrap_or("<unset>").into()
        }),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        text(&mut spec.persistent_volume_reclaim_policy, "Retain");
        spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
        spec.capacity.iter_mut().for_each(amounts);
        if let Some(path) = &mut spec.host_path {
            path.type_.get_or_insert_default();
        }
        filled_in::of_volume(spec);
        text(&mut self.status.get_or_insert_default().phase, "Pending");
    }

    fn prepare_create(&mut self) {
        self.status = Some(PersistentVolumeStatus {
            phase: Some("Pending".to_owned()),
            last_phase_transition_time: self.metadata.creation_timestamp.clone(),
            ..PersistentVolumeStatus::default()
        });
    }

    crate::kept_apart!();

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        warnings::storage_class_annotation(&mut warnings, &self.metadata);
        warnings::mount_options_annotation(&mut warnings, &self.metadata);
        if let Some(spec) = &self.spec {
            warn_of_spec(&mut warnings, spec);
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        match &self.spec {
            Some(spec) => validation::validate(spec),
            None => vec![Invalid::required("spec", "")],
        }
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        if let (Some(new), Some(old)) = (&self.spec, &old.spec) {
            errors.extend(validation::validate_update(new, old));
        }
        errors
    }
}

fn spec(volume: &PersistentVolume) -> Option<&PersistentVolumeSpec> {
    volume.spec.as_ref()
}

fn of_spec(volume: &PersistentVolume, field: fn(&PersistentVolumeSpec) -> Option<&String>) -> String {
    spec(volume).and_then(field).cloned().unwrap_or_default()
}

fn phase(volume: &PersistentVolume) -> &str {
    if volume.metadata.deletion_timestamp.is_some() {
        return "Terminating";
    }
    let status = volume.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// `default/data`
fn claim(volume: &PersistentVolume) -> String {
    let Some(claim) = spec(volume).and_then(|spec| spec.claim_ref.as_ref()) else {
        return String::new();
    };
    format!(
        "{}/{}",
        claim.namespace.as_deref().unwrap_or_default(),
        claim.name.as_deref().unwrap_or_default()
    )
}

fn warn_of_spec(warnings: &mut Vec<String>, spec: &PersistentVolumeSpec) {
    if spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
             approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    if let Some(nodes) = spec
        .node_affinity
        .as_ref()
        .and_then(|affinity| affinity.required.as_ref())
    {
        let path = "spec.nodeAffinity.required.nodeSelectorTerms";
        warnings::of_terms(warnings, &nodes.node_selector_terms, path);
    }
    let old = [
        (
            spec.cephfs.is_some(),
            "cephfs: deprecated in v1.28, non-functional in v1.31+",
        ),
        (
            spec.photon_persistent_disk.is_some(),
            "photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+",
        ),
        (
            spec.scale_io.is_some(),
            "scaleIO: deprecated in v1.16, non-functional in v1.22+",
        ),
        (
            spec.storageos.is_some(),
            "storageOS: deprecated in v1.22, non-functional in v1.25+",
        ),
        (
            spec.glusterfs.is_some(),
            "glusterfs: deprecated in v1.25, non-functional in v1.26+",
        ),
        (spec.rbd.is_some(), "rbd: deprecated in v1.28, non-functional in v1.31+"),
    ];
    let used = old.into_iter().filter(|(is_used, _)| *is_used);
    warnings.extend(used.map(|(_, message)| format!("spec.{message}")));
}
