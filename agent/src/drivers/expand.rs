//! Expansion of a volume on its node, after a controller has made the storage larger
//! (`pkg/volume/util/operationexecutor/node_expander.go`, `pkg/volume/csi/expander.go`).

use agent_plan::pod::pods;
use api::quantity::Quantity;
use csi::{CapacityRange, ExpandRequest};
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus, Pod,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tracing::warn;

use super::mount::secret;
use super::spec::Spec;
use crate::client::events::Kind;
use crate::client::sources::told;
use crate::context::Context;

const STORAGE: &str = "storage";
/// Type of the condition of a failed expansion, and all types of expansions.
const FAILED: &str = "NodeResizeError";
const EXPANSION: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", FAILED];

/// Expands a volume that is published for a pod, if its claim waits for that, and tells the claim.
pub(crate) async fn expand(
    context: &Context,
    pod: &Pod,
    spec: &Spec,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<(), String> {
    let status = claim.status.clone().unwrap_or_default();
    let Some(size) = wanted(&status, volume) else {
        return Ok(());
    };
    let _volume = context.drivers.lock(&spec.handle.unique_name()).await;
    let failed = |why: &str| format!("MountVolume.NodeExpandVolume failed for volume {:?} : {why}", spec.name);
    let driver = context.drivers.get(&spec.handle.driver).map_err(|why| failed(&why))?;
    let abilities = driver.capabilities().await.map_err(|error| {
        let why = format!("Expander.NodeExpand failed to check if node supports expansion : {error}");
        failed(&why)
    })?;
    if !abilities.expands {
        // Its controller does all, and the claim is about to say so.
        return Ok(());
    }
    if spec.read_only {
        let why = format!(
            "MountVolume.NodeExpandVolume failed for volume {:?} requested read-only file system",
            spec.name
        );
        context
            .recorder
            .pod(pod, None, Kind::Warning, "FileSystemResizeFailed", why);
        return Ok(());
    }
    let kubelet = &context.config.kubelet_directory;
    let request = ExpandRequest {
        volume_id: spec.handle.volume.clone(),
        volume_path: spec.target(kubelet, pod).target.display().to_string(),
        capacity_range: Some(CapacityRange {
            required_bytes: Quantity::of(&size).value(),
        }),
        staging_target_path: if abilities.stages {
            spec.staging(kubelet).target.display().to_string()
        } else {
            String::new()
        },
        volume_capability: Some(spec.capability(None, abilities)),
        secrets: secret(context, "NodeExpandSecretRef", spec.expand_secret.as_ref()).await?,
    };
    let Err(error) = driver.expand(request).await else {
        let (volume, node) = (&spec.name, &context.config.node_name);
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?} {node}");
        context
            .recorder
            .pod(pod, None, Kind::Normal, "FileSystemResizeSuccessful", message);
        let told = tell(context, pod, claim, &finished(&status, &size)).await;
        return told.map_err(|why| failed(&format!("mountVolume.NodeExpandVolume update pvc status failed: {why}")));
    };
    let why = format!("Expander.NodeExpand failed to expand the volume : {error}");
    if error.is_final() {
        let failure = failure(&status, &why, error.is_infeasible(), context.now());
        if let Err(why) = tell(context, pod, claim, &failure).await {
            warn!(
                why,
                "the claim of a volume that could not be expanded could not be updated"
            );
        }
    }
    // Such a volume is expanded when it is mounted the next time.
    if error.is_in_use() { Ok(()) } else { Err(failed(&why)) }
}

/// Returns the size that the node shall expand the volume to; `None` if it shall not.
fn wanted(status: &PersistentVolumeClaimStatus, volume: &PersistentVolume) -> Option<Text> {
    let of = |quantities: Option<&std::collections::BTreeMap<String, Text>>| quantities?.get(STORAGE).cloned();
    let known = of(status.capacity.as_ref())?;
    let larger = of(volume.spec.as_ref()?.capacity.as_ref())?;
    if Quantity::of(&known) >= Quantity::of(&larger) {
        return None;
    }
    let statuses = status.allocated_resource_statuses.as_ref();
    let state = statuses.and_then(|all| all.get(STORAGE)).map(String::as_str);
    match (state, of(status.allocated_resources.as_ref())) {
        // Controllers of before there were statuses.
        (None, None) => Some(larger),
        (Some("NodeResizePending" | "NodeResizeInProgress"), size) => size,
        (Some(_), _) | (None, Some(_)) => None,
    }
}

