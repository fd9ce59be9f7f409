//! `ResourceClaim` and its template: a request for devices.

use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, DeviceClaim, ResourceClaim, ResourceClaimStatus, ResourceClaimTemplate,
};

pub(super) mod validation;

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;
use crate::workload::validation::immutable;
use crate::workload::validation::metadata::{annotations, labels};

impl Kind for ResourceClaim {
    const ANSWERS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const STATUS_WITH_METADATA: bool = false;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "State",
            "A summary of the current state (allocated, pending, reserved, etc.).",
            |claim, _| state(claim).into(),
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        set_device_defaults(self.spec.devices.get_or_insert_default());
    }

    fn prepare_create(&mut self) {
        self.status = Some(ResourceClaimStatus::default());
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    /// Drops the status of devices that the claim no longer has (`dropDeallocatedStatusDevices` of
    /// `pkg/registry/resource/resourceclaim/strategy.go`).
    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        let (Some(status), Some(old)) = (&mut self.status, &old.status) else {
            return;
        };
        let (before, now) = (validation::allocated(old), validation::allocated(status));
        let is_held = |own: &AllocatedDeviceStatus| {
            let device = validation::identity(own);
            now.contains(&device) || !before.contains(&device)
        };
        let held: Vec<_> = status.devices.take().into_iter().flatten().filter(is_held).collect();
        status.devices = Some(held).filter(|held| !held.is_empty());
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.spec != old.spec
    }

    fn validate(&self) -> Vec<Invalid> {
        let devices = self.spec.devices.as_ref();
        devices.map_or_else(Vec::new, |devices| validation::validate(devices, "spec.devices"))
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        immutable(&mut errors, "spec", &self.spec, &old.spec);
        errors
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        validation::status(self, &old.status.clone().unwrap_or_default())
    }
}

impl Kind for ResourceClaimTemplate {
    const ANSWERS_DELETED: bool = true;
    fn set_defaults(&mut self) {
        self.spec.metadata.get_or_insert_default();
        set_device_defaults(self.spec.spec.devices.get_or_insert_default());
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        if let Some(own) = &self.spec.metadata {
            errors.extend(annotations(own.annotations.as_ref(), "spec.metadata.annotations"));
            errors.extend(labels(own.labels.as_ref(), "spec.metadata.labels"));
        }
        if let Some(devices) = &self.spec.spec.devices {
            errors.extend(validation::validate(devices, "spec.spec.devices"));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        immutable(&mut errors, "spec", &self.spec, &old.spec);
        errors
    }
}

fn set_device_defaults(claim: &mut DeviceClaim) {
    for request in claim.requests.iter_mut().flatten() {
        if let Some(exactly) = &mut request.exactly {
            text(&mut exactly.allocation_mode, "ExactCount");
            if exactly.allocation_mode.as_deref() == Some("ExactCount") && exactly.count.unwrap_or(0) == 0 {
                exactly.count = Some(1);
            }
        }
        for choice in request.first_available.iter_mut().flatten() {
            text(&mut choice.allocation_mode, "ExactCount");
            if choice.allocation_mode.as_deref() == Some("ExactCount") && choice.count.unwrap_or(0) == 0 {
                choice.count = Some(1);
            }
        }
    }
}

fn state(claim: &ResourceClaim) -> String {
    let deleted = claim.metadata.deletion_timestamp.is_some();
    let status = claim.status.as_ref();
    let allocated = status.is_some_and(|status| status.allocation.is_some());
    let reserved = status.and_then(|status| status.reserved_for.as_ref());
    let reserved = allocated && reserved.is_some_and(|consumers| !consumers.is_empty());
    let all = [
        (deleted, "deleted"),
        (!deleted && !allocated, "pending"),
        (allocated, "allocated"),
        (reserved, "reserved"),
    ];
    let own = all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name);
    own.collect::<Vec<_>>().join(",")
}
