//! Sources of metrics: the replica count that each asks for, and how its result and its failures
//! are reported (`computeReplicasForMetric` of `pkg/controller/podautoscaler/horizontal.go`).

use std::fmt;

use api::quantity::Quantity;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricSource, ExternalMetricStatus, MetricIdentifier, MetricSpec,
    MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricSource, ObjectMetricStatus, PodsMetricSource,
    PodsMetricStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::jiff::Timestamp;

use super::replicas::{Goal, Metric, Proposal, Ratio, Tolerances, Unknown};
use super::{Measure, Measured};
use crate::objects::printed;
use crate::pod::{Pod, is_ready, phase};

/// The target with its pods.
pub(super) struct Scaled<'a> {
    pub(super) namespace: &'a str,
    /// `spec.replicas`.
    pub(super) wanted: i32,
    /// `status.replicas`.
    pub(super) existing: i32,
    pub(super) pods: &'a [&'a Pod],
    pub(super) tolerances: Tolerances,
    pub(super) now: Timestamp,
}

/// Replica count for a metric.
pub(super) struct Proposed {
    pub(super) replicas: i32,
    /// Name of the metric in reasons.
    pub(super) name: String,
    pub(super) status: MetricStatus,
}

/// A metric without a result.
pub(super) struct Failed {
    /// Reason of the event and of the condition.
    pub(super) reason: &'static str,
    /// Words before the error where several metrics are summed up.
    pub(super) what: String,
    pub(super) error: String,
}

