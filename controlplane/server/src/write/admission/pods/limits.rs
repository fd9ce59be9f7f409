//! `LimitRanger`: default requests and limits of containers, and bounds for pods and claims.

mod check;

use std::collections::BTreeMap;

use api::Object;
use k8s_openapi::api::core::v1::{
    Container, LimitRange, LimitRangeItem, PersistentVolumeClaim, Pod, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use store::Prefix;

use crate::request::failure::Failure;
use crate::write::admission::{Part, Review};

/// Annotation that lists the defaults that were set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Quantities of a limit by resource name.
type Amounts = BTreeMap<String, Text>;

/// The namespace's limits, in the order of their names.
fn ranges(review: &Review<'_>) -> Vec<LimitRange> {
    let prefix = Prefix::namespace("", "limitranges", &review.context.info.namespace);
    let entries = review.context.store().present(&prefix);
    entries
        .iter()
        .filter_map(|entry| serde_json::from_slice(&entry.bytes).ok())
        .collect()
}

fn items<'a>(ranges: &'a [LimitRange], kind: &'a str) -> impl Iterator<Item = &'a LimitRangeItem> {
    ranges.iter().flat_map(move |range| items_of(range, kind))
}

fn items_of<'a>(range: &'a LimitRange, kind: &'a str) -> impl Iterator<Item = &'a LimitRangeItem> {
    let items = range.spec.iter().flat_map(|spec| spec.limits.iter());
    items.filter(move |item| item.type_ == kind)
}

/// Sets missing requests and limits of containers, in new and resized pods.
#[expect(clippy::unnecessary_wraps, reason = "a step of the chain")]
pub(in crate::write::admission) fn fill_in(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    let goes = |old: &dyn Object| old.metadata().deletion_timestamp.is_some();
    if !(review.is_new() || review.part == Part::Resize) || review.old.is_some_and(goes) {
        return Ok(());
    }
    let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() else {
        return Ok(());
    };
    let ranges = ranges(review);
    let mut defaults = ResourceRequirements::default();
    for item in items(&ranges, "Container") {
        overlay(&mut defaults.requests, item.default_request.as_ref());
        overlay(&mut defaults.limits, item.default.as_ref());
    }
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let mut notes = Vec::new();
    for container in &mut spec.containers {
        complete(container, &defaults, "container", &mut notes);
    }
    for container in spec.init_containers.iter_mut().flatten() {
        complete(container, &defaults, "init container", &mut notes);
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION.to_owned(), note);
    }
    Ok(())
}

fn overlay(into: &mut Option<Amounts>, from: Option<&Amounts>) {
    for (name, amount) in from.into_iter().flatten() {
        into.get_or_insert_default().insert(name.clone(), amount.clone());
    }
}

fn complete(container: &mut Container, defaults: &ResourceRequirements, kind: &str, notes: &mut Vec<String>) {
    if defaults.requests.is_none() && defaults.limits.is_none() {
        return;
    }
    let resources = container.resources.get_or_insert_default();
    let requests = add_missing(&mut resources.requests, defaults.requests.as_ref());
    let limits = add_missing(&mut resources.limits, defaults.limits.as_ref());
    for (added, what) in [(requests, "request"), (limits, "limit")] {
        if !added.is_empty() {
            notes.push(format!("{} {what} for {kind} {}", added.join(", "), container.name));
        }
    }
}

/// Adds missing quantities and returns their names.
fn add_missing(own: &mut Option<Amounts>, defaults: Option<&Amounts>) -> Vec<String> {
    let mut added = Vec::new();
    for (name, amount) in defaults.into_iter().flatten() {
        let own = own.get_or_insert_default();
        if !own.contains_key(name) {
            own.insert(name.clone(), amount.clone());
            added.push(name.clone());
        }
    }
    added
}

/// Refuses pods and claims that ask for less or more than the namespace's limits.
pub(in crate::write::admission) fn check(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    let resized = review.part == Part::Resize;
    if !(resized || review.part == Part::Object) || object.metadata().deletion_timestamp.is_some() {
        return Ok(());
    }
    let pod = object.as_any().downcast_ref::<Pod>();
    let pod = pod.filter(|_| resized || review.is_new());
    let claim = object.as_any().downcast_ref::<PersistentVolumeClaim>();
    let claim = claim.filter(|claim| !keeps_requests(review, claim));
    if pod.is_none() && claim.is_none() {
        return Ok(());
    }
    for range in ranges(review) {
        let mut found = Vec::new();
        if let Some(spec) = pod.and_then(|pod| pod.spec.as_ref()) {
            check::pod(&range, spec, &mut found);
        }
        if let Some(spec) = claim.and_then(|claim| claim.spec.as_ref()) {
            check::claim(&range, spec, &mut found);
        }
        let because = match found.as_slice() {
            [] => continue,
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        return Err(review.forbid(object, because));
    }
    Ok(())
}

/// True if an update leaves a claim's requests as they were: they may be older than the limits, and
/// the claim still has to be bound, say.
fn keeps_requests(review: &Review<'_>, claim: &PersistentVolumeClaim) -> bool {
    let requests = |claim: &PersistentVolumeClaim| claim.spec.as_ref()?.resources.as_ref()?.requests.clone();
    let old = review
        .old
        .and_then(|old| old.as_any().downcast_ref::<PersistentVolumeClaim>());
    old.is_some_and(|old| requests(old) == requests(claim))
}
