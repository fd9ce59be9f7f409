//! Horizontal pod autoscaling: the replica count for the measured load, within limits
//! (`pkg/controller/podautoscaler`).
//!
//! 1. [`begin`] reads the target's scale: it may decide at once, or ask for the metrics.
//! 2. [`Round::measured`] computes a replica count from the metrics and keeps it within the limits.
//! 3. [`Round::end`] returns the new status.

mod limits;
mod replicas;
#[cfg(test)]
mod tests;

use std::fmt;

use api::quantity::Quantity;
use k8s_openapi::{
    api::autoscaling::v2::{
        ContainerResourceMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
        HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricIdentifier, MetricSpec, MetricStatus,
        MetricTarget, MetricValueStatus, ResourceMetricStatus,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
    jiff::Timestamp,
};

use crate::objects::{seconds, target};
use crate::pod::Pod;
use crate::step::{AUTOSCALERS, Note, Severity, Target};
use crate::workloads::pod_template::note;
pub use limits::Memory;
use replicas::{Goal, Metric, Proposal, Tolerances};
pub use replicas::{Sample, Samples, Unknown};

/// Default tolerance of the load's ratio to its target, in thousandths.
const TOLERANCE: i64 = 100;

/// The scale of the target.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// `spec.replicas` of the target.
    pub wanted: i32,
}

/// A sync of an autoscaler with its target's scale.
#[derive(Debug)]
pub struct Round<'a> {
    spec: &'a HorizontalPodAutoscalerSpec,
    status: HorizontalPodAutoscalerStatus,
    about: Target,
    current: i32,
    now: Timestamp,
    /// Events about the autoscaler.
    pub notes: Vec<Note>,
    /// New replica count of the target and the reason for it, if it is to change.
    pub rescale: Option<(i32, String)>,
}

