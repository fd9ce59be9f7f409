//! `PersistentVolumeClaim`: a request for storage.

mod validation;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, TypedLocalObjectReference,
    TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(in crate::kinds) use self::validation::modes_of;
pub(crate) use self::validation::validate_spec;
use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::{amounts, set_claim_defaults, text};
use crate::workload::warnings;

impl Kind for PersistentVolumeClaim {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["pvc"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "core.v1.PersistentVolumeClaimStatus.phase", |claim, _| {
            phase(claim).into()
        }),
        Column::text("Volume", "core.v1.PersistentVolumeClaimSpec.volumeName", |claim, _| {
            volume(claim).unwrap_or_default().into()
        }),
        Column::text(
            "Capacity",
            "core.v1.PersistentVolumeClaimStatus.capacity",
            |claim, _| {
                let status = bound(claim);
                status
                    .map(|status| storage(status.capacity.as_ref()))
                    .unwrap_or_default()
                    .into()
            },
        ),
        Column::text(
            "Access Modes",
            "core.v1.PersistentVolumeClaimStatus.accessModes",
            |claim, _| {
                let status = bound(claim);
                status
                    .map(|status| modes(status.access_modes.as_deref()))
                    .unwrap_or_default()
                    .into()
            },
        ),
        Column::text("StorageClass", "StorageClass of the pvc", |claim, _| {
            let class = spec(claim).and_then(|spec| spec.storage_class_name.as_deref());
            storage_class(&claim.metadata, class).into()
        }),
        Column::text(
            "VolumeAttributesClass",
            "VolumeAttributesClass of the pvc",
            |claim, _| {
                let class = spec(claim).and_then(|spec| spec.volume_attributes_class_name.as_deref());
                class.unwrap_or("<unset>").into()
            },
        ),
        age_column(),
        Column::wide(
            "VolumeMode",
            "core.v1.PersistentVolumeClaimSpec.volumeMode",
            |claim, _| {
                let mode = spec(claim).and_then(|spec| spec.volume_mode.as_deref());
                mode.unwrap_or("<unset>").into()
            },
        ),
    ];

    fn set_defaults(&mut self) {
        set_claim_defaults(self.spec.get_or_insert_default());
        let status = self.status.get_or_insert_default();
        text(&mut status.phase, "Pending");
        status.capacity.iter_mut().for_each(amounts);
    }

    fn prepare_create(&mut self) {
        self.status = Some(PersistentVolumeClaimStatus {
            phase: Some("Pending".to_owned()),
            ..PersistentVolumeClaimStatus::default()
        });
        if let Some(spec) = &mut self.spec {
            unite_sources(spec, None);
        }
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        if let Some(spec) = &mut self.spec {
            unite_sources(spec, old.spec.as_ref());
        }
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        warnings::storage_class_annotation(&mut warnings, &self.metadata);
        if let Some(spec) = &self.spec {
            warnings::of_claim(&mut warnings, spec, "spec");
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        self.spec.as_ref().map_or_else(
            || vec![Invalid::required("spec", "")],
            |spec| validate_spec(spec, "spec"),
        )
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        if let (Some(new), Some(spec)) = (&self.spec, &old.spec) {
            validation::may_differ(&mut errors, (self, new), (old, spec));
        }
        errors
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        self.status.as_ref().map(validation::status).unwrap_or_default()
    }
}

/// Makes both data source fields equal, unless both are set. Where there was no source before, the
/// older field alone may only name claims and snapshots, and none in another namespace is taken:
/// upstream's gate for those is off (`pkg/api/persistentvolumeclaim/util.go`).
fn unite_sources(spec: &mut PersistentVolumeClaimSpec, old: Option<&PersistentVolumeClaimSpec>) {
    let known = |source: &TypedLocalObjectReference| {
        let group = source.api_group.as_deref().unwrap_or_default();
        matches!(
            (group, source.kind.as_str()),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    let elsewhere = |other: &TypedObjectReference| other.namespace.as_ref().is_some_and(|own| !own.is_empty());
    if old.is_none_or(|old| old.data_source_ref.is_none()) {
        spec.data_source_ref.take_if(|other| elsewhere(other));
        if spec.data_source_ref.is_none() && old.is_none_or(|old| old.data_source.is_none()) {
            spec.data_source.take_if(|source| !known(source));
        }
    }
    match (&spec.data_source, &spec.data_source_ref) {
        (Some(own), None) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: own.api_group.clone(),
                kind: own.kind.clone(),
                name: own.name.clone(),
                namespace: None,
            });
        }
        (None, Some(other)) if !elsewhere(other) => {
            spec.data_source = Some(TypedLocalObjectReference {
                api_group: other.api_group.clone(),
                kind: other.kind.clone(),
                name: other.name.clone(),
            });
        }
        (None, None | Some(_)) | (Some(_), Some(_)) => {}
    }
}

fn spec(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimSpec> {
    claim.spec.as_ref()
}

fn volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = spec(claim)?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Status of a bound claim.
fn bound(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimStatus> {
    volume(claim)?;
    claim.status.as_ref()
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    if claim.metadata.deletion_timestamp.is_some() {
        return "Terminating";
    }
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The storage among the resources; `0` if there is none.
pub(super) fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amount = amounts.and_then(|amounts| amounts.get("storage"));
    amount.map_or_else(|| "0".to_owned(), |amount| amount.0.clone())
}

/// `RWO,ROX`: access modes by their short names, in a fixed order.
pub(super) fn modes(modes: Option<&[String]>) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.unwrap_or_default().iter().any(|own| own == mode);
    let short = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short);
    short.collect::<Vec<_>>().join(",")
}

/// Storage class of the old annotation, or else of the field.
pub(super) fn storage_class<'a>(metadata: &'a ObjectMeta, class: Option<&'a str>) -> &'a str {
    annotated(metadata).or(class).unwrap_or_default()
}

const ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

fn annotated(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(ANNOTATION).map(String::as_str)
}
