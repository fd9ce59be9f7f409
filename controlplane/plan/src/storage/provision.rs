//! Volumes that Skiff provisions: directories on the node of the claim's first pod.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::volumes::provisioner;
use super::{
    PROVISIONED_BY, PROVISIONER, SELECTED_NODE, capacity, claim_class, claim_phase, claims, full_name, is_bound,
    is_for, phase, policy, requested, storage, volume_of, waits,
};
use crate::objects::{annotation, name, uid};
use crate::step::{CLAIMS, Note, Severity};

/// The provisioner's name, in classes and volumes.
pub const NAME: &str = "skiff.dev/local-path";
/// Finalizer that keeps a volume until its directory is deleted. All external provisioners of
/// upstream use it.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The node that holds the directory.
const NODE: &str = "skiff.dev/node";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Request of a claim to this provisioner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// No request, or not yet.
    Nothing,
    /// A directory on this node.
    Directory(&'a str),
    /// An unsupported request, with the reason.
    Unsupported(&'static str),
}

/// Returns the claim's request to this provisioner.
pub fn request<'a>(claim: &'a PersistentVolumeClaim, class: Option<&StorageClass>) -> Request<'a> {
    let asked = annotation(&claim.metadata, PROVISIONER) == Some(NAME)
        && class.is_some_and(|class| class.provisioner == NAME)
        && volume_of(claim).is_none()
        && claim.metadata.deletion_timestamp.is_none();
    let Some(spec) = claim.spec.as_ref().filter(|_| asked) else {
        return Request::Nothing;
    };
    let shared = |mode: &String| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    if !waits(class) {
        return Request::Unsupported("the class must have the volumeBindingMode WaitForFirstConsumer");
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Request::Unsupported("block volumes are not supported");
    }
    if spec.access_modes.iter().flatten().any(shared) {
        return Request::Unsupported("only the access modes ReadWriteOnce and ReadWriteOncePod are supported");
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Request::Unsupported("volumes cannot be made from a data source");
    }
    if spec.selector.is_some() {
        return Request::Unsupported("claim.Spec.Selector is not supported");
    }
    if spec
        .volume_attributes_class_name
        .as_deref()
        .is_some_and(|class| !class.is_empty())
    {
        return Request::Unsupported("volume attributes classes are not supported");
    }
    match annotation(&claim.metadata, SELECTED_NODE) {
        Some(node) if !node.is_empty() => Request::Directory(node),
        Some(_) | None => Request::Nothing,
    }
}

/// Storage request of a bound claim if it exceeds the recorded capacity of its volume (of this
/// provisioner). A directory has no size limit but the disk's, so expansion only updates the
/// record.
pub fn growth(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Quantity> {
    let ours = provisioner(volume) == Some(NAME) && is_bound(claim) && is_for(volume, claim);
    let shown = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let wanted = requested(claim);
    // A claim without a capacity in its status has just been bound: the capacity is about to be
    // set.
    let lags = shown.is_some_and(|shown| wanted > storage(Some(shown)));
    (ours && (wanted > capacity(volume) || lags)).then(|| wanted.to_text())
}

/// True if a bound claim is new, or asks for more or has more than it did: then a claim that only
/// another driver can expand is told so.
pub fn is_enlarged(claim: &PersistentVolumeClaim, old: Option<&PersistentVolumeClaim>) -> bool {
    let more = |old| requested(claim) > requested(old) || held(claim) > held(old);
    claim_phase(claim) == "Bound" && old.is_none_or(more)
}

/// True if a claim asks for more than it has, and its volume is of another driver (`syncHandler` of
/// `pkg/controller/volume/expand/expand_controller.go`). Those of `FlexVolume` are left to the node
/// (`IsKubeletExpandable` of `pkg/volume/plugins.go`).
pub fn awaits_driver(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let is_flex = volume.spec.as_ref().is_some_and(|spec| spec.flex_volume.is_some());
    provisioner(volume) != Some(NAME) && !is_flex && is_for(volume, claim) && requested(claim) > held(claim)
}

/// Capacity in a claim's status.
fn held(claim: &PersistentVolumeClaim) -> api::quantity::Quantity {
    storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref()))
}

/// Name of a claim's volume and of its directory.
pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", uid(claim))
}

/// The volume for a claim.
pub fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, node: &Node, path: &str) -> Value {
    let labels = node.metadata.labels.as_ref();
    let hostname = labels
        .and_then(|labels| labels.get(HOSTNAME))
        .map_or_else(|| name(node), String::as_str);
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec
        .resources
        .and_then(|resources| resources.requests)
        .unwrap_or_default();
    json!({
        "metadata": {
            "name": volume_name(claim),
            "annotations": { PROVISIONED_BY: NAME, NODE: name(node) },
            "finalizers": [FINALIZER],
        },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": { "storage": requests.get("storage") },
            "claimRef": {
                "apiVersion": "v1", "kind": CLAIMS.kind, "namespace": claim.metadata.namespace,
                "name": claim.metadata.name, "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
            },
            "local": { "path": path },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": HOSTNAME, "operator": "In", "values": [hostname] },
            ]}]}},
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": claim_class(claim),
            "volumeMode": "Filesystem",
        },
    })
}

