//! Horizontal pod autoscaling: the replica count for the measured load, within limits
//! (`pkg/controller/podautoscaler`).
//!
//! 1. [`begin`] reads the target's scale: it may decide at once, or ask for the metrics.
//! 2. [`Round::measured`] computes a replica count from the metrics and keeps it within the limits.
//! 3. [`Round::end`] returns the new status.

mod limits;
mod replicas;
mod sources;
#[cfg(test)]
mod tests;

use api::quantity::Quantity;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::jiff::Timestamp;

pub use self::limits::Memory;
use self::replicas::Tolerances;
pub use self::replicas::{Sample, Samples, Unknown};
pub use self::sources::Source;
use self::sources::{Proposed, Scaled};
use crate::objects::{seconds, target};
use crate::pod::Pod;
use crate::step::{AUTOSCALERS, Note, Severity, Target};

/// Default tolerance of the load's ratio to its target, in thousandths.
const TOLERANCE: i64 = 100;

/// The scale of the target.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// `spec.replicas` of the target.
    pub wanted: i32,
    /// `status.replicas` of the target.
    pub existing: i32,
}

/// A sync of an autoscaler with its target's scale.
#[derive(Debug)]
pub struct Round<'a> {
    spec: &'a HorizontalPodAutoscalerSpec,
    status: HorizontalPodAutoscalerStatus,
    about: Target,
    current: i32,
    existing: i32,
    now: Timestamp,
    /// Events about the autoscaler.
    pub notes: Vec<Note>,
    /// New replica count of the target and the reason for it, if it is to change.
    pub rescale: Option<(i32, String)>,
}

/// Value of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measure {
    /// Samples of the pods.
    Samples(Samples),
    /// One value, in thousandths: that of an object, or the sum of an external metric.
    Value(i64),
}

/// Result of fetching a metric.
pub type Measured = Result<Measure, Unknown>;

/// Reason why a target's selector is refused.
#[derive(Debug)]
pub enum Unfit<'a> {
    /// The scale has none.
    Missing,
    /// It cannot be parsed.
    Invalid(String),
    /// The selector, and all autoscalers that control the pods it selects, as `namespace/name`.
    Ambiguous(&'a str, Vec<String>),
}

/// Outcome of the first part of a sync.
#[derive(Debug)]
pub enum Next<'a> {
    /// The replica count depends on the metrics.
    Measure(Round<'a>),
    /// The replica count is known without metrics.
    Decided(Round<'a>),
}

/// Begins with the target's scale, or with the reason why there is none.
pub fn begin<'a>(
    autoscaler: &'a HorizontalPodAutoscaler,
    scale: Result<Scale, &str>,
    memory: &mut Memory,
    now: Timestamp,
) -> Next<'a> {
    let spec = &autoscaler.spec;
    let about = target(AUTOSCALERS, autoscaler);
    let mut round = Round {
        spec,
        status: autoscaler.status.clone().unwrap_or_default(),
        about,
        current: 0,
        existing: 0,
        now,
        notes: Vec::new(),
        rescale: None,
    };
    let scale = match scale {
        Ok(scale) => scale,
        Err(error) => {
            round.note(Severity::Warning, "FailedGetScale", error.to_owned());
            let message = format!("the HPA controller was unable to get the target's current scale: {error}");
            round.condition("AbleToScale", false, "FailedGetScale", message);
            return Next::Decided(round);
        }
    };
    (round.current, round.existing) = (scale.wanted, scale.existing);
    let message = "the HPA controller was able to get the target's current scale";
    round.condition("AbleToScale", true, "SucceededGetScale", message);
    memory.begin(round.current, now);
    let least = spec.min_replicas.unwrap_or(1);
    if round.current == 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        round.condition("ScalingActive", false, "ScalingDisabled", message);
    } else if round.current > spec.max_replicas {
        let why = "Current number of replicas above Spec.MaxReplicas".to_owned();
        round.rescale = Some((spec.max_replicas, why));
    } else if round.current < least {
        let why = "Current number of replicas below Spec.MinReplicas".to_owned();
        round.rescale = Some((least, why));
    } else {
        return Next::Measure(round);
    }
    round.sizes(None);
    round.keeps_size();
    Next::Decided(round)
}

