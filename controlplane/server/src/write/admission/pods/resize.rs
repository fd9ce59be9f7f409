//! Resizes of running pods: never more than the node's allocatable.

use std::borrow::Cow;

use api::Object;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use store::Key;

use crate::request::failure::{Cause, Failure};
use crate::write::admission::{Part, Review};

/// Feature without which a node does not resize a pod with resources of its own.
const WHOLE: &str = "InPlacePodLevelResourcesVerticalScaling";
/// Feature without which a node does not resize init containers that are no sidecars.
const INIT_CONTAINERS: &str = "InPlacePodVerticalScalingInitContainers";

/// `NodeDeclaredFeatureValidator`, for resizes alone, and `PodResizeValidator`
pub(in crate::write::admission) fn check(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    let pod = object.as_any().downcast_ref::<Pod>();
    let Some(spec) = pod
        .and_then(|pod| pod.spec.as_ref())
        .filter(|_| review.part == Part::Resize)
    else {
        return Ok(());
    };
    let old = review.old.and_then(|old| old.as_any().downcast_ref::<Pod>());
    let old = old.and_then(|old| old.spec.as_ref());
    let changed = old != Some(spec);
    let Some(name) = spec.node_name.as_deref().filter(|name| changed && !name.is_empty()) else {
        return Ok(());
    };
    let entry = Key::new("", "nodes", "", name)
        .ok()
        .and_then(|key| review.context.store().get(&key));
    let Some(node) = entry.and_then(|entry| serde_json::from_slice::<Node>(&entry.bytes).ok()) else {
        return Err(review.forbid(object, format!("node {name:?} not found")));
    };
    let lacking = old.map(|old| undeclared(spec, old, &node)).unwrap_or_default();
    if !lacking.is_empty() {
        let lacking = lacking.join(", ");
        let because = format!("pod update requires features {lacking} which are not available on node {name:?}");
        return Err(review.forbid(object, because));
    }
    let (reason, because) = if let Some(system) = other_system(&node) {
        let because = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
        ("UnsupportedPlatform", because)
    } else if let Some(missing) = missing(spec, &node) {
        let because = format!("node didn't have enough allocatable resources: {missing}");
        ("NodeCapacity", because)
    } else {
        return Ok(());
    };
    let cause = Cause {
        reason: Cow::Borrowed(reason),
        field: String::new(),
        message: String::new(),
        text: String::new(),
    };
    let name = object.metadata().name.clone().unwrap_or_default();
    Err(Failure::Forbidden {
        target: Some(review.context.target(&name)),
        because,
        causes: vec![cause],
    })
}

/// Features that the change needs and the node does not declare.
fn undeclared(new: &PodSpec, old: &PodSpec, node: &Node) -> Vec<&'static str> {
    let status = node.status.as_ref();
    let features = status.and_then(|status| status.declared_features.as_ref());
    let declares = |feature: &str| features.is_some_and(|features| features.iter().any(|own| own == feature));
    let needed = [
        (WHOLE, new.resources != old.resources),
        (INIT_CONTAINERS, resizes_init_containers(new, old)),
    ];
    let lacking = needed
        .into_iter()
        .filter(|(feature, needed)| *needed && !declares(feature));
    lacking.map(|(feature, _)| feature).collect()
}

/// True if an init container that is no sidecar changes its resources.
fn resizes_init_containers(new: &PodSpec, old: &PodSpec) -> bool {
    let of = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
    let (new, old) = (of(new), of(old));
    let mut both = old.iter().zip(&new);
    both.any(|(old, new)| !api::pod::is_sidecar(old) && old.resources != new.resources)
}

/// First resource of which the pod requests more than the node's allocatable.
fn missing(spec: &PodSpec, node: &Node) -> Option<String> {
    let requests = api::pod::requests(spec);
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let missing: Vec<String> = [("cpu", 1), ("memory", 1000)]
        .into_iter()
        .filter_map(|(name, scale)| {
            let asked = requests.get(name).map_or(0, |own| own.milli());
            let there = allocatable.and_then(|all| all.get(name));
            let there = there.map_or(0, |own| Quantity::of(own).milli());
            let told = |amount: i64| amount / scale;
            (asked > there).then(|| format!("{name}, requested: {}, allocatable: {}", told(asked), told(there)))
        })
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// The system of a node that says that it is not Linux.
fn other_system(node: &Node) -> Option<&String> {
    let system = node.metadata.labels.as_ref()?.get("kubernetes.io/os")?;
    (system != "linux").then_some(system)
}
