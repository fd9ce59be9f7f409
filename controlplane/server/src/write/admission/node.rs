//! Writes that a node's agent may make: upstream's `NodeRestriction`, with its messages.
//! `authz::node` decides which objects it may access at all; this module checks their
//! contents.

use std::collections::BTreeMap;

use api::Object;
use api::certificate::{NODE_CLIENT, NODE_SERVING, Request};
use api::pod::References;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Taint, Volume};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::api::storage::v1::CSIDriver;
use serde::de::DeserializeOwned;
use store::{Entry, Key};

use crate::authn;
use crate::authz::escalation::is_allowed;
use crate::authz::{self, node::is_bound};
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target};

/// Labels of the domains `kubernetes.io` and `k8s.io` that an agent may set on its Node.
const AGENT_LABELS: [&str; 10] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Annotation of a mirror pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The node that asks, if one does.
fn asking(context: &Context) -> Option<&str> {
    authz::node(&context.user)
}

/// A node makes only its own Node, Lease and `CSINode`, and pods that it only shows.
///
/// # Errors
/// 403
pub(super) fn may_create(context: &Context, object: &dyn Object) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let name = object.metadata().name.as_deref().unwrap_or_default();
    match (context.registration.group, context.registration.plural) {
        ("", "nodes") => {
            if name == asking {
                return may_label(context, asking, object, None);
            }
            let because = format!("node {asking:?} is not allowed to modify node {name:?}");
            Err(context.forbidden(name, because))
        }
        ("coordination.k8s.io", "leases") if name != asking => {
            let because = "can only access node lease with the same name as the requesting node";
            Err(context.forbidden(name, because))
        }
        ("storage.k8s.io", "csinodes") if name != asking => {
            let because = "can only access CSINode with the same name as the requesting node";
            Err(context.forbidden(name, because))
        }
        ("resource.k8s.io", "resourceslices") => {
            let slice = object.as_any().downcast_ref::<ResourceSlice>();
            if slice.is_none_or(|slice| slice.spec.node_name.as_deref() == Some(asking)) {
                return Ok(());
            }
            let because = "can only create ResourceSlice with the same NodeName as the requesting node";
            Err(context.forbidden(name, because))
        }
        ("certificates.k8s.io", "certificatesigningrequests") => match object.as_any().downcast_ref() {
            Some(request) => may_sign_for(asking, request).map_err(|because| context.forbidden(name, because)),
            None => Ok(()),
        },
        ("", "pods") => match object.as_any().downcast_ref::<Pod>() {
            Some(pod) => may_mirror(context, asking, pod).map_err(|because| context.forbidden(name, because)),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// A node may request certificates from the signers for nodes only for itself: approvers may decide
/// by signer and subject alone.
fn may_sign_for(asking: &str, request: &CertificateSigningRequest) -> Result<(), String> {
    if ![NODE_CLIENT, NODE_SERVING].contains(&request.spec.signer_name.as_str()) {
        return Ok(());
    }
    let asked = Request::parse(&request.spec.request.0).map_err(|error| format!("unable to parse csr: {error}"))?;
    let own = format!("system:node:{asking}");
    if asked.common_name != own {
        return Err(format!("can only create a node CSR with CN={own}"));
    }
    Ok(())
}

/// A mirror pod must belong to the node in every way, and may not give it access to anything.
fn may_mirror(context: &Context, asking: &str, pod: &Pod) -> Result<(), String> {
    let annotations = pod.metadata.annotations.as_ref();
    if !annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)) {
        return Err(format!(
            "pod does not have {MIRROR:?} annotation, node {asking:?} can only create mirror pods"
        ));
    }
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let only = |what: &str| Err(format!("node {asking:?} can only create pods with {what}"));
    if spec.node_name.as_deref() != Some(asking) {
        return only("spec.nodeName set to itself");
    }
    let owner = match pod.metadata.owner_references.as_deref().unwrap_or_default() {
        [] => return only("an owner reference set to itself"),
        [owner] => owner,
        _ => return only("a single owner reference set to itself"),
    };
    if owner.api_version != "v1" || owner.kind != "Node" || owner.name != asking {
        return only("an owner reference set to itself");
    }
    if owner.controller != Some(true) {
        return only("a controller owner reference set to itself");
    }
    if owner.block_owner_deletion == Some(true) {
        return Err(format!(
            "node {asking:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let node: Option<Node> = read(context, ("", "nodes", "", asking));
    let uid = node.and_then(|node| node.metadata.uid).unwrap_or_default();
    if owner.uid != uid {
        let expected = &owner.uid;
        return Err(format!("node {asking} UID mismatch: expected {expected} got {uid}"));
    }
    let opens = |what: &str| Err(format!("node {asking:?} can not create pods that reference {what}"));
    if spec
        .service_account_name
        .as_deref()
        .is_some_and(|name| !name.is_empty())
    {
        return opens("serviceaccounts");
    }
    let References {
        config_maps, secrets, ..
    } = References::of(spec);
    if !secrets.is_empty() {
        return opens("secrets");
    }
    if !config_maps.is_empty() {
        return opens("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return opens("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(opened_by).map_or(Ok(()), opens)
}

/// What a volume opens of the API besides secrets and config maps (`HasAPIObjectReference` of
/// `pkg/api/pod/util.go`).
fn opened_by(volume: &Volume) -> Option<&'static str> {
    if volume.csi.is_some() {
        return Some("csidrivers (via CSI volumes)");
    }
    if volume.glusterfs.is_some() {
        return Some("endpoints (via glusterFS volumes)");
    }
    if volume.persistent_volume_claim.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims (via ephemeral volumes)");
    }
    let mut sources = volume.projected.as_ref()?.sources.iter().flatten();
    sources.find_map(|source| {
        if source.service_account_token.is_some() {
            Some("serviceaccounts (via projected volumes)")
        } else if source.cluster_trust_bundle.is_some() {
            Some("clustertrustbundles")
        } else {
            source.pod_certificate.as_ref().map(|_| "podcertificates")
        }
    })
}

/// A node changes only pods that are bound to it, and of them only the status; it deletes only its
/// own slices.
///
/// # Errors
/// 403
pub(crate) fn may_touch(context: &Context, entry: &Entry) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let (plural, verb) = (context.registration.plural, context.info.verb);
    let is_slice = plural == "resourceslices" && matches!(verb, "delete" | "deletecollection");
    if !(plural == "pods" || is_slice) || is_bound(entry, asking) {
        return Ok(());
    }
    if is_slice {
        let because = "can only delete ResourceSlice with the same NodeName as the requesting node";
        return Err(context.forbidden(entry.key.name(), because));
    }
    let can = match context.info.subresource.as_str() {
        "status" => "update pod status for pods",
        "eviction" => "evict pods",
        _ => "delete pods",
    };
    let because = format!("node {asking:?} can only {can} with spec.nodeName set to itself");
    Err(context.forbidden(entry.key.name(), because))
}

/// A node may not change fields that decide scheduling, nor owners, whose deletion would remove the
/// pod.
///
/// # Errors
/// 403
pub(crate) fn may_become(context: &Context, new: &dyn Object, old: &dyn Object) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let name = old.metadata().name.as_deref().unwrap_or_default();
    match (context.registration.group, context.registration.plural) {
        ("", "pods") => {
            let because = if labels(new) != labels(old) {
                format!("node {asking:?} cannot update labels through pod status")
            } else if claim_statuses(new) != claim_statuses(old) {
                // With upstream's slip of the pen.
                format!("node {asking:?} cannot update resource claim statues")
            } else if extended_claim_status(new) != extended_claim_status(old) {
                format!("node {asking:?} cannot update extended resource claim status")
            } else {
                return Ok(());
            };
            Err(context.forbidden(name, because))
        }
        ("", "nodes") if name != asking => {
            let because = format!("node {asking:?} is not allowed to modify node {name:?}");
            Err(context.forbidden(name, because))
        }
        ("", "nodes") => may_label(context, asking, new, Some(old)),
        ("", "persistentvolumeclaims") if resized(new, old) != Some(true) => {
            let because = format!(
                "node {asking:?} is not allowed to update fields other than status.quantity and status.conditions"
            );
            Err(context.forbidden(name, because))
        }
        _ => Ok(()),
    }
}

/// A node does not set its own `configSource`. No node has one, but upstream rejects what it would
/// drop later.
///
/// # Errors
/// 403
pub(crate) fn may_configure(context: &Context, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let source = |object: &dyn Object| {
        let node = object.as_any().downcast_ref::<Node>()?;
        node.spec.as_ref()?.config_source.clone()
    };
    let name = new.metadata().name.as_deref().unwrap_or_default();
    let wanted = source(new);
    if name != asking || wanted.is_none() || wanted == old.and_then(source) {
        return Ok(());
    }
    let because = if old.is_some() {
        format!("node {asking:?} is not allowed to update configSource to a new non-nil configSource")
    } else {
        format!("node {asking:?} is not allowed to create pods with a non-nil configSource")
    };
    Err(context.forbidden(name, because))
}

fn claim_statuses(object: &dyn Object) -> Option<&[k8s_openapi::api::core::v1::PodResourceClaimStatus]> {
    let pod = object.as_any().downcast_ref::<Pod>()?;
    pod.status.as_ref()?.resource_claim_statuses.as_deref()
}

fn extended_claim_status(object: &dyn Object) -> Option<&k8s_openapi::api::core::v1::PodExtendedResourceClaimStatus> {
    let pod = object.as_any().downcast_ref::<Pod>()?;
    pod.status.as_ref()?.extended_resource_claim_status.as_ref()
}

/// True if only fields that a resize changes differ between the two claims.
fn resized(new: &dyn Object, old: &dyn Object) -> Option<bool> {
    let mut new = new.as_any().downcast_ref::<PersistentVolumeClaim>()?.clone();
    let old = old.as_any().downcast_ref::<PersistentVolumeClaim>()?;
    new.metadata.resource_version.clone_from(&old.metadata.resource_version);
    new.metadata.managed_fields.clone_from(&old.metadata.managed_fields);
    let kept = old.status.clone().unwrap_or_default();
    let status = new.status.get_or_insert_default();
    status.capacity = kept.capacity;
    status.conditions = kept.conditions;
    status.allocated_resources = kept.allocated_resources;
    status.allocated_resource_statuses = kept.allocated_resource_statuses;
    let same = new.metadata == old.metadata && new.spec == old.spec;
    Some(same && new.status == Some(old.status.clone().unwrap_or_default()))
}

fn labels(object: &dyn Object) -> BTreeMap<String, String> {
    object.metadata().labels.clone().unwrap_or_default()
}

fn taints(object: &dyn Object) -> &[Taint] {
    let node = object.as_any().downcast_ref::<Node>();
    let spec = node.and_then(|node| node.spec.as_ref());
    spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn may_label(context: &Context, asking: &str, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Failure> {
    let not = |what: &str| {
        let because = format!("node {asking:?} is not allowed to modify {what}");
        Err(context.forbidden(asking, because))
    };
    // A node may set its own taints when it registers.
    if old.is_some_and(|old| taints(old) != taints(new)) {
        return not("taints");
    }
    let owners = |object: &dyn Object| object.metadata().owner_references.clone().unwrap_or_default();
    if owners(new) != old.map(owners).unwrap_or_default() {
        return not("ownerReferences");
    }
    let (before, after) = (old.map(labels).unwrap_or_default(), labels(new));
    let mut changed: Vec<&str> = before
        .keys()
        .chain(after.keys())
        .filter(|label| before.get(*label) != after.get(*label) && is_protected(label))
        .map(String::as_str)
        .collect();
    changed.sort_unstable();
    changed.dedup();
    if changed.is_empty() {
        return Ok(());
    }
    let changed = changed.join(", ");
    let because = if old.is_some() {
        format!("is not allowed to modify labels: {changed}")
    } else {
        format!("node {asking:?} is not allowed to set the following labels: {changed}")
    };
    Err(context.forbidden(asking, because))
}

/// True if nodes may not set the label on a Node.
fn is_protected(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|own| own.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return true;
    }
    (within("kubernetes.io") || within("k8s.io"))
        && !within("kubelet.kubernetes.io")
        && !within("node.kubernetes.io")
        && !AGENT_LABELS.contains(&label)
}

/// A node asks for tokens only of pods that are bound to it, and only for those that such a pod mounts.
///
/// # Errors
/// 403, 404
pub(crate) fn may_request_token(context: &Context, spec: &TokenRequestSpec) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let refuse = |because: &str| Err(context.forbidden(&context.info.name, because));
    let reference = spec.bound_object_ref.as_ref();
    let reference = reference.filter(|bound| {
        bound.api_version.as_deref() == Some("v1") && bound.kind.as_deref() == Some("Pod") && bound.name.is_some()
    });
    let Some(BoundObjectReference {
        name: Some(name), uid, ..
    }) = reference
    else {
        return refuse("node requested token not bound to a pod");
    };
    let uid = uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let entry = Key::new("", "pods", &context.info.namespace, name).ok();
    let entry = entry
        .and_then(|key| context.store().get(&key))
        .ok_or_else(|| Failure::NotFound {
            target: Target {
                resource: GroupResource::new("", "pods"),
                name: name.clone(),
            },
        })?;
    let pod: Pod = serde_json::from_slice(&entry.bytes).map_err(Failure::internal)?;
    if pod.metadata.uid.as_deref() != Some(uid) {
        let because = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return refuse(&because);
    }
    if !is_bound(&entry, asking) {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    may_request_audience(context, &pod, spec.audiences.as_deref().unwrap_or_default())
}

fn may_request_audience(context: &Context, pod: &Pod, audiences: &[String]) -> Result<(), Failure> {
    let refuse = |because: String| Err(context.forbidden(&context.info.name, because));
    let [wanted] = audiences else {
        return refuse("node may only request 0 or 1 audiences".to_owned());
    };
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
    let tokens = sources
        .flatten()
        .filter_map(|source| source.service_account_token.as_ref());
    let mut mounted = tokens.map(|token| token.audience.as_deref().unwrap_or_default());
    let own = authn::audiences(&context.server);
    if mounted.any(|audience| audience == wanted || (audience.is_empty() && own.contains(wanted)))
        || has_driver_for(context, pod, wanted, own.contains(wanted))
    {
        return Ok(());
    }
    let asked = authz::Resource {
        resource: wanted,
        namespace: &context.info.namespace,
        name: &context.info.name,
        ..authz::Resource::default()
    };
    if is_allowed(context, "request-serviceaccounts-token-audience", asked) {
        return Ok(());
    }
    refuse(format!(
        "audience {wanted:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        context.user.name
    ))
}

/// True if the CSI driver of a volume of the pod gets tokens for the audience, which may be the server's own.
fn has_driver_for(context: &Context, pod: &Pod, audience: &str, is_own: bool) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| {
        let driver = driver_of(context, pod, volume);
        let driver = driver.and_then(|name| read::<CSIDriver>(context, ("storage.k8s.io", "csidrivers", "", &name)));
        let mut requests = driver
            .into_iter()
            .filter_map(|driver| driver.spec.token_requests)
            .flatten();
        requests.any(|request| request.audience == audience || (request.audience.is_empty() && is_own))
    })
}

/// Name of the CSI driver of a volume, which its claim may have.
fn driver_of(context: &Context, pod: &Pod, volume: &Volume) -> Option<String> {
    let claim = match (&volume.ephemeral, &volume.persistent_volume_claim) {
        (Some(_), _) => format!("{}-{}", pod.metadata.name.as_deref()?, volume.name),
        (None, Some(own)) => own.claim_name.clone(),
        (None, None) => return Some(volume.csi.as_ref()?.driver.clone()),
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claim: PersistentVolumeClaim = read(context, ("", "persistentvolumeclaims", namespace, &claim))?;
    let volume: PersistentVolume = read(context, ("", "persistentvolumes", "", &claim.spec?.volume_name?))?;
    Some(volume.spec?.csi?.driver)
}

/// The object with a group, plural, namespace and name.
fn read<T: DeserializeOwned>(
    context: &Context,
    (group, plural, namespace, name): (&str, &str, &str, &str),
) -> Option<T> {
    let entry = context.store().get(&Key::new(group, plural, namespace, name).ok()?)?;
    serde_json::from_slice(&entry.bytes).ok()
}
