//! Small questions about objects that several plans ask.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    Metadata,
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time},
    jiff::Timestamp,
};

use crate::step::{Resource, Target};

/// Labels or annotations.
pub type Map = BTreeMap<String, String>;

/// Names an object for a step.
pub fn target<K: Metadata<Ty = ObjectMeta>>(resource: Resource, object: &K) -> Target {
    let metadata = object.metadata();
    Target {
        resource,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    }
}

/// The object's name, empty if it has none yet.
pub fn name<K: Metadata<Ty = ObjectMeta>>(object: &K) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

/// The object's uid, empty if it has none yet.
pub fn uid<K: Metadata<Ty = ObjectMeta>>(object: &K) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}

/// The owner that manages the object, if one does.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata
        .owner_references
        .as_deref()
        .unwrap_or_default()
        .iter()
        .find(|owner| owner.controller == Some(true))
}

/// The owner reference that a controller puts on what it makes.
pub fn controlled_by(owner: &Target) -> OwnerReference {
    OwnerReference {
        api_version: owner.resource.api_version(),
        kind: owner.resource.kind.to_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The value of an annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether `labels` meet `selector`. An empty selector meets nothing here: every controller's selector is required.
pub fn selects(selector: &LabelSelector, labels: Option<&Map>) -> bool {
    let exact = selector.match_labels.as_ref();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    if exact.is_none_or(BTreeMap::is_empty) && expressions.is_empty() {
        return false;
    }
    matches(selector, labels)
}

/// Whether `labels` meet `selector`; an empty selector meets everything.
pub fn matches(selector: &LabelSelector, labels: Option<&Map>) -> bool {
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let exact = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| get(key) == Some(value));
    exact
        && selector.match_expressions.iter().flatten().all(|expression| {
            let found = get(&expression.key);
            let listed = |value: &String| expression.values.as_deref().unwrap_or_default().contains(value);
            match expression.operator.as_str() {
                "In" => found.is_some_and(listed),
                "NotIn" => !found.is_some_and(listed),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// A pod's condition by type.
pub fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_deref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// The pod's phase, empty if it has none yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether a controller counts the pod: not finished, not being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether none of the pod's containers will run again.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The node the pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether the pod's Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    pod_condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when the pod has been ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = pod_condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// How long until a ready pod counts as available: zero if it does now, `None` if it is not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Duration::ZERO);
    }
    let due = ready_since(pod)?
        .as_second()
        .saturating_add(i64::from(min_ready_seconds));
    Some(Duration::from_secs(
        u64::try_from(due.saturating_sub(now.as_second())).unwrap_or(0),
    ))
}

/// `now` as objects carry it: whole seconds.
pub fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
