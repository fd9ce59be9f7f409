//! Attachments of CSI volumes to nodes (`pkg/controller/volume/attachdetach` and
//! `pkg/volume/csi/csi_attacher.go`).
//!
//! 1. A node needs a volume while a pod there uses it and has not ended ([`Scene::users`]).
//! 2. A node that needs a volume gets a `VolumeAttachment`, which the driver's external-attacher
//!    carries out; a volume that only one node may have waits until no other one has it.
//! 3. An attached volume is in the node's `status.volumesAttached`.
//! 4. A volume that its node does not need goes once the node does not use it
//!    (`status.volumesInUse`): first from the node's status, then its `VolumeAttachment`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{claim_phase, is_for, volume_of};
use crate::node::node_health::is_ready;
use crate::node::pod_gc::OUT_OF_SERVICE;
use crate::objects::{Meta as _, annotation, controller_of, name, target, uid};
use crate::placement::claims::names;
use crate::pod::{Pod, is_finished, node_of};
use crate::step::{ATTACHMENTS, NODES, Note, Outcome, PODS, Plan, Severity, Step};

/// Annotation of nodes whose volumes the controller attaches.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Prefix of CSI volumes' names in a node's status.
const PREFIX: &str = "kubernetes.io/csi/";
/// Time after which a volume that a node does not need is taken from it, though it still uses it,
/// if it is not ready (`maxWaitForUnmountDuration`).
pub const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_mins(6);
/// Time after which an attachment that has not come about is reported (`csiTimeout`).
const TIMEOUT: Duration = Duration::from_mins(2);

/// A volume of a driver, with the objects that concern it.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// Its name, `DRIVER^HANDLE`.
    pub name: String,
    /// The driver, if it has an object.
    pub driver: Option<Arc<CSIDriver>>,
    /// Its `PersistentVolume`, or several of them.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// The claims of those.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Pods that name the claims.
    pub pods: Vec<Arc<Pod>>,
    /// Its attachments.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// Nodes of the pods and the attachments, and those in whose status it is attached.
    pub nodes: Vec<Arc<Node>>,
}

/// Steps, and events that are recorded once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Steps.
    pub plan: Plan,
    /// Events, with the time of the error that they are about.
    pub news: Vec<(Note, Option<Time>)>,
}

/// Names of the CSI volumes that are attached to a node by its status.
pub fn attached(node: &Node) -> impl Iterator<Item = &str> {
    let volumes = node.status.iter().flat_map(|status| status.volumes_attached.iter());
    volumes.flatten().filter_map(|volume| volume.name.strip_prefix(PREFIX))
}

/// Names of the CSI volumes that a node uses.
pub fn in_use(node: &Node) -> impl Iterator<Item = &str> {
    let volumes = node.status.iter().flat_map(|status| status.volumes_in_use.iter());
    volumes.flatten().filter_map(|volume| volume.strip_prefix(PREFIX))
}

/// Name of the attachment of a volume to a node.
pub fn attachment_name(volume: &str, node: &str) -> String {
    let (driver, handle) = volume.split_once('^').unwrap_or((volume, ""));
    format!("csi-{:x}", Sha256::digest(format!("{handle}{driver}{node}")))
}

/// A pod that uses a volume.
type User<'a> = (&'a Pod, &'a PersistentVolume);

impl Scene {
    /// Pods that need the volume, by their nodes. A driver without an object needs attachments
    /// (`skipAttach`, `pkg/volume/csi/csi_plugin.go`).
    pub fn users(&self) -> BTreeMap<&str, Vec<User<'_>>> {
        let mut users: BTreeMap<&str, Vec<User<'_>>> = BTreeMap::new();
        if self.driver.as_ref().and_then(|driver| driver.spec.attach_required) == Some(false) {
            return users;
        }
        for pod in self.pods.iter().filter(|pod| !is_ended(pod)) {
            let Some(node) = node_of(pod) else { continue };
            for (own, is_ephemeral) in names(pod) {
                if let Some(volume) = self.bound(pod, &own, is_ephemeral) {
                    users.entry(node).or_default().push((&**pod, volume));
                }
            }
        }
        users
    }

    /// The volume behind a pod's claim, if it is this one.
    fn bound(&self, pod: &Pod, own: &str, is_ephemeral: bool) -> Option<&PersistentVolume> {
        let namespace = pod.metadata.namespace();
        let mut claims = self.claims.iter();
        let claim = claims.find(|claim| name(&***claim) == own && claim.metadata.namespace() == namespace)?;
        let is_foreign = is_ephemeral && controller_of(&claim.metadata).is_none_or(|owner| owner.uid != uid(pod));
        if is_foreign || claim_phase(claim) != "Bound" {
            return None;
        }
        let mut volumes = self.volumes.iter().map(Arc::as_ref);
        volumes.find(|volume| volume_of(claim) == Some(name(*volume)) && is_for(volume, claim))
    }

    /// Nodes that have the volume or are getting it, and do not need it.
    pub fn unneeded(&self) -> BTreeSet<&str> {
        let users = self.users();
        let nodes = self.attachments.iter().map(|attachment| &*attachment.spec.node_name);
        nodes.filter(|node| !users.contains_key(node)).collect()
    }

    fn node(&self, wanted: &str) -> Option<&Node> {
        self.nodes.iter().map(Arc::as_ref).find(|node| name(*node) == wanted)
    }

    /// True if only one node may have it at a time (`IsMultiAttachAllowed`,
    /// `pkg/volume/util/util.go`).
    fn is_exclusive(&self) -> bool {
        let modes = |volume: &Arc<PersistentVolume>| volume.spec.as_ref()?.access_modes.clone();
        let modes: Vec<String> = self.volumes.iter().filter_map(modes).flatten().collect();
        let is_shared = |mode: &String| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
        !modes.is_empty() && !modes.iter().any(is_shared)
    }
}