/// Result of a metric: samples of the pods, for the two kinds of metrics that are served.
pub type Measured = Result<Samples, Unknown>;

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
    round.current = scale.wanted;
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
    /// Refuses a target without a selector.
    #[must_use]
    pub fn unselected(mut self) -> Self {
        let error = "selector is required";
        self.note(Severity::Warning, "SelectorRequired", error.to_owned());
        let message = "the HPA target's scale is missing a selector";
        self.condition("ScalingActive", false, "InvalidSelector", message);
        self.sizes(None);
        self.note(Severity::Warning, "FailedComputeMetricsReplicas", error.to_owned());
        self
    }

    /// Decides on the metrics' results, one for each metric.
    #[must_use]
    pub fn measured(mut self, measured: Vec<Measured>, pods: &[&Pod], memory: &mut Memory) -> Self {
        let metrics = self.spec.metrics.as_deref().unwrap_or_default();
        let (mut statuses, mut best, mut failed) = (Vec::new(), None::<(i32, String)>, Vec::new());
        for (metric, measured) in metrics.iter().zip(measured) {
            match self.propose(metric, measured, pods) {
                Ok((replicas, name, status)) => {
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
        self.notes.push(note(&self.about, severity, reason, message));
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

    fn propose(
        &self,
        metric: &MetricSpec,
        measured: Measured,
        pods: &[&Pod],
    ) -> Result<(i32, String, MetricStatus), Failed> {
        let source = Source::of(metric).ok_or_else(|| self.unserved(metric))?;
        let Source {
            resource,
            container,
            target,
        } = source;
        let failed = |what: &str, error: &dyn fmt::Display| Failed {
            reason: if container.is_some() {
                "FailedGetContainerResourceMetric"
            } else {
                "FailedGetResourceMetric"
            },
            what: match container {
                Some(container) => format!("failed to get {container} container metric value"),
                None => format!("failed to get {resource} resource metric value"),
            },
            error: format!("failed to get {resource} {what}: {error}"),
        };
        let (goal, what) = match (&target.average_value, target.average_utilization) {
            (Some(average), _) => (Goal::Average(Quantity::of(average).milli()), "usage"),
            (None, Some(percent)) => (Goal::Utilization(percent), "utilization"),
            (None, None) => (Goal::Utilization(0), "utilization"),
        };
        let metric = Metric {
            resource,
            container,
            goal,
            tolerances: self.tolerances(),
        };
        let samples = measured
            .map_err(|error| failed(what, &format!("unable to get metrics for resource {resource}: {error}")))?;
        let proposal = metric
            .propose(self.current, pods, samples, self.now)
            .map_err(|error| failed(what, &error))?;
        let name = match goal {
            Goal::Average(_) => format!("{resource} resource"),
            Goal::Utilization(_) if container.is_some() => {
                format!("{resource} container resource utilization (percentage of request)")
            }
            Goal::Utilization(_) => format!("{resource} resource utilization (percentage of request)"),
        };
        Ok((proposal.replicas, name, source.status(proposal)))
    }

    fn tolerances(&self) -> Tolerances {
        let behavior = self.spec.behavior.as_ref();
        let own = |rules: Option<&k8s_openapi::api::autoscaling::v2::HPAScalingRules>| {
            let tolerance = rules.and_then(|rules| rules.tolerance.as_ref());
            tolerance.map_or(TOLERANCE, |tolerance| Quantity::of(tolerance).milli())
        };
        Tolerances {
            down: own(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
            up: own(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        }
    }

    /// Metrics of APIs that are not served here, with the message of a client that does not find
    /// them.
    fn unserved(&self, metric: &MetricSpec) -> Failed {
        const CUSTOM: &str =
            "unable to fetch metrics from custom metrics API: no known available metric versions found";
        if let Some(object) = &metric.object {
            let (name, described) = (&object.metric.name, &object.described_object);
            // The order is upstream's (`GetObjectMetricReplicas` of `replica_calculator.go`).
            let of = format!("{} on {} {}", described.kind, self.about.namespace, described.name);
            return Failed {
                reason: "FailedGetObjectMetric",
                what: "failed to get object metric value".to_owned(),
                error: format!("unable to get metric {name}: {of}/{CUSTOM}"),
            };
        }
        if let Some(external) = &metric.external {
            let MetricIdentifier { name, selector } = &external.metric;
            let missing =
                format!("the server could not find the requested resource (get {name}.external.metrics.k8s.io)");
            let about = format!("{}/{name}/{}", self.about.namespace, shown(selector.as_ref()));
            return Failed {
                reason: "FailedGetExternalMetric",
                what: format!("failed to get {name} external metric value"),
                error: format!(
                    "unable to get external metric {about}: unable to fetch metrics from external metrics API: {missing}"
                ),
            };
        }
        let name = metric.pods.as_ref().map_or("", |pods| pods.metric.name.as_str());
        Failed {
            reason: "FailedGetPodsMetric",
            what: "failed to get pods metric value".to_owned(),
            error: format!("unable to get metric {name}: {CUSTOM}"),
        }
    }
}

/// A metric without a result.
struct Failed {
    reason: &'static str,
    what: String,
    error: String,
}

/// A metric of the resource API.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// `cpu` or `memory`.
    pub resource: &'a str,
    /// Container that is measured; `None` for all.
    pub container: Option<&'a str>,
    target: &'a MetricTarget,
}

impl<'a> Source<'a> {
    /// `None` for a metric of another API.
    pub fn of(metric: &'a MetricSpec) -> Option<Self> {
        let resource = metric
            .resource
            .as_ref()
            .map(|source| (&source.name, None, &source.target));
        let container = metric.container_resource.as_ref();
        let container = container.map(|source| (&source.name, Some(&source.container), &source.target));
        let (resource, container, target) = resource.or(container)?;
        Some(Self {
            resource,
            container: container.map(String::as_str),
            target,
        })
    }

    fn status(self, proposal: Proposal) -> MetricStatus {
        let average = if self.resource == "memory" && proposal.average % 1000 == 0 {
            Quantity::bytes(proposal.average / 1000)
        } else {
            Quantity::from_milli(proposal.average)
        };
        let current = MetricValueStatus {
            average_utilization: proposal.utilization,
            average_value: Some(average.to_text()),
            value: None,
        };
        let name = self.resource.to_owned();
        match self.container {
            Some(container) => MetricStatus {
                type_: "ContainerResource".to_owned(),
                container_resource: Some(ContainerResourceMetricStatus {
                    container: container.to_owned(),
                    current,
                    name,
                }),
                ..MetricStatus::default()
            },
            None => MetricStatus {
                type_: "Resource".to_owned(),
                resource: Some(ResourceMetricStatus { current, name }),
                ..MetricStatus::default()
            },
        }
    }
}

/// Formats a selector like Go.
fn shown(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "nil".to_owned();
    };
    let labels = selector.match_labels.iter().flatten();
    let labels = labels
        .map(|(key, value)| format!("{key}: {value},"))
        .collect::<Vec<_>>()
        .concat();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{}},}}"
    )
}
