//! Scaling of one ReplicaSet, and of all of them in proportion if the Deployment is scaled during a
//! rollout.

use serde_json::json;

use super::{Sized, Strategy, View, annotations};
use crate::objects::annotation;
use crate::step::{Severity, Step};

/// Sets a ReplicaSet's size and records the Deployment's; `None` if both are current.
pub(super) fn to(view: &View<'_>, sized: &Sized<'_>, replicas: i32) -> Option<Step> {
    let from = super::spec_replicas(sized.set);
    if from == replicas && !annotations::sizes_differ(view, sized.set) {
        return None;
    }
    let name = crate::objects::name(sized.set);
    let direction = if replicas > from { "up" } else { "down" };
    let done = (from != replicas).then(|| {
        let message = format!("Scaled {direction} replica set {name} from {from} to {replicas}");
        view.owner.note(Severity::Normal, "ScalingReplicaSet", message)
    });
    let recorded: serde_json::Map<_, _> = annotations::sizes(view)
        .into_iter()
        .map(|(key, value)| (key, value.into()))
        .collect();
    let body = json!({ "metadata": { "annotations": recorded }, "spec": { "replicas": replicas } });
    Some(annotations::patch_set(sized, body).with(done))
}

/// True if the Deployment's replicas changed since its ReplicaSets were last scaled.
pub(super) fn is_due(view: &View<'_>) -> bool {
    let desired = view.settings.replicas;
    view.all().filter(|sized| sized.replicas > 0).any(|sized| {
        let recorded = annotation(&sized.set.metadata, annotations::DESIRED).and_then(|text| text.parse::<i32>().ok());
        recorded.is_some_and(|recorded| recorded != desired)
    })
}

/// Scales outside of the rolling update: the only active ReplicaSet, or else all in proportion to
/// their sizes.
pub(super) fn proportionally(view: &View<'_>) -> Vec<Step> {
    let desired = view.settings.replicas;
    let active: Vec<_> = view.all().filter(|sized| sized.replicas > 0).collect();
    let only = match active.as_slice() {
        [] => view
            .new
            .as_ref()
            .or_else(|| view.old.iter().max_by_key(|old| annotations::revision(old.set))),
        [only] => Some(*only),
        _ => None,
    };
    if let Some(only) = only {
        return to(view, only, desired).into_iter().collect();
    }
    if active.is_empty() {
        return Vec::new();
    }
    if view.new.as_ref().is_some_and(|new| is_saturated(view, new)) {
        let old = view.old.iter().filter(|old| old.replicas > 0);
        return old.filter_map(|old| to(view, old, 0)).collect();
    }
    match view.settings.strategy {
        Strategy::Recreate => Vec::new(),
        Strategy::RollingUpdate { surge, .. } => {
            let allowed = if desired > 0 { desired.saturating_add(surge) } else { 0 };
            let sizes = shares(view, active, allowed);
            sizes
                .iter()
                .filter_map(|(sized, replicas)| to(view, sized, *replicas))
                .collect()
        }
    }
}

fn is_saturated(view: &View<'_>, new: &Sized<'_>) -> bool {
    let desired = view.settings.replicas;
    new.replicas == desired
        && annotation(&new.set.metadata, annotations::DESIRED) == Some(&desired.to_string())
        && new.available() == desired
}

/// Distributes the difference between allowed and existing pods; the largest ReplicaSet takes the
/// rounding error.
fn shares<'a, 'b>(view: &View<'_>, mut active: Vec<&'a Sized<'b>>, allowed: i32) -> Vec<(&'a Sized<'b>, i32)> {
    let total: i32 = active.iter().map(|sized| sized.replicas).sum();
    let difference = allowed.saturating_sub(total);
    // Of two equal ones the newer comes first when scaling up, the older when scaling down.
    active.sort_by(|a, b| {
        let age = a
            .set
            .metadata
            .creation_timestamp
            .cmp(&b.set.metadata.creation_timestamp);
        b.replicas
            .cmp(&a.replicas)
            .then(if difference > 0 { age.reverse() } else { age })
    });
    let mut given = 0_i32;
    let mut sizes: Vec<(&Sized<'_>, i32)> = Vec::with_capacity(active.len());
    for sized in active {
        let left = difference.saturating_sub(given);
        let share = if difference == 0 || left == 0 {
            0
        } else {
            fraction(view, sized)
        };
        let share = if difference > 0 {
            share.min(left)
        } else {
            share.max(left)
        };
        given = given.saturating_add(share);
        sizes.push((sized, sized.replicas.saturating_add(share).max(0)));
    }
    if let Some((_, first)) = sizes.first_mut() {
        *first = first.saturating_add(difference.saturating_sub(given)).max(0);
    }
    sizes
}

/// Number of pods by which a ReplicaSet grows if it keeps its share of the whole.
fn fraction(view: &View<'_>, sized: &Sized<'_>) -> i32 {
    let desired = view.settings.replicas;
    if desired == 0 {
        return sized.replicas.saturating_neg();
    }
    let recorded = annotation(&sized.set.metadata, annotations::MAXIMUM).and_then(|text| text.parse::<i64>().ok());
    let status = view
        .deployment
        .status
        .as_ref()
        .and_then(|status| status.replicas)
        .map(i64::from);
    let before = recorded.or(status).unwrap_or(0).max(1);
    let after = i64::from(desired).saturating_add(i64::from(view.settings.surge()));
    let product = i64::from(sized.replicas).saturating_mul(after);
    // Rounds half up, as upstream does.
    let size = product.saturating_mul(2).saturating_add(before) / before.saturating_mul(2);
    i32::try_from(size).unwrap_or(i32::MAX).saturating_sub(sized.replicas)
}
