//! Steps for a `PersistentVolume`: its phase, and its reclaim policy.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{BOUND_BY_CONTROLLER, PROVISIONED_BY, modes_agree, phase, policy, volume_of};
use crate::objects::{annotation, name, seconds, target, uid};
use crate::step::{CLAIMS, Note, Plan, Severity, Step, Target, VOLUMES};

/// Annotation with the CSI driver that has taken over the volumes of a built-in one.
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// State of the claim that a volume refers to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim<'a> {
    /// It exists.
    There(&'a PersistentVolumeClaim),
    /// The cache does not show it; the server was not asked yet.
    Unseen,
    /// The server confirmed that it is gone.
    Gone,
}

/// Makes the plan. `claim` is the claim with the uid that the volume refers to.
pub fn plan(volume: &PersistentVolume, claim: Claim<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let wanted = reference
        .and_then(|reference| reference.uid.as_deref())
        .unwrap_or_default();
    if wanted.is_empty() {
        plan.stage(enter(volume, "Available", None, None, now));
        return plan;
    }
    match claim {
        Claim::There(claim) if uid(claim) == wanted => match volume_of(claim) {
            None if !modes_agree(volume, claim) => plan.stage(mismatched(volume, claim)),
            // The claim's own sync completes the binding.
            None => {}
            Some(own) if own == name(volume) => plan.stage(enter(volume, "Bound", None, None, now)),
            Some(_) if provisioner(volume).is_some() && policy(volume) == "Delete" => {
                plan.stage(enter(volume, "Released", None, None, now));
            }
            Some(_) => plan.stage(unbind(volume)),
        },
        Claim::There(_) | Claim::Gone => release(&mut plan, volume, now),
        Claim::Unseen => plan.stage(vec![Step::Look(Target {
            resource: CLAIMS,
            namespace: reference.and_then(|claim| claim.namespace.clone()).unwrap_or_default(),
            name: reference.and_then(|claim| claim.name.clone()).unwrap_or_default(),
            uid: wanted.to_owned(),
        })]),
    }
    plan
}

/// Events about a volume that cannot be bound to the claim that it refers to (`syncVolume`,
/// `pkg/controller/volume/persistentvolume/pv_controller.go`).
fn mismatched(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Vec<Step> {
    let event = |about: ObjectReference, message: String| {
        Step::Event(Note {
            about,
            severity: Severity::Warning,
            reason: "VolumeMismatch",
            message,
        })
    };
    let (volume_name, claim_name) = (name(volume), name(claim));
    vec![
        event(
            target(VOLUMES, volume).reference(),
            format!(
                "Cannot bind PersistentVolume to requested PersistentVolumeClaim {claim_name:?} due to incompatible \
                 volumeMode."
            ),
        ),
        event(
            target(CLAIMS, claim).reference(),
            format!(
                "Cannot bind PersistentVolume {volume_name:?} to requested PersistentVolumeClaim due to incompatible \
                 volumeMode."
            ),
        ),
    ]
}

/// Name of the provisioner, unless the volume was created manually.
pub fn provisioner(volume: &PersistentVolume) -> Option<&str> {
    annotation(&volume.metadata, PROVISIONED_BY)
}

/// Releases the volume after its claim is gone.
fn release(plan: &mut Plan, volume: &PersistentVolume, now: Timestamp) {
    match phase(volume) {
        "Failed" => {}
        "Released" => plan.stage(reclaim(volume, now)),
        _ => plan.stage(enter(volume, "Released", None, None, now)),
    }
}

/// Sets the phase `Failed` if the reclaim policy cannot be carried out. Provisioners reclaim their
/// own volumes.
fn reclaim(volume: &PersistentVolume, now: Timestamp) -> Vec<Step> {
    let (reason, message) = match policy(volume) {
        "Retain" => return Vec::new(),
        "Delete" if is_deleted_elsewhere(volume) => return Vec::new(),
        "Delete" => ("VolumeFailedDelete", undeletable(volume)),
        "Recycle" => (
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!".to_owned(),
        ),
        _ => (
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        ),
    };
    enter(volume, "Failed", Some(&message), Some(reason), now)
}

/// True if the driver of the volume deletes it (`findDeletablePlugin`,
/// `pkg/controller/volume/persistentvolume/pv_controller.go`).
fn is_deleted_elsewhere(volume: &PersistentVolume) -> bool {
    if let Some(name) = provisioner(volume).filter(|name| !name.is_empty()) {
        return !name.starts_with("kubernetes.io/");
    }
    let spec = volume.spec.as_ref();
    annotation(&volume.metadata, MIGRATED_TO).is_some() || spec.is_some_and(|spec| spec.csi.is_some())
}

fn undeletable(volume: &PersistentVolume) -> String {
    let host = volume.spec.as_ref().and_then(|spec| spec.host_path.as_ref());
    match host {
        Some(host) if !host.path.starts_with("/tmp/") => {
            format!(
                "host_path deleter only supports /tmp/.+ but received provided {}",
                host.path
            )
        }
        Some(_) | None => format!(
            "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
            name(volume)
        ),
    }
}

fn enter(
    volume: &PersistentVolume,
    wanted: &'static str,
    message: Option<&str>,
    event: Option<&'static str>,
    now: Timestamp,
) -> Vec<Step> {
    if phase(volume) == wanted {
        return Vec::new();
    }
    let body = json!({ "metadata": { "uid": volume.metadata.uid }, "status": {
        "phase": wanted, "message": message, "reason": null, "lastPhaseTransitionTime": seconds(now),
    }});
    let done = event.zip(message).map(|(reason, message)| {
        let mut about = target(VOLUMES, volume).reference();
        about.resource_version.clone_from(&volume.metadata.resource_version);
        Note {
            about,
            severity: Severity::Warning,
            reason,
            message: message.to_owned(),
        }
    });
    vec![target(VOLUMES, volume).merge_status(body).with(done)]
}

/// Removes the reference to a claim that is bound to another volume. A reference that the
/// volume's author wrote keeps its name.
fn unbind(volume: &PersistentVolume) -> Vec<Step> {
    let ours = annotation(&volume.metadata, BOUND_BY_CONTROLLER).is_some();
    let claim = if ours {
        Value::Null
    } else {
        json!({ "uid": null, "resourceVersion": null })
    };
    let body = json!({
        "metadata": {
            "uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version,
            "annotations": { BOUND_BY_CONTROLLER: null },
        },
        "spec": { "claimRef": claim },
    });
    vec![target(VOLUMES, volume).merge(body)]
}
