//! What a node's agent may touch beyond its verbs: its own Node and Lease, the pods that are bound to it, and the
//! objects that those pods name. Upstream's node authorizer and `NodeRestriction`, with their words.

use std::collections::BTreeMap;

use api::Object;
use api::pod::References;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use store::{Entry, Key, ListAt, Prefix};

use crate::authentication;
use crate::authorization;
use crate::context::Context;
use crate::failure::{Failure, GroupResource, Target};
use crate::selection::Selection;

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

/// The node that asks, if one does.
fn asking(context: &Context) -> Option<&str> {
    authorization::node(&context.user)
}

fn forbidden(context: &Context, name: &str, because: String) -> Failure {
    Failure::Forbidden {
        target: Some(context.target(name)),
        because,
        causes: Vec::new(),
    }
}

/// A node reads pods that are bound to it, and the `ConfigMap`s and Secrets that those name; never all there are.
///
/// # Errors
/// 403
pub(crate) async fn may_read(context: &Context) -> Result<(), Failure> {
    let Some(node) = asking(context) else { return Ok(()) };
    let info = &context.info;
    if !info.group.is_empty() || !matches!(info.verb, "get" | "list" | "watch") {
        return Ok(());
    }
    let secrets = match info.resource.as_str() {
        "pods" => return may_read_pods(context, node),
        "configmaps" => false,
        "secrets" => true,
        _ => return Ok(()),
    };
    let selection = Selection::read(context.registration, &context.query)?;
    let name = Some(info.name.as_str()).filter(|_| info.named).or(selection.name());
    let Some(name) = name.filter(|_| !info.namespace.is_empty()) else {
        return Err(authorization::unrelated(&context.user, info, "No Object name found"));
    };
    let prefix = Prefix::namespace("", "pods", &info.namespace);
    let pods = context.store().list(&prefix, ListAt::Latest, None, None).await;
    let pods = pods.map_err(Failure::internal)?.entries;
    if pods.iter().any(|pod| is_bound(pod, node) && names(pod, secrets, name)) {
        return Ok(());
    }
    let because = format!("no relationship found between node {node:?} and this object");
    Err(authorization::unrelated(&context.user, info, &because))
}

fn may_read_pods(context: &Context, node: &str) -> Result<(), Failure> {
    let info = &context.info;
    let own = if info.verb == "get" {
        // What does not exist is not found.
        context.entry().map_or(true, |pod| is_bound(&pod, node))
    } else {
        Selection::read(context.registration, &context.query)?.demands("spec.nodeName") == Some(node)
    };
    if own {
        return Ok(());
    }
    let because = "can only list/watch/get pods with spec.nodeName field selector";
    Err(authorization::unrelated(&context.user, info, because))
}

fn is_bound(pod: &Entry, node: &str) -> bool {
    let fields = pod.attributes.fields.iter();
    let bound = fields.filter(|(label, _)| *label == "spec.nodeName");
    bound.map(|(_, value)| value).any(|value| value == node)
}

fn names(pod: &Entry, secret: bool, name: &str) -> bool {
    let Ok(Pod { spec: Some(spec), .. }) = serde_json::from_slice(&pod.bytes) else {
        return false;
    };
    refers(&spec, secret, name)
}

fn refers(spec: &PodSpec, secret: bool, name: &str) -> bool {
    let References { config_maps, secrets } = References::of(spec);
    if secret { &secrets } else { &config_maps }.contains(name)
}

/// A node makes only its own Node and Lease.
///
/// # Errors
/// 403
pub(super) fn may_create(context: &Context, object: &dyn Object) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let name = object.metadata().name.as_deref().unwrap_or_default();
    match context.registration.plural {
        "nodes" if name != asking => {
            let because = format!("node {asking:?} is not allowed to modify node {name:?}");
            Err(forbidden(context, name, because))
        }
        "nodes" => may_label(context, asking, object, None),
        "leases" if name != asking => {
            let because = "can only access node lease with the same name as the requesting node";
            Err(forbidden(context, name, because.to_owned()))
        }
        _ => Ok(()),
    }
}

/// A node changes only pods that are bound to it, and of them the status.
///
/// # Errors
/// 403
pub(crate) fn may_touch(context: &Context, entry: &Entry) -> Result<(), Failure> {
    let Some(asking) = asking(context).filter(|_| context.registration.plural == "pods") else {
        return Ok(());
    };
    if is_bound(entry, asking) {
        return Ok(());
    }
    let can = match context.info.subresource.as_str() {
        "status" => "update pod status for pods",
        "eviction" => "evict pods",
        _ => "delete pods",
    };
    let because = format!("node {asking:?} can only {can} with spec.nodeName set to itself");
    Err(forbidden(context, entry.key.name(), because))
}

/// A node keeps its hands off labels that decide what runs where, and off owners, whose deletion would take it along.
///
/// # Errors
/// 403
pub(crate) fn may_become(context: &Context, new: &dyn Object, old: &dyn Object) -> Result<(), Failure> {
    let Some(asking) = asking(context) else { return Ok(()) };
    let name = old.metadata().name.as_deref().unwrap_or_default();
    match context.registration.plural {
        "pods" if labels(new) != labels(old) => {
            let because = format!("node {asking:?} cannot update labels through pod status");
            Err(forbidden(context, name, because))
        }
        "nodes" => may_label(context, asking, new, Some(old)),
        _ => Ok(()),
    }
}

fn labels(object: &dyn Object) -> BTreeMap<String, String> {
    object.metadata().labels.clone().unwrap_or_default()
}

fn may_label(context: &Context, asking: &str, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Failure> {
    if new.as_any().downcast_ref::<Node>().is_none() {
        return Ok(());
    }
    let owners = |object: &dyn Object| object.metadata().owner_references.clone().unwrap_or_default();
    if owners(new) != old.map(owners).unwrap_or_default() {
        let because = format!("node {asking:?} is not allowed to modify its own owner references");
        return Err(forbidden(context, asking, because));
    }
    let (before, after) = (old.map(labels).unwrap_or_default(), labels(new));
    let mut changed: Vec<&str> = before
        .keys()
        .chain(after.keys())
        .filter(|label| before.get(*label) != after.get(*label) && is_protected(label))
        .map(String::as_str)
        .collect();
    changed.dedup();
    if changed.is_empty() {
        return Ok(());
    }
    let changed = changed.join(", ");
    let because = format!("is not allowed to modify labels: {changed}");
    Err(forbidden(context, asking, because))
}

/// Whether only others may set the label on a Node.
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
    let refuse = |because: &str| Err(forbidden(context, &context.info.name, because.to_owned()));
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
    let refuse = |because: String| Err(forbidden(context, &context.info.name, because));
    let [wanted] = audiences else {
        return refuse("node may only request 0 or 1 audiences".to_owned());
    };
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
    let tokens = sources
        .flatten()
        .filter_map(|source| source.service_account_token.as_ref());
    let mut mounted = tokens.map(|token| token.audience.as_deref().unwrap_or_default());
    let own = authentication::audiences();
    if mounted.any(|audience| audience == wanted || (audience.is_empty() && own.contains(wanted))) {
        return Ok(());
    }
    refuse(format!("audience {wanted:?} not found in pod spec volume"))
}
