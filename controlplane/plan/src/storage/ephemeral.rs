//! Claims of generic ephemeral volumes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};
use serde_json::json;

use crate::objects::{Meta as _, controlled_by, name, target};
use crate::pod::{Pod, is_finished};
use crate::step::{CLAIMS, Outcome, PODS, Plan, Severity, Step};

/// True if a pod has generic ephemeral volumes.
pub fn has_claims(pod: &Pod) -> bool {
    volumes(pod).next().is_some()
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| volume.ephemeral.is_some())
}

/// Creates missing claims. A claim of that name with another owner is left alone: the scheduler
/// reports it.
pub fn plan(pod: &Pod, find: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>) -> Plan {
    let mut plan = Plan::default();
    if pod.metadata.is_deleting() || is_finished(pod) {
        return plan;
    }
    let missing = volumes(pod).filter(|volume| find(&format!("{}-{}", name(pod), volume.name)).is_none());
    plan.stage(missing.filter_map(|volume| create(pod, volume)).collect());
    plan
}

fn create(pod: &Pod, volume: &Volume) -> Option<Step> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let owner = target(PODS, pod);
    let metadata = template.metadata.clone().unwrap_or_default();
    let failed = owner.note(
        Severity::Warning,
        "EphemeralVolumeFailed",
        "ephemeral volume controller failed to create PVC: {}",
    );
    Some(Step::Create {
        resource: CLAIMS,
        namespace: owner.namespace.clone(),
        body: Box::new(json!({
            "metadata": {
                "name": format!("{}-{}", owner.name, volume.name),
                "labels": metadata.labels, "annotations": metadata.annotations,
                "ownerReferences": [controlled_by(&owner)],
            },
            "spec": template.spec,
        })),
        outcome: Outcome {
            done: None,
            failed: vec![failed],
        },
    })
}