impl Round<'_> {
    /// Refuses a target whose selector is missing or invalid, or selects pods that another
    /// autoscaler controls, too (`validateAndParseSelector`).
    #[must_use]
    pub fn unselected(mut self, unfit: &Unfit<'_>) -> Self {
        let (event, reason) = match unfit {
            Unfit::Missing => ("SelectorRequired", "InvalidSelector"),
            Unfit::Invalid(_) => ("InvalidSelector", "InvalidSelector"),
            Unfit::Ambiguous(..) => ("AmbiguousSelector", "AmbiguousSelector"),
        };
        let error = match unfit {
            Unfit::Missing => "selector is required".to_owned(),
            Unfit::Invalid(error) => {
                format!("couldn't convert selector into a corresponding internal selector object: {error}")
            }
            Unfit::Ambiguous(selector, all) => {
                let all = all.join(" ");
                format!("pods by selector {selector} are controlled by multiple HPAs: [{all}]")
            }
        };
        self.note(Severity::Warning, event, error.clone());
        let message = match unfit {
            Unfit::Missing => "the HPA target's scale is missing a selector",
            Unfit::Invalid(_) | Unfit::Ambiguous(..) => error.as_str(),
        };
        self.condition("ScalingActive", false, reason, message);
        self.sizes(None);
        self.note(Severity::Warning, "FailedComputeMetricsReplicas", error);
        self
    }

    /// Decides on the metrics' results, one for each metric.
    #[must_use]
    pub fn measured(mut self, measured: Vec<Measured>, pods: &[&Pod], memory: &mut Memory) -> Self {
        let metrics = self.spec.metrics.as_deref().unwrap_or_default();
        let namespace = self.about.namespace.clone();
        let target = Scaled {
            namespace: &namespace,
            wanted: self.current,
            existing: self.existing,
            pods,
            tolerances: self.tolerances(),
            now: self.now,
        };
        let (mut statuses, mut best, mut failed) = (Vec::new(), None::<(i32, String)>, Vec::new());
        for (metric, measured) in metrics.iter().zip(measured) {
            match sources::propose(&target, metric, measured) {
                Ok(Proposed { replicas, name, status }) => {
                    if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                        best = Some((replicas, name));
                    }
                    statuses.push(status);
                }
                Err(failure) => {
                    self.note(Severity::Warning, failure.reason, failure.error.clone());
                    statuses.push(MetricStatus::default());
                    failed.push(failure);
                }
            }
        }
        let shrinks = best.as_ref().is_some_and(|(replicas, _)| *replicas < self.current);
        if let Some(first) = failed.first()
            && (failed.len() >= metrics.len() || shrinks)
        {
            let message = format!("the HPA was unable to compute the replica count: {}", first.error);
            self.condition("ScalingActive", false, first.reason, message);
            self.sizes(Some(statuses));
            let (count, all, what) = (failed.len(), metrics.len(), &first.what);
            let error = format!(
                "invalid metrics ({count} invalid out of {all}), first error is: {what}: {}",
                first.error
            );
            self.note(Severity::Warning, "FailedComputeMetricsReplicas", error);
            return self;
        }
        let (wanted, name) = best.unwrap_or_default();
        let message = format!("the HPA was able to successfully calculate a replica count from {name}");
        self.condition("ScalingActive", true, "ValidMetricFound", message);
        let why = match wanted.cmp(&self.current) {
            std::cmp::Ordering::Greater => format!("{name} above target"),
            std::cmp::Ordering::Less => "All metrics below target".to_owned(),
            std::cmp::Ordering::Equal => String::new(),
        };
        let allowed = memory.allow(self.spec, self.current, wanted, self.now);
        self.condition("AbleToScale", true, allowed.able.0, allowed.able.1);
        let (limited, reason, message) = allowed.limited;
        self.condition("ScalingLimited", limited, reason, message);
        self.rescale = (allowed.replicas != self.current).then_some((allowed.replicas, why));
        self.sizes(Some(statuses));
        self.keeps_size();
        self
    }

    /// Records whether the target was scaled.
    pub fn rescaled(&mut self, result: Result<(), &str>, memory: &mut Memory) {
        let Some((replicas, why)) = self.rescale.take() else {
            return;
        };
        match result {
            Ok(()) => {
                let message = format!("the HPA controller was able to update the target scale to {replicas}");
                self.condition("AbleToScale", true, "SucceededRescale", message);
                self.note(
                    Severity::Normal,
                    "SuccessfulRescale",
                    format!("New size: {replicas}; reason: {why}"),
                );
                memory.scaled(self.spec, self.current, replicas, self.now);
                self.status.desired_replicas = replicas;
                self.status.last_scale_time = Some(seconds(self.now));
            }
            Err(error) => {
                let message = format!("New size: {replicas}; reason: {why}; error: {error}");
                self.note(Severity::Warning, "FailedRescale", message);
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                self.condition("AbleToScale", false, "FailedUpdateScale", message);
            }
        }
    }

    /// Returns the new status.
    pub fn end(self) -> HorizontalPodAutoscalerStatus {
        self.status
    }

    fn note(&mut self, severity: Severity, reason: &'static str, message: String) {
        self.notes.push(self.about.note(severity, reason, message));
    }

    /// Sets a condition; its transition time changes only with its status.
    fn condition(&mut self, kind: &str, status: bool, reason: &str, message: impl Into<String>) {
        let conditions = self.status.conditions.get_or_insert_default();
        let status = if status { "True" } else { "False" };
        let old = conditions.iter().position(|condition| condition.type_ == kind);
        let since = old
            .and_then(|index| conditions.get(index))
            .filter(|old| old.status == status);
        let condition = HorizontalPodAutoscalerCondition {
            last_transition_time: since.map_or_else(|| Some(seconds(self.now)), |old| old.last_transition_time.clone()),
            message: Some(message.into()),
            reason: Some(reason.to_owned()),
            status: status.to_owned(),
            type_: kind.to_owned(),
        };
        match old.and_then(|index| conditions.get_mut(index)) {
            Some(old) => *old = condition,
            None => conditions.push(condition),
        }
    }

    fn sizes(&mut self, metrics: Option<Vec<MetricStatus>>) {
        self.status.current_replicas = Some(self.current);
        self.status.current_metrics = metrics;
    }

    /// Records that the current size is right, if it is (`reconcileAutoscaler`).
    fn keeps_size(&mut self) {
        if self.rescale.is_none() {
            self.status.desired_replicas = self.current;
        }
    }

    fn tolerances(&self) -> Tolerances {
        let behavior = self.spec.behavior.as_ref();
        let own = |rules: Option<&HPAScalingRules>| {
            let tolerance = rules.and_then(|rules| rules.tolerance.as_ref());
            tolerance.map_or(TOLERANCE, |tolerance| Quantity::of(tolerance).milli())
        };
        Tolerances {
            down: own(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
            up: own(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        }
    }
}