/// Status of the claim after the expansion.
fn finished(status: &PersistentVolumeClaimStatus, size: &Text) -> Value {
    let kept: Vec<_> = others(status).collect();
    let cleared = status
        .allocated_resource_statuses
        .as_ref()
        .map(|_| json!({STORAGE: null}));
    json!({"capacity": {STORAGE: size}, "conditions": kept, "allocatedResourceStatuses": cleared})
}

/// Status of the claim after a failure that another attempt may not mend.
fn failure(status: &PersistentVolumeClaimStatus, why: &str, infeasible: bool, now: Timestamp) -> Value {
    let known = status.conditions.iter().flatten();
    let mut conditions: Vec<_> = known.filter(|condition| condition.type_ != FAILED).cloned().collect();
    conditions.push(PersistentVolumeClaimCondition {
        type_: FAILED.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(now)),
        message: Some(format!("failed to expand pvc with {why}")),
        ..PersistentVolumeClaimCondition::default()
    });
    let mut change = json!({"conditions": conditions});
    if infeasible && let Some(change) = change.as_object_mut() {
        change.insert(
            "allocatedResourceStatuses".to_owned(),
            json!({STORAGE: "NodeResizeInfeasible"}),
        );
    }
    change
}

/// Conditions that are not of an expansion.
fn others(status: &PersistentVolumeClaimStatus) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    let conditions = status.conditions.iter().flatten();
    conditions.filter(|condition| !EXPANSION.contains(&condition.type_.as_str()))
}

async fn tell(context: &Context, pod: &Pod, claim: &PersistentVolumeClaim, status: &Value) -> Result<(), String> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.parts.client.clone(), pods::namespace(pod));
    let version = &claim.metadata.resource_version;
    let change = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "status": status}));
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let patched = api.patch_status(name, &PatchParams::default(), &change).await;
    patched.map(drop).map_err(|error| told(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    #[test]
    fn a_node_expands_when_the_controller_is_done() {
        let volume: PersistentVolume = from_value(json!({"spec": {"capacity": {"storage": "2Gi"}}})).unwrap();
        let cases = [
            (json!({"capacity": {"storage": "1Gi"}}), Some("2Gi")),
            (json!({"capacity": {"storage": "2048Mi"}}), None),
            (
                json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}}),
                None,
            ),
            (json!({}), None),
        ];
        for (status, size) in cases {
            let found = wanted(&from_value(status.clone()).unwrap(), &volume);
            assert_eq!(found.as_ref().map(|size| size.0.as_str()), size, "{status}");
        }
        for (state, expands) in [
            ("ControllerResizeInProgress", false),
            ("NodeResizePending", true),
            ("NodeResizeInProgress", true),
            ("NodeResizeInfeasible", false),
        ] {
            let status = json!({
                "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": state},
            });
            assert_eq!(
                wanted(&from_value(status).unwrap(), &volume).is_some(),
                expands,
                "{state}"
            );
        }
    }

    #[test]
    fn the_claim_says_how_it_ended() {
        let status: PersistentVolumeClaimStatus = from_value(json!({
            "capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}],
        }))
        .unwrap();
        let done = finished(&status, &Text("2Gi".to_owned()));
        assert_eq!(done["capacity"]["storage"], "2Gi");
        assert_eq!(done["conditions"].as_array().unwrap().len(), 1);
        assert_eq!(done["allocatedResourceStatuses"], json!({"storage": null}));
        let failed = failure(&status, "rpc error", true, Timestamp::UNIX_EPOCH);
        assert_eq!(
            failed["conditions"][2]["message"],
            "failed to expand pvc with rpc error"
        );
        assert_eq!(failed["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
        assert!(
            failure(&status, "", false, Timestamp::UNIX_EPOCH)
                .get("allocatedResourceStatuses")
                .is_none()
        );
    }
}