/// Removal of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The volume stays.
    None,
    /// The directory is deleted, then the volume.
    Remove,
    /// The volume is deleted, but its directory stays.
    Release,
}

/// Returns whether and how to remove a volume of this provisioner.
pub fn end(volume: &PersistentVolume) -> End {
    let held = volume.metadata.finalizers.iter().flatten().any(|own| own == FINALIZER);
    let deleted = volume.metadata.deletion_timestamp.is_some();
    if provisioner(volume) != Some(NAME) || (deleted && !held) {
        return End::None;
    }
    match (phase(volume), policy(volume), deleted) {
        ("Released" | "Failed", "Delete", _) => End::Remove,
        ("Bound", _, _) | (_, _, false) => End::None,
        (_, "Delete", true) => End::Remove,
        (_, _, true) => End::Release,
    }
}

/// The node that holds the volume's directory.
pub fn node_of(volume: &PersistentVolume) -> Option<&str> {
    annotation(&volume.metadata, NODE)
}

/// News about a claim's provisioning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News<'a> {
    /// Provisioning begins.
    Begun,
    /// The volume with this name was provisioned.
    Made(&'a str),
    /// Provisioning failed with this error.
    Failed(&'a str),
    /// The volume was expanded.
    Grown,
    /// Another driver is expected to expand the volume.
    Awaited,
}

/// Event about a claim, in the words of upstream's library for provisioners.
pub fn note(claim: &PersistentVolumeClaim, news: News<'_>) -> Note {
    let (severity, reason, message) = match news {
        News::Begun => (
            Severity::Normal,
            "Provisioning",
            format!(
                "External provisioner is provisioning volume for claim {:?}",
                full_name(claim)
            ),
        ),
        News::Made(volume) => (
            Severity::Normal,
            "ProvisioningSucceeded",
            format!("Successfully provisioned volume {volume}"),
        ),
        News::Failed(why) => (
            Severity::Warning,
            "ProvisioningFailed",
            format!(
                "failed to provision volume with StorageClass {:?}: {why}",
                claim_class(claim)
            ),
        ),
        News::Grown => (
            Severity::Normal,
            "VolumeResizeSuccessful",
            "Resize volume succeeded".to_owned(),
        ),
        News::Awaited => (
            Severity::Normal,
            "ExternalExpanding",
            "waiting for an external controller to expand this PVC".to_owned(),
        ),
    };
    claims::note(claim, severity, reason, message)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::{Value, json};

    use super::{NAME, growth, is_enlarged};

    #[test]
    fn only_a_claim_that_asks_for_more_grows() {
        let check = |asked: &str, shown: Value, held: &str, expected: Option<&str>| {
            let claim = serde_json::from_value(json!({
                "metadata": { "name": "c", "namespace": "d", "uid": "u", "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
                "spec": { "volumeName": "v", "resources": { "requests": { "storage": asked } } },
                "status": shown,
            }));
            let volume = serde_json::from_value(json!({
                "metadata": { "name": "v", "annotations": { "pv.kubernetes.io/provisioned-by": NAME } },
                "spec": { "capacity": { "storage": held }, "claimRef": { "name": "c", "namespace": "d", "uid": "u" } },
            }));
            let grown = growth(&claim.unwrap(), &volume.unwrap());
            assert_eq!(grown.map(|size| size.0).as_deref(), expected, "{asked} {shown} {held}");
        };
        let holds = |size: &str| json!({ "capacity": { "storage": size } });
        check("1Gi", json!({}), "1Gi", None);
        check("1Gi", holds("1Gi"), "1Gi", None);
        check("2Gi", holds("1Gi"), "1Gi", Some("2Gi"));
        check("2Gi", holds("1Gi"), "2Gi", Some("2Gi"));
    }

    #[test]
    fn a_bound_claim_is_enlarged_when_it_is_new_asks_for_more_or_has_more() {
        let claim = |phase: &str, asked: &str, held: &str| -> PersistentVolumeClaim {
            let claim = json!({
                "metadata": {}, "spec": { "resources": { "requests": { "storage": asked } } },
                "status": { "phase": phase, "capacity": { "storage": held } },
            });
            serde_json::from_value(claim).unwrap()
        };
        let old = claim("Bound", "1Gi", "1Gi");
        assert!(is_enlarged(&old, None));
        assert!(!is_enlarged(&old, Some(&old)));
        assert!(is_enlarged(&claim("Bound", "2Gi", "1Gi"), Some(&old)));
        assert!(is_enlarged(&claim("Bound", "1Gi", "2Gi"), Some(&old)));
        assert!(!is_enlarged(&claim("Lost", "2Gi", "1Gi"), Some(&old)));
    }
}