/// True if a pod does not need its volumes any more (`IsPodTerminated`, `pkg/volume/util/util.go`).
fn is_ended(pod: &Pod) -> bool {
    is_finished(pod) || pod.metadata.is_deleting() && !pod.status.running
}

/// True if an attachment is in force.
fn is_attached(attachment: &VolumeAttachment) -> bool {
    let status = attachment.status.as_ref();
    attachment.metadata.deletion_timestamp.is_none() && status.is_some_and(|status| status.attached)
}

/// Makes the plan. `waited` has the nodes that do not need the volume, and for how long.
pub fn plan(scene: &Scene, waited: &BTreeMap<String, Duration>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let users = scene.users();
    let mut steps = Vec::new();
    let mut leaving = BTreeSet::new();
    for attachment in &scene.attachments {
        let node = &*attachment.spec.node_name;
        if let Some(users) = users.get(node) {
            follow(&mut decision, attachment, users, now);
        } else if attachment.metadata.deletion_timestamp.is_none()
            && may_leave(scene, node, waited.get(node).copied(), &mut decision.plan)
        {
            leaving.insert(node);
            steps.push(target(ATTACHMENTS, &**attachment).delete());
        }
    }
    let mut taken = !scene.attachments.is_empty();
    for (node, users) in &users {
        if scene.attachments.iter().any(|own| own.spec.node_name == *node) {
            continue;
        }
        if taken && scene.is_exclusive() {
            refuse(&mut decision, scene, users, &leaving);
        } else if let Some(step) = create(scene, node, users) {
            taken = true;
            steps.push(step);
        }
    }
    let mut statuses = Vec::new();
    for node in &scene.nodes {
        let own = name(&**node);
        let mut attachments = scene.attachments.iter().filter(|own| is_attached(own));
        let should = !leaving.contains(own) && attachments.any(|attachment| attachment.spec.node_name == own);
        if should == attached(node).any(|volume| volume == scene.name) {
            continue;
        }
        statuses.push(report(node, &scene.name, should));
        let users = users.get(own).into_iter().flatten();
        steps.extend(users.filter(|_| should).map(|(pod, volume)| {
            let message = told("AttachVolume.Attach succeeded", volume, "");
            Step::Event(note(pod, Severity::Normal, "SuccessfulAttachVolume", message))
        }));
    }
    // The status has the node's revision: a node that begins to use the volume keeps it.
    decision.plan.stage(statuses);
    decision.plan.stage(steps);
    decision
}

/// True if a node that does not need the volume may lose it (`reconcile` of
/// `pkg/controller/volume/attachdetach/reconciler/reconciler.go`). What a node that is gone used is
/// not known.
fn may_leave(scene: &Scene, node: &str, waited: Option<Duration>, plan: &mut Plan) -> bool {
    let node = scene.node(node);
    let is_used = node.is_none_or(|node| in_use(node).any(|volume| volume == scene.name));
    let taints = node.and_then(|node| node.spec.as_ref()?.taints.as_deref());
    let mut taints = taints.unwrap_or_default().iter();
    if !is_used || taints.any(|taint| taint.key == OUT_OF_SERVICE) {
        return true;
    }
    let rest = MAX_WAIT_FOR_UNMOUNT.saturating_sub(waited.unwrap_or_default());
    if !rest.is_zero() {
        plan.again(rest);
    }
    rest.is_zero() && !node.is_some_and(is_ready)
}

