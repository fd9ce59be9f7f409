//! Limits on scaling speed, and recent recommendations
//! (`pkg/controller/podautoscaler/horizontal.go`).

use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Default stabilization window for scaling down, in seconds.
const DOWNSCALE_WINDOW: i32 = 300;

/// State that is kept for an autoscaler between syncs.
#[derive(Debug, Default)]
pub struct Memory {
    recommendations: Vec<(i32, Timestamp)>,
    ups: Vec<(i32, Timestamp)>,
    downs: Vec<(i32, Timestamp)>,
}

/// An allowed replica count, with the conditions that explain it.
pub(super) struct Allowed {
    pub(super) replicas: i32,
    /// Of `AbleToScale`: reason and message.
    pub(super) able: (&'static str, &'static str),
    /// Of `ScalingLimited`: whether it is, reason and message.
    pub(super) limited: (bool, &'static str, &'static str),
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const UP: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const IN_RANGE: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FAST_UP: (&str, &str) = (
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const TOO_FAST_DOWN: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);
const TOO_MANY: (&str, &str) = (
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const TOO_FEW: (&str, &str) = (
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);

impl Memory {
    /// The first recommendation is the current size.
    pub(super) fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((current, now));
        }
    }

    /// Records a scaling event.
    pub(super) fn scaled(&mut self, spec: &HorizontalPodAutoscalerSpec, from: i32, to: i32, now: Timestamp) {
        let Some(behavior) = &spec.behavior else { return };
        let (changes, rules) = if to > from {
            (&mut self.ups, &behavior.scale_up)
        } else {
            (&mut self.downs, &behavior.scale_down)
        };
        let longest = policies(rules.as_ref()).map(|policy| policy.1).max().unwrap_or(0);
        changes.retain(|(_, at)| is_within(*at, longest, now));
        changes.push((from.abs_diff(to).try_into().unwrap_or(i32::MAX), now));
    }

    /// Limits the metrics' replica count.
    pub(super) fn allow(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        wanted: i32,
        now: Timestamp,
    ) -> Allowed {
        let least = spec.min_replicas.unwrap_or(1);
        let (up, down) = match &spec.behavior {
            None => (None, None),
            Some(behavior) => (behavior.scale_up.as_ref(), behavior.scale_down.as_ref()),
        };
        let window = |rules: Option<&HPAScalingRules>, default| {
            rules
                .and_then(|rules| rules.stabilization_window_seconds)
                .unwrap_or(default)
        };
        let (slow_up, slow_down) = (window(up, 0), window(down, DOWNSCALE_WINDOW));
        let stable = self.stabilize(
            current,
            wanted,
            spec.behavior.is_some().then_some(slow_up),
            slow_down,
            now,
        );
        let able = match stable == wanted {
            true => READY,
            false if spec.behavior.is_some() && wanted >= current => UP,
            false => DOWN,
        };
        let (replicas, why) = match &spec.behavior {
            None => within(current, stable, least, spec.max_replicas),
            Some(_) => self.within_rates(current, stable, (least, spec.max_replicas), (up, down), now),
        };
        Allowed {
            replicas,
            able,
            limited: (replicas != stable, why.0, why.1),
        }
    }

    /// The highest recommendation in the window for scaling down, and the lowest in the window for
    /// scaling up (`stabilizeRecommendation`, `stabilizeRecommendationWithBehaviors`).
    fn stabilize(&mut self, current: i32, wanted: i32, up: Option<i32>, down: i32, now: Timestamp) -> i32 {
        let recent = |seconds: i32| {
            let kept = self
                .recommendations
                .iter()
                .filter(move |(_, at)| is_within(*at, seconds, now));
            kept.map(|(replicas, _)| *replicas).chain([wanted])
        };
        let highest = recent(down).max().unwrap_or(wanted);
        let stable = match up {
            None => highest,
            Some(up) => {
                let lowest = recent(up).min().unwrap_or(wanted);
                current.max(lowest).min(highest)
            }
        };
        let longest = down.max(up.unwrap_or(0));
        self.recommendations.retain(|(_, at)| is_within(*at, longest, now));
        self.recommendations.push((wanted, now));
        stable
    }

    /// (`convertDesiredReplicasWithBehaviorRate`)
    fn within_rates(
        &self,
        current: i32,
        wanted: i32,
        (least, most): (i32, i32),
        (up, down): (Option<&HPAScalingRules>, Option<&HPAScalingRules>),
        now: Timestamp,
    ) -> (i32, (&'static str, &'static str)) {
        if wanted > current {
            let limit = self.limit(up, current, true, now).max(current);
            let (bound, why) = if most > limit {
                (limit, TOO_FAST_UP)
            } else {
                (most, TOO_MANY)
            };
            if wanted > bound {
                return (bound, why);
            }
        } else if wanted < current {
            let limit = self.limit(down, current, false, now).min(current);
            let (bound, why) = if least < limit {
                (limit, TOO_FAST_DOWN)
            } else {
                (least, TOO_FEW)
            };
            if wanted < bound {
                return (bound, why);
            }
        }
        (wanted, IN_RANGE)
    }

    /// Replica count that the policies allow to reach from `current`
    /// (`calculateScaleUpLimitWithScalingRules`, `calculateScaleDownLimitWithBehaviors`).
    fn limit(&self, rules: Option<&HPAScalingRules>, current: i32, up: bool, now: Timestamp) -> i32 {
        let select = rules.and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let changed = |changes: &[(i32, Timestamp)], seconds: i32| -> i32 {
            let counted = changes.iter().filter(|(_, at)| is_within(*at, seconds, now));
            counted.map(|(change, _)| *change).fold(0, i32::saturating_add)
        };
        let proposals = policies(rules).map(|(kind, seconds, value)| {
            let (added, removed) = (changed(&self.ups, seconds), changed(&self.downs, seconds));
            let start = i64::from(current) - i64::from(added) + i64::from(removed);
            let value = i64::from(value);
            let proposed = match (kind, up) {
                ("Pods", true) => start + value,
                ("Pods", false) => start - value,
                (_, true) => (start * (100 + value) + 99) / 100,
                (_, false) => start * (100 - value) / 100,
            };
            let proposed = proposed.clamp(i32::MIN.into(), i32::MAX.into());
            i32::try_from(proposed).unwrap_or(current)
        });
        // The largest change is the highest count when scaling up and the lowest when scaling down.
        let found = if (select == "Min") == up {
            proposals.min()
        } else {
            proposals.max()
        };
        found.unwrap_or(current)
    }
}

/// Kind, seconds and value.
fn policies(rules: Option<&HPAScalingRules>) -> impl Iterator<Item = (&str, i32, i32)> {
    let policies = rules.into_iter().flat_map(|rules| rules.policies.iter().flatten());
    policies.map(|policy| (policy.type_.as_str(), policy.period_seconds, policy.value))
}

fn is_within(at: Timestamp, seconds: i32, now: Timestamp) -> bool {
    now.duration_since(at) < SignedDuration::from_secs(seconds.into())
}

/// (`convertDesiredReplicasWithRules`) At most double the size, or four.
fn within(current: i32, wanted: i32, least: i32, most: i32) -> (i32, (&'static str, &'static str)) {
    let limit = current.saturating_mul(2).max(4);
    let (bound, why) = if most > limit {
        (limit, TOO_FAST_UP)
    } else {
        (most, TOO_MANY)
    };
    if wanted < least {
        (least, TOO_FEW)
    } else if wanted > bound {
        (bound, why)
    } else {
        (wanted, IN_RANGE)
    }
}
