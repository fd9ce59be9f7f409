//! `PersistentVolumeClaim`: a request for storage.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::invalid::Invalid;
use crate::kind::{Column, Kind, Subresource};
use crate::pod::defaults::{amounts, text};
use crate::quantity::Quantity as Amount;
use crate::table::age_column;
use crate::validation::{one_of, one_of_or_none};

impl Kind for PersistentVolumeClaim {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["pvc"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "Pending, Bound or Lost.", |claim, _| phase(claim).into()),
        Column::text("Volume", "The volume that it is bound to.", |claim, _| {
            volume(claim).unwrap_or_default().into()
        }),
        Column::text("Capacity", "How much it holds.", |claim, _| {
            let status = bound(claim);
            status
                .map(|status| storage(status.capacity.as_ref()))
                .unwrap_or_default()
                .into()
        }),
        Column::text("Access Modes", "How nodes may mount it.", |claim, _| {
            let status = bound(claim);
            status
                .map(|status| modes(status.access_modes.as_deref()))
                .unwrap_or_default()
                .into()
        }),
        Column::text("StorageClass", "The class that is asked for.", |claim, _| {
            let class = spec(claim).and_then(|spec| spec.storage_class_name.as_deref());
            storage_class(&claim.metadata, class).into()
        }),
        Column::text(
            "VolumeAttributesClass",
            "The class of its changeable attributes.",
            |claim, _| {
                let class = spec(claim).and_then(|spec| spec.volume_attributes_class_name.as_deref());
                class.unwrap_or("<unset>").into()
            },
        ),
        age_column(),
        Column::wide("VolumeMode", "Filesystem or Block.", |claim, _| {
            let mode = spec(claim).and_then(|spec| spec.volume_mode.as_deref());
            mode.unwrap_or("<unset>").into()
        }),
    ];

    fn set_defaults(&mut self) {
        set_spec_defaults(self.spec.get_or_insert_default());
        let status = self.status.get_or_insert_default();
        text(&mut status.phase, "Pending");
        status.capacity.iter_mut().for_each(amounts);
    }

    fn prepare_create(&mut self) {
        self.status = Some(PersistentVolumeClaimStatus {
            phase: Some("Pending".to_owned()),
            ..PersistentVolumeClaimStatus::default()
        });
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn validate(&self) -> Vec<Invalid> {
        self.spec.as_ref().map_or_else(
            || vec![Invalid::required("spec", "")],
            |spec| validate_spec(spec, "spec"),
        )
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        let (Some(new), Some(spec)) = (&self.spec, &old.spec) else {
            return errors;
        };
        let mut fixed = new.clone();
        // The binder names the volume, and the class that was the default then.
        if volume(old).is_none() {
            fixed.volume_name.clone_from(&spec.volume_name);
            fixed.storage_class_name.clone_from(&spec.storage_class_name);
        }
        let bound = old.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        if bound {
            fixed.resources.clone_from(&spec.resources);
            fixed
                .volume_attributes_class_name
                .clone_from(&spec.volume_attributes_class_name);
        }
        if fixed != *spec {
            errors.push(Invalid::forbidden("spec", FIXED));
        }
        if requested(new) < requested(spec) {
            let detail = "field can not be less than previous value";
            errors.push(Invalid::forbidden("spec.resources.requests.storage", detail));
        }
        errors
    }
}

/// Defaults of a claim's spec, wherever it stands.
pub(crate) fn set_spec_defaults(spec: &mut PersistentVolumeClaimSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    let resources = spec.resources.get_or_insert_default();
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        amounts(list);
    }
}

fn spec(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimSpec> {
    claim.spec.as_ref()
}

fn volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = spec(claim)?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// The status of a claim that has a volume.
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

/// The amount of storage among others; `0` where there is none.
pub(super) fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amount = amounts.and_then(|amounts| amounts.get("storage"));
    amount.map_or_else(|| "0".to_owned(), |amount| amount.0.clone())
}

/// `RWO,ROX`: the modes by their short names, in a fixed order.
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

/// The class by the old annotation, or else by the field.
pub(super) fn storage_class<'a>(metadata: &'a ObjectMeta, class: Option<&'a str>) -> &'a str {
    let annotations = metadata.annotations.as_ref();
    let annotated = annotations.and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    annotated.map(String::as_str).or(class).unwrap_or_default()
}

const FIXED: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

pub(super) const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn requested(spec: &PersistentVolumeClaimSpec) -> Option<Amount> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(Amount::of)
}

/// What is wrong with a claim's spec, wherever it stands.
pub(crate) fn validate_spec(spec: &PersistentVolumeClaimSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    access_modes(&mut errors, spec.access_modes.as_deref(), path);
    let field = format!("{path}.resources[storage]");
    match requested(spec) {
        None => errors.push(Invalid::required(field, "")),
        Some(amount) if amount <= Amount::ZERO => {
            let text = amount.to_string();
            errors.push(Invalid::value(field, text, "must be greater than zero"));
        }
        Some(_) => {}
    }
    if let Some(class) = spec.storage_class_name.as_deref().filter(|class| !class.is_empty()) {
        for message in crate::names::dns1123_subdomain(class) {
            errors.push(Invalid::value(format!("{path}.storageClassName"), class, message));
        }
    }
    let mode = spec.volume_mode.as_deref();
    one_of_or_none(
        &mut errors,
        &format!("{path}.volumeMode"),
        mode,
        &["Block", "Filesystem"],
    );
    errors
}

/// What is wrong with access modes.
pub(super) fn access_modes(errors: &mut Vec<Invalid>, modes: Option<&[String]>, path: &str) {
    let modes = modes.unwrap_or_default();
    let field = format!("{path}.accessModes");
    if modes.is_empty() {
        errors.push(Invalid::required(field.as_str(), "at least 1 access mode is required"));
    }
    for mode in modes {
        one_of(errors, &field, Some(mode), &MODES);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(Invalid::forbidden(field, detail));
    }
}