/// Reports an attachment that fails or takes long.
fn follow(decision: &mut Decision, attachment: &VolumeAttachment, users: &[User<'_>], now: Timestamp) {
    let status = attachment.status.as_ref();
    if attachment.metadata.deletion_timestamp.is_some() || status.is_some_and(|status| status.attached) {
        return;
    }
    let error = status.and_then(|status| status.attach_error.as_ref());
    let mut news = |why: &str, at: Option<Time>| {
        for (pod, volume) in users {
            let message = told("AttachVolume.Attach failed", volume, &format!(": {why}"));
            let failed = note(pod, Severity::Warning, "FailedAttachVolume", message);
            decision.news.push((failed, at.clone()));
        }
    };
    if let Some(error) = error {
        return news(error.message.as_deref().unwrap_or_default(), error.time.clone());
    }
    let since = attachment
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    if age < TIMEOUT {
        decision.plan.again(TIMEOUT.saturating_sub(age));
        return;
    }
    let source = users.first().and_then(|(_, volume)| volume.spec.as_ref()?.csi.as_ref());
    let (driver, handle) = source.map_or(("", ""), |source| (&*source.driver, &*source.volume_handle));
    let why = format!("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}");
    news(&why, None);
}

/// Reports that another node has the volume (`reportMultiAttachError` of
/// `pkg/controller/volume/attachdetach/reconciler/reconciler.go`). One that is being detached, or
/// is not attached yet, is waited for.
fn refuse(decision: &mut Decision, scene: &Scene, users: &[User<'_>], leaving: &BTreeSet<&str>) {
    let attached = scene.attachments.iter().filter(|own| is_attached(own));
    let nodes: Vec<&str> = attached.map(|attachment| &*attachment.spec.node_name).collect();
    if nodes.iter().all(|node| leaving.contains(node)) {
        return;
    }
    let all = scene.users();
    let others = nodes.iter().filter_map(|node| all.get(node)).flatten();
    let others: Vec<&Pod> = others.map(|(pod, _)| *pod).collect();
    for (pod, volume) in users {
        let namespace = pod.metadata.namespace();
        let near = others.iter().filter(|other| other.metadata.namespace() == namespace);
        let near: Vec<&str> = near.map(|other| name(*other)).collect();
        let far = others.len().saturating_sub(near.len());
        let why = match (near.is_empty(), far) {
            (true, 0) => {
                "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
            }
            (true, far) => format!("Volume is already used by {far} pod(s) in different namespaces"),
            (false, 0) => format!("Volume is already used by pod(s) {}", near.join(", ")),
            (false, far) => format!(
                "Volume is already used by pod(s) {} and {far} pod(s) in different namespaces",
                near.join(", ")
            ),
        };
        let message = told("Multi-Attach error", volume, &why);
        let refused = note(pod, Severity::Warning, "FailedAttachVolume", message);
        decision.news.push((refused, None));
    }
}

/// Creates the attachment, if the node's volumes are attached by the controller.
fn create(scene: &Scene, node: &str, users: &[User<'_>]) -> Option<Step> {
    annotation(&scene.node(node)?.metadata, MANAGED)?;
    let (_, volume) = users.first()?;
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    let failed = users.iter().map(|(pod, volume)| {
        let why = ": kubernetes.io/csi: attacher.Attach failed: {}";
        let message = told("AttachVolume.Attach failed", volume, why);
        note(pod, Severity::Warning, "FailedAttachVolume", message)
    });
    Some(Step::Create {
        resource: ATTACHMENTS,
        namespace: String::new(),
        body: Box::new(json!({
            "metadata": { "name": attachment_name(&scene.name, node) },
            "spec": {
                "attacher": source.driver, "nodeName": node,
                "source": { "persistentVolumeName": name(*volume) },
            },
        })),
        outcome: Outcome {
            done: None,
            failed: failed.collect(),
        },
    })
}

/// Puts the volume into a node's `status.volumesAttached`, or takes it out.
fn report(node: &Node, volume: &str, should: bool) -> Step {
    let own = format!("{PREFIX}{volume}");
    let listed = node.status.iter().flat_map(|status| status.volumes_attached.iter());
    let others = listed.flatten().filter(|listed| listed.name != own);
    let mut all: Vec<Value> = others.map(|volume| json!(volume)).collect();
    if should {
        all.push(json!({ "name": own, "devicePath": "" }));
    }
    target(NODES, node).merge_status(json!({
        "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
        "status": { "volumesAttached": Some(all).filter(|all| !all.is_empty()) },
    }))
}

/// A message with the volume's name (`generateVolumeMsg` of
/// `pkg/volume/util/operationexecutor/operation_executor.go`).
fn told(what: &str, volume: &PersistentVolume, more: &str) -> String {
    format!("{what} for volume {:?} {more}", name(volume))
}

fn note(pod: &Pod, severity: Severity, reason: &'static str, message: String) -> Note {
    target(PODS, pod).note(severity, reason, message)
}
