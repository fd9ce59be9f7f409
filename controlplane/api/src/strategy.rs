//! What create, update and status updates keep and drop, for the many kinds with a spec and a status.

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec, ScaleStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

/// The `scale` subresource of a workload.
pub(crate) fn scale(metadata: &ObjectMeta, wanted: Option<i32>, current: i32, selector: &LabelSelector) -> Scale {
    let selector = crate::selector::LabelSelector::of(Some(selector))
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

/// Inside `impl Kind for K`: a creator's status is dropped, an update keeps the status, an update of `status` keeps the
/// spec, the labels and the owners. Needs fields `spec` and `status` that are `Option`s.
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
            self.metadata.labels.clone_from(&old.metadata.labels);
            self.metadata
                .owner_references
                .clone_from(&old.metadata.owner_references);
        }

        fn spec_changed(&self, old: &Self) -> bool {
            self.spec != old.spec
        }
    };
}
