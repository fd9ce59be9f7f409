//! Defaults for create, update and status update strategies, for the many kinds with a spec and a
//! status.

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec, ScaleStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

/// The `scale` subresource of a workload.
pub(crate) fn scale(metadata: &ObjectMeta, wanted: Option<i32>, current: i32, selector: &LabelSelector) -> Scale {
    let selector = crate::value::selector::LabelSelector::of(Some(selector))
        .ok()
        .map(|selector| selector.to_string());
    Scale {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            creation_timestamp: metadata.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(ScaleSpec { replicas: wanted }),
        status: Some(ScaleStatus {
            replicas: current,
            selector,
        }),
    }
}

/// Implements `Kind` functions for kinds with a spec and a status: a create drops the status, an
/// update keeps the status, an update of `status` keeps the spec. Needs a field `spec`, and a field
/// `status` that is an `Option`.
#[macro_export]
macro_rules! spec_and_status {
    () => {
        fn prepare_create(&mut self) {
            self.status = Some(Default::default());
        }

        $crate::kept_apart!();
        $crate::spec_alone!();
    };
}

/// Implements `Kind` functions for kinds with a spec and a status: an update keeps the status, an
/// update of `status` keeps the spec.
#[macro_export]
macro_rules! kept_apart {
    () => {
        fn prepare_update(&mut self, old: &Self) {
            self.status.clone_from(&old.status);
        }

        fn prepare_status(&mut self, old: &Self) {
            self.spec.clone_from(&old.spec);
        }
    };
}

/// Implements `Kind::spec_changed` for kinds with a spec and no status.
#[macro_export]
macro_rules! spec_alone {
    () => {
        fn spec_changed(&self, old: &Self) -> bool {
            self.spec != old.spec
        }
    };
}

/// Implements `Kind::decoded` and `Kind::validate_update` for kinds whose spec has a selector that
/// must not change.
#[macro_export]
macro_rules! fixed_selector {
    () => {
        fn decoded(&mut self, json: &[u8]) {
            if let Some(spec) = &mut self.spec {
                $crate::workload::validation::workload::keep_empty_selector(&mut spec.selector, json);
            }
        }

        fn validate_update(&self, old: &Self) -> Vec<Invalid> {
            let mut errors = $crate::workload::validation::newly(self.validate(), || old.validate());
            let selector = |own: &Self| own.spec.as_ref().map(|spec| spec.selector.clone());
            let (new, old) = (selector(self), selector(old));
            $crate::workload::validation::workload::same_selector(&mut errors, new.as_ref(), old.as_ref());
            errors
        }
    };
}
