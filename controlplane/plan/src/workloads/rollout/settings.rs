//! The Deployment's spec, parsed once; `surge + unavailable ≥ 1` holds by construction.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Deployment strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// All old pods are deleted first.
    Recreate,
    /// Limits in pods.
    RollingUpdate {
        /// Pods above `replicas`.
        surge: i32,
        /// Pods that may be unavailable.
        unavailable: i32,
    },
}

/// Fields of the Deployment's spec, with defaults applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Desired number of pods.
    pub replicas: i32,
    /// Selector of the pods.
    pub selector: LabelSelector,
    /// Update strategy.
    pub strategy: Strategy,
    /// True if updates are paused.
    pub paused: bool,
    /// Progress deadline; `None` for never.
    pub deadline: Option<Duration>,
    /// Number of old ReplicaSets to keep; `None` for all.
    pub history: Option<usize>,
    /// Seconds that a pod must be ready to count as available.
    pub min_ready_seconds: i32,
}

impl Settings {
    /// Reads the spec; `None` if it is missing or its selector is empty.
    pub fn of(deployment: &Deployment) -> Option<Self> {
        let spec = deployment.spec.as_ref()?;
        let empty = spec
            .selector
            .match_labels
            .as_ref()
            .is_none_or(std::collections::BTreeMap::is_empty)
            && spec.selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
        if empty {
            return None;
        }
        let replicas = spec.replicas.unwrap_or(1).max(0);
        let strategy = match spec.strategy.as_ref() {
            Some(strategy) if strategy.type_.as_deref() == Some("Recreate") => Strategy::Recreate,
            other => {
                let rolling = other.and_then(|strategy| strategy.rolling_update.as_ref());
                bounds(
                    rolling.and_then(|rolling| rolling.max_surge.as_ref()),
                    rolling.and_then(|rolling| rolling.max_unavailable.as_ref()),
                    replicas,
                )
            }
        };
        let unlimited = |seconds: &i32| *seconds != i32::MAX;
        Some(Self {
            replicas,
            selector: spec.selector.clone(),
            strategy,
            paused: spec.paused.unwrap_or(false),
            deadline: Some(spec.progress_deadline_seconds.unwrap_or(600))
                .filter(unlimited)
                .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
            history: Some(spec.revision_history_limit.unwrap_or(10))
                .filter(unlimited)
                .map(|limit| usize::try_from(limit).unwrap_or(0)),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0),
        })
    }

    /// Number of pods allowed above `replicas`.
    pub fn surge(&self) -> i32 {
        match self.strategy {
            Strategy::Recreate => 0,
            Strategy::RollingUpdate { surge, .. } => surge,
        }
    }

    /// Number of pods that may be unavailable, at most all.
    pub fn unavailable(&self) -> i32 {
        match self.strategy {
            Strategy::Recreate => 0,
            Strategy::RollingUpdate { unavailable, .. } => unavailable.min(self.replicas),
        }
    }
}

/// Percentages of `replicas`: `maxSurge` rounds up, `maxUnavailable` rounds down, and at least one
/// of them must not be zero.
fn bounds(surge: Option<&IntOrString>, unavailable: Option<&IntOrString>, replicas: i32) -> Strategy {
    let quarter = IntOrString::String("25%".to_owned());
    let surge = scaled(surge.unwrap_or(&quarter), replicas, true);
    let unavailable = scaled(unavailable.unwrap_or(&quarter), replicas, false);
    Strategy::RollingUpdate {
        surge,
        unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable },
    }
}

/// An absolute number, or a percentage of `total`.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(count) => (*count).max(0),
        IntOrString::String(text) => {
            let percent = text.trim_end_matches('%').parse::<i64>().unwrap_or(0).max(0);
            let product = percent.saturating_mul(i64::from(total));
            let share = if round_up {
                product.saturating_add(99) / 100
            } else {
                product / 100
            };
            i32::try_from(share).unwrap_or(i32::MAX)
        }
    }
}
