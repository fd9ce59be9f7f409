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

        fn prepare_update(&mut self, old: &Self) {
            self.status.clone_from(&old.status);
        }

        fn prepare_status(&mut self, old: &Self) {
            self.spec.clone_from(&old.spec);
        }

        fn spec_changed(&self, old: &Self) -> bool {
            self.spec != old.spec
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
