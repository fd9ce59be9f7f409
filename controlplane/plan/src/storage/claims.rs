//! Steps for a `PersistentVolumeClaim`: binding, provisioning, and its status.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, NO_PROVISIONER, OLD_PROVISIONER, PROVISIONER, SELECTED_NODE, Wanted, allows,
    attributes_agree, best, capacity, claim_class, claim_phase, has_class, is_bound, is_for, modes_agree, phase,
    requested, volume_class, volume_of, waits,
};
use crate::objects::{annotation, name, seconds, target, uid};
use crate::step::{CLAIMS, Note, PatchKind, Plan, Severity, Step, VOLUMES};

/// A claim with the objects that it depends on.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// Volumes that refer to the claim, that it refers to, or of its class.
    pub volumes: &'a [Arc<PersistentVolume>],
    /// Its class, if it exists.
    pub class: Option<&'a StorageClass>,
    /// Name of the default class.
    pub default_class: Option<&'a str>,
    /// Names of unscheduled pods that use it.
    pub waiting: &'a [String],
}

/// Steps, and the event to record if there are none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Steps.
    pub plan: Plan,
    /// Event to record once.
    pub news: Option<Note>,
}

impl Decision {
    fn tell(scene: &Scene<'_>, severity: Severity, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            plan: Plan::default(),
            news: Some(note(scene.claim, severity, reason, message.into())),
        }
    }
}

/// Event about a claim.
pub(super) fn note(claim: &PersistentVolumeClaim, severity: Severity, reason: &'static str, message: String) -> Note {
    let mut about = target(CLAIMS, claim).reference();
    about.resource_version.clone_from(&claim.metadata.resource_version);
    Note {
        about,
        severity,
        reason,
        message,
    }
}

/// Makes the plan.
pub fn plan(scene: &Scene<'_>, now: Timestamp) -> Decision {
    let named = volume_of(scene.claim);
    let volume = named.and_then(|named| scene.volumes.iter().find(|volume| name(&***volume) == named));
    match (annotation(&scene.claim.metadata, BIND_COMPLETED), named, volume) {
        (Some(_), None, _) => lost(
            scene,
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        (Some(_), Some(_), None) => lost(
            scene,
            "ClaimLost",
            "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
        ),
        (Some(_), Some(_), Some(volume)) if is_anybodys(volume) || is_for(volume, scene.claim) => {
            bind(scene, volume, now)
        }
        (Some(_), Some(_), Some(_)) => lost(
            scene,
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
        ),
        (None, _, _) if scene.claim.metadata.deletion_timestamp.is_some() => Decision::default(),
        (None, Some(_), None) => Decision::default(),
        (None, Some(_), Some(volume)) => bind_named(scene, volume, now),
        (None, None, _) => find(scene, now),
    }
}

fn is_anybodys(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_none_or(|spec| spec.claim_ref.is_none())
}

/// Binds a claim to the volume that it refers to.
fn bind_named(scene: &Scene<'_>, volume: &PersistentVolume, now: Timestamp) -> Decision {
    if is_for(volume, scene.claim) {
        return bind(scene, volume, now);
    }
    if !is_anybodys(volume) {
        let message = format!("volume {:?} already bound to a different claim.", name(volume));
        return Decision::tell(scene, Severity::Warning, "FailedBinding", message);
    }
    let claim = scene.claim;
    let marked = format!("the volume is marked for deletion {:?}", name(volume));
    let problem = if volume.metadata.deletion_timestamp.is_some() {
        marked.as_str()
    } else if capacity(volume) < requested(claim) {
        "requested PV is too small"
    } else if volume_class(volume) != claim_class(claim) {
        "storageClassName does not match"
    } else if !attributes_agree(volume, claim) {
        "volumeAttributesClassName does not match"
    } else if !modes_agree(volume, claim) {
        "incompatible volumeMode"
    } else if !allows(volume, claim) {
        "incompatible accessMode"
    } else {
        return bind(scene, volume, now);
    };
    let message = format!("Cannot bind to requested volume {:?}: {problem}", name(volume));
    Decision::tell(scene, Severity::Warning, "VolumeMismatch", message)
}

/// Finds a volume for a claim that refers to none.
fn find(scene: &Scene<'_>, now: Timestamp) -> Decision {
    let waits = waits(scene.class);
    let wanted = Wanted {
        claim: scene.claim,
        node: None,
        // Only the scheduler knows whether the chosen node reaches another volume.
        named_only: waits,
        taken: &[],
    };
    if let Some(volume) = best(&wanted, scene.volumes.iter().map(Arc::as_ref)) {
        return bind(scene, volume, now);
    }
    if let Some(class) = scene.default_class.filter(|_| !has_class(scene.claim)) {
        return assign(scene.claim, class);
    }
    if waits && annotation(&scene.claim.metadata, SELECTED_NODE).is_none() {
        return wait(scene);
    }
    let class = claim_class(scene.claim);
    if class.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return Decision::tell(scene, Severity::Normal, "FailedBinding", message);
    }
    let Some(provisioner) = scene.class.map(|class| class.provisioner.as_str()) else {
        let message = format!("storageclass.storage.k8s.io {class:?} not found");
        return Decision::tell(scene, Severity::Warning, "ProvisioningFailed", message);
    };
    if provisioner.starts_with("kubernetes.io/") || provisioner == NO_PROVISIONER {
        let message = format!("no volume plugin matched name: {provisioner}");
        return Decision::tell(scene, Severity::Warning, "ProvisioningFailed", message);
    }
    ask(scene, provisioner)
}

