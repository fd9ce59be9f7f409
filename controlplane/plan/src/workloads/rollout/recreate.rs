//! Recreate: all old pods are gone before new ones are created.

use super::{View, create, scale};
use crate::objects::{controller_of, uid};
use crate::pod::is_finished;
use crate::step::Step;

/// The next steps; none while old pods still run.
pub(super) fn steps(view: &View<'_>) -> Vec<Step> {
    let down: Vec<Step> = view
        .old
        .iter()
        .filter(|old| old.replicas > 0)
        .filter_map(|old| scale::to(view, old, 0))
        .collect();
    if !down.is_empty() {
        return down;
    }
    let of_new = |owner: &str| view.new.as_ref().is_some_and(|new| uid(new.set) == owner);
    let old_pods = view
        .pods
        .iter()
        .any(|pod| !is_finished(pod) && controller_of(&pod.metadata).is_some_and(|owner| !of_new(&owner.uid)));
    // The status may count pods that the cache does not show yet.
    if old_pods || view.old.iter().any(|old| super::status_replicas(old.set) > 0) {
        return Vec::new();
    }
    match view.new.as_ref() {
        None => create::step(view, view.settings.replicas).into_iter().collect(),
        Some(new) if new.replicas != view.settings.replicas => {
            scale::to(view, new, view.settings.replicas).into_iter().collect()
        }
        Some(_) => Vec::new(),
    }
}
