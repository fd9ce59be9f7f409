//! A rolling update: scales the new ReplicaSet up, or else old ones down.

use super::{Sized, View, create, scale};
use crate::step::Step;

/// The next steps; none if the rollout must wait or is complete.
pub(super) fn steps(view: &View<'_>) -> Vec<Step> {
    let Some(new) = view.new.as_ref() else {
        return create::step(view, room(view, 0)).into_iter().collect();
    };
    let desired = view.settings.replicas;
    let size = if new.replicas >= desired {
        desired
    } else {
        new.replicas.saturating_add(room(view, new.replicas))
    };
    if size != new.replicas {
        return scale::to(view, new, size).into_iter().collect();
    }
    shrink(view, new)
}

/// Number of pods that the new ReplicaSet of `size` may gain.
fn room(view: &View<'_>, size: i32) -> i32 {
    let occupied: i32 = view.all().map(Sized::occupied).sum();
    let limit = view.settings.replicas.saturating_add(view.settings.surge());
    limit
        .saturating_sub(occupied)
        .min(view.settings.replicas.saturating_sub(size))
        .max(0)
}

/// Scales old ReplicaSets down as far as availability permits, unavailable pods first.
fn shrink(view: &View<'_>, new: &Sized<'_>) -> Vec<Step> {
    let minimum = view.settings.replicas.saturating_sub(view.settings.unavailable());
    let total: i32 = view.all().map(|sized| sized.replicas).sum();
    let starting = new.replicas.saturating_sub(new.available()).max(0);
    let spare = total.saturating_sub(minimum).saturating_sub(starting);
    if spare <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<(&Sized<'_>, i32)> = view.old.iter().map(|old| (old, old.replicas)).collect();
    let mut taken = 0_i32;
    for (old, size) in &mut sizes {
        let broken = size
            .saturating_sub(old.available())
            .max(0)
            .min(spare.saturating_sub(taken));
        *size = size.saturating_sub(broken);
        taken = taken.saturating_add(broken);
    }
    let available: i32 = view.all().map(|sized| sized.available().min(sized.replicas)).sum();
    // Unavailable pods were taken above; taking available ones must leave the minimum.
    let mut left = available
        .saturating_sub(minimum)
        .min(spare.saturating_sub(taken))
        .max(0);
    for (_, size) in &mut sizes {
        let part = (*size).min(left);
        *size = size.saturating_sub(part);
        left = left.saturating_sub(part);
    }
    sizes
        .into_iter()
        .filter(|(old, size)| *size != old.replicas)
        .filter_map(|(old, size)| scale::to(view, old, size))
        .collect()
}