/// Returns the replica count that a metric asks for.
pub(super) fn propose(target: &Scaled<'_>, metric: &MetricSpec, measured: Measured) -> Result<Proposed, Failed> {
    if let Some(source) = Source::of(metric) {
        return source.propose(target, measured);
    }
    if let Some(source) = &metric.pods {
        return of_pods(target, source, measured);
    }
    if let Some(source) = &metric.object {
        return of_object(target, source, measured);
    }
    if let Some(source) = &metric.external {
        return of_external(target, source, measured);
    }
    let error = format!("unknown metric source type {:?}", metric.type_);
    Err(Failed {
        reason: "InvalidMetricSourceType",
        what: error.clone(),
        error,
    })
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

    fn propose(self, target: &Scaled<'_>, measured: Measured) -> Result<Proposed, Failed> {
        let Self {
            resource, container, ..
        } = self;
        let (goal, what) = match (&self.target.average_value, self.target.average_utilization) {
            (Some(average), _) => (Goal::Average(Quantity::of(average).milli()), "usage"),
            (None, Some(percent)) => (Goal::Utilization(percent), "utilization"),
            (None, None) => (Goal::Utilization(0), "utilization"),
        };
        let failed = |error: &dyn fmt::Display| Failed {
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
        let metric = Metric {
            resource,
            container,
            goal,
            tolerances: target.tolerances,
        };
        let samples = measured
            .map_err(|error| failed(&format!("unable to get metrics for resource {resource}: {error}")))?
            .samples();
        let proposal = metric
            .propose(target.wanted, target.pods, samples, target.now)
            .map_err(|error| failed(&error))?;
        let name = match goal {
            Goal::Average(_) => format!("{resource} resource"),
            Goal::Utilization(_) if container.is_some() => {
                format!("{resource} container resource utilization (percentage of request)")
            }
            Goal::Utilization(_) => format!("{resource} resource utilization (percentage of request)"),
        };
        Ok(Proposed {
            replicas: proposal.replicas,
            name,
            status: self.status(proposal),
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

/// `GetMetricReplicas` of `pkg/controller/podautoscaler/replica_calculator.go`.
fn of_pods(target: &Scaled<'_>, source: &PodsMetricSource, measured: Measured) -> Result<Proposed, Failed> {
    let name = &source.metric.name;
    let failed = |error: String| Failed {
        reason: "FailedGetPodsMetric",
        what: "failed to get pods metric value".to_owned(),
        error,
    };
    let samples = measured
        .map_err(|error| failed(format!("unable to get metric {name}: {error}")))?
        .samples();
    let metric = Metric {
        resource: "",
        container: None,
        goal: Goal::Average(milli(source.target.average_value.as_ref())),
        tolerances: target.tolerances,
    };
    let proposal = metric
        .propose(target.wanted, target.pods, samples, target.now)
        .map_err(|error| failed(error.to_string()))?;
    Ok(Proposed {
        replicas: proposal.replicas,
        name: format!("pods metric {name}"),
        status: MetricStatus {
            type_: "Pods".to_owned(),
            pods: Some(PodsMetricStatus {
                current: average(proposal.average),
                metric: source.metric.clone(),
            }),
            ..MetricStatus::default()
        },
    })
}

/// `GetObjectMetricReplicas` and `GetObjectPerPodMetricReplicas` of
/// `pkg/controller/podautoscaler/replica_calculator.go`.
fn of_object(target: &Scaled<'_>, source: &ObjectMetricSource, measured: Measured) -> Result<Proposed, Failed> {
    let (name, described) = (&source.metric.name, &source.described_object);
    let per_pod = source.target.average_value.is_some();
    let failed = |error: String| Failed {
        reason: "FailedGetObjectMetric",
        what: if per_pod {
            format!("failed to get object metric value: failed to get {name} object metric")
        } else {
            "failed to get object metric value".to_owned()
        },
        error,
    };
    // The order of the words is upstream's.
    let of = format!("{} on {} {}", described.kind, target.namespace, described.name);
    let measured = measured.map_err(|error| failed(format!("unable to get metric {name}: {of}/{error}")))?;
    let (replicas, current) = target
        .for_value(measured.value(), &source.target)
        .map_err(|error| failed(error.to_string()))?;
    Ok(Proposed {
        replicas,
        // Upstream's name of a metric per pod, whichever its source.
        name: if per_pod {
            external_name(&source.metric)
        } else {
            format!("{} metric {name}", described.kind)
        },
        status: MetricStatus {
            type_: "Object".to_owned(),
            object: Some(ObjectMetricStatus {
                current,
                described_object: described.clone(),
                metric: source.metric.clone(),
            }),
            ..MetricStatus::default()
        },
    })
}

/// `GetExternalMetricReplicas` and `GetExternalPerPodMetricReplicas` of
/// `pkg/controller/podautoscaler/replica_calculator.go`.
fn of_external(target: &Scaled<'_>, source: &ExternalMetricSource, measured: Measured) -> Result<Proposed, Failed> {
    let MetricIdentifier { name, selector } = &source.metric;
    let failed = |error: String| Failed {
        reason: "FailedGetExternalMetric",
        what: match source.target.average_value {
            Some(_) => format!("failed to get {name} external metric value: failed to get {name} external metric"),
            None => format!("failed to get {name} external metric value: failed to get external metric {name}"),
        },
        error,
    };
    let about = format!("{}/{name}/{}", target.namespace, printed(selector.as_ref()));
    let measured = measured.map_err(|error| failed(format!("unable to get external metric {about}: {error}")))?;
    let (replicas, current) = target
        .for_value(measured.value(), &source.target)
        .map_err(|error| failed(error.to_string()))?;
    Ok(Proposed {
        replicas,
        name: external_name(&source.metric),
        status: MetricStatus {
            type_: "External".to_owned(),
            external: Some(ExternalMetricStatus {
                current,
                metric: source.metric.clone(),
            }),
            ..MetricStatus::default()
        },
    })
}

impl Scaled<'_> {
    /// Replica count for one value, in thousandths: an average over all replicas, or a total that
    /// grows with the ready ones.
    fn for_value(&self, value: i64, goal: &MetricTarget) -> Result<(i32, MetricValueStatus), Unready> {
        let usage = i128::from(value);
        if let Some(text) = &goal.average_value {
            let goal = i128::from(milli(Some(text)));
            let existing = i128::from(self.existing);
            let keeps = existing > 0
                && Ratio {
                    usage,
                    goal: goal.saturating_mul(existing),
                }
                .is_within(self.tolerances);
            let replicas = if keeps {
                self.existing
            } else {
                Ratio { usage, goal }.times(1)
            };
            let existing = existing.max(1);
            let share = usage.saturating_add(existing - 1).div_euclid(existing);
            return Ok((replicas, average(i64::try_from(share).unwrap_or(i64::MAX))));
        }
        let goal = milli(goal.value.as_ref()).into();
        let current = MetricValueStatus {
            value: Some(Quantity::from_milli(value).to_text()),
            ..MetricValueStatus::default()
        };
        let ratio = Ratio { usage, goal };
        if ratio.is_within(self.tolerances) {
            return Ok((self.wanted, current));
        }
        if self.pods.is_empty() {
            return Err(Unready);
        }
        let ready = self.pods.iter().filter(|pod| phase(pod) == "Running" && is_ready(pod));
        Ok((ratio.times(ready.count()), current))
    }
}

/// No pods to count (`getUsageRatioReplicaCount`).
struct Unready;

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unable to calculate ready pods: {}", Unknown::NoPods)
    }
}

impl Measure {
    fn samples(self) -> super::Samples {
        match self {
            Self::Samples(samples) => samples,
            Self::Value(_) => super::Samples::new(),
        }
    }

    fn value(&self) -> i64 {
        match self {
            Self::Value(milli) => *milli,
            Self::Samples(_) => 0,
        }
    }
}

fn milli(text: Option<&Text>) -> i64 {
    text.map_or(0, |text| Quantity::of(text).milli())
}

fn average(milli: i64) -> MetricValueStatus {
    MetricValueStatus {
        average_value: Some(Quantity::from_milli(milli).to_text()),
        ..MetricValueStatus::default()
    }
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, printed(metric.selector.as_ref()))
}