/// Sets the class of a claim that is older than the default class.
fn assign(claim: &PersistentVolumeClaim, class: &str) -> Decision {
    let body = json!({
        "metadata": { "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version },
        "spec": { "storageClassName": class },
    });
    let mut decision = Decision::default();
    decision.plan.stage(vec![patch_claim(claim, None, body, None)]);
    decision
}

fn wait(scene: &Scene<'_>) -> Decision {
    let pods = scene.waiting;
    let (reason, message) = match pods {
        [] => (
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [pod] => ("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => (
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", pods.join(",")),
        ),
    };
    Decision::tell(scene, Severity::Normal, reason, message)
}

/// Sets the annotation that asks a provisioner for a volume.
fn ask(scene: &Scene<'_>, provisioner: &str) -> Decision {
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    let mut decision = Decision::tell(scene, Severity::Normal, "ExternalProvisioning", message);
    if annotation(&scene.claim.metadata, PROVISIONER) != Some(provisioner) {
        let annotations = json!({ PROVISIONER: provisioner, OLD_PROVISIONER: provisioner });
        let body = json!({ "metadata": {
            "uid": scene.claim.metadata.uid, "resourceVersion": scene.claim.metadata.resource_version,
            "annotations": annotations,
        }});
        decision
            .plan
            .stage(vec![patch_claim(scene.claim, None, body, decision.news.take())]);
    }
    decision
}

fn lost(scene: &Scene<'_>, reason: &'static str, message: &str) -> Decision {
    let mut decision = Decision::default();
    if claim_phase(scene.claim) != "Lost" {
        let news = note(scene.claim, Severity::Warning, reason, message.to_owned());
        let body = json!({ "metadata": { "uid": scene.claim.metadata.uid }, "status": {
            "phase": "Lost", "capacity": null, "accessModes": null, "currentVolumeAttributesClassName": null,
        }});
        decision
            .plan
            .stage(vec![patch_claim(scene.claim, Some("status"), body, Some(news))]);
    }
    decision
}

fn patch_claim(
    claim: &PersistentVolumeClaim,
    subresource: Option<&'static str>,
    body: Value,
    done: Option<Note>,
) -> Step {
    target(CLAIMS, claim)
        .patch(subresource, PatchKind::Merge, body)
        .with(done)
}

fn patch_volume(volume: &PersistentVolume, subresource: Option<&'static str>, body: Value) -> Step {
    target(VOLUMES, volume).patch(subresource, PatchKind::Merge, body)
}

/// Binds a claim and a volume, as far as they are not bound yet: the volume's side first, under its
/// resource version, so that only one of two claims gets it.
fn bind(scene: &Scene<'_>, volume: &PersistentVolume, now: Timestamp) -> Decision {
    let mut plan = Plan::default();
    plan.stage(volume_side(volume, scene.claim).into_iter().collect());
    let mut second = Vec::new();
    if phase(volume) != "Bound" {
        second.push(patch_volume(volume, Some("status"), bound_status(volume, now)));
    }
    let claim = scene.claim;
    let named = volume_of(claim) == Some(name(volume));
    if !named || annotation(&claim.metadata, BIND_COMPLETED).is_none() {
        let mut annotations = json!({ BIND_COMPLETED: "yes" });
        if let Some(annotations) = annotations.as_object_mut().filter(|_| !named) {
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".into());
        }
        let body = json!({
            "metadata": {
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
                "annotations": annotations,
            },
            "spec": { "volumeName": name(volume) },
        });
        second.push(patch_claim(claim, None, body, None));
    }
    plan.stage(second);
    plan.stage(claim_status(claim, volume).into_iter().collect());
    Decision { plan, news: None }
}

fn bound_status(volume: &PersistentVolume, now: Timestamp) -> Value {
    json!({ "metadata": { "uid": volume.metadata.uid }, "status": {
        "phase": "Bound", "message": null, "reason": null, "lastPhaseTransitionTime": seconds(now),
    }})
}

/// Sets the volume's reference to the claim, with its uid.
fn volume_side(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<Step> {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if reference.is_some_and(|reference| reference.uid.as_deref() == Some(uid(claim))) {
        return None;
    }
    Some(patch_volume(volume, None, claim_reference(volume, claim)))
}

/// Patch that sets a volume's reference to a claim.
pub fn claim_reference(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Value {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let mut body = json!({
        "metadata": { "uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version },
        "spec": { "claimRef": {
            "apiVersion": "v1", "kind": CLAIMS.kind, "namespace": claim.metadata.namespace,
            "name": claim.metadata.name, "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
        }},
    });
    if let Some(metadata) = body
        .pointer_mut("/metadata")
        .and_then(Value::as_object_mut)
        .filter(|_| reference.is_none())
    {
        metadata.insert("annotations".to_owned(), json!({ BOUND_BY_CONTROLLER: "yes" }));
    }
    body
}

/// Sets the claim's status.
fn claim_status(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Step> {
    let spec = volume.spec.as_ref()?;
    let status = claim.status.clone().unwrap_or_default();
    let first = claim_phase(claim) != "Bound";
    if !first && is_bound(claim) && status.access_modes == spec.access_modes {
        return None;
    }
    let mut body = json!({ "metadata": { "uid": claim.metadata.uid }, "status": {
        "phase": "Bound", "accessModes": spec.access_modes,
    }});
    if let Some(entered) = body
        .pointer_mut("/status")
        .and_then(Value::as_object_mut)
        .filter(|_| first)
    {
        // The capacity of a bound claim's file system may differ for a while during a resize:
        // another component sets it.
        entered.insert("capacity".to_owned(), json!(spec.capacity));
        // Later it is the driver that moves the volume to another class.
        let class = &spec.volume_attributes_class_name;
        if claim_phase(claim) == "Pending" && status.current_volume_attributes_class_name != *class {
            entered.insert("currentVolumeAttributesClassName".to_owned(), json!(class));
        }
    }
    Some(patch_claim(claim, Some("status"), body, None))
}
