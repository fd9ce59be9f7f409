//! Replica count for a measured load (`pkg/controller/podautoscaler/replica_calculator.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::pod;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::objects::Meta as _;
use crate::pod::{Pod, is_finished, phase};

/// Time after a pod's start in which its CPU usage counts only while it is ready.
const INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// A pod that became unready within this time from its start counts as never having been ready.
const INITIAL_READINESS: SignedDuration = SignedDuration::from_secs(30);

/// Usage of a pod or one of its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Thousandths of the resource's unit.
    pub milli: i64,
    /// The end of the window.
    pub at: Timestamp,
    /// Length of the window.
    pub window: SignedDuration,
}

/// Samples by the pods' names.
pub type Samples = BTreeMap<String, Sample>;

/// Reason why a metric gives no replica count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// The metrics could not be fetched.
    Fetch(String),
    /// The selector selects nothing.
    NoPods,
    /// None of the pods has a sample that counts.
    NoSamples,
    /// None of the samples belongs to the pods.
    NoMatch,
    /// A container, or a pod as a whole, has no request for the resource.
    NoRequest {
        /// The resource.
        resource: String,
        /// The container, unless the request is missing at the pod level.
        container: Option<String>,
        /// The pod's name.
        pod: String,
    },
    /// A pod has no such container.
    NoContainer {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
    },
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch(why) => f.write_str(why),
            Self::NoPods => f.write_str("no pods returned by selector while calculating replica count"),
            Self::NoSamples => f.write_str("did not receive metrics for targeted pods (pods might be unready)"),
            Self::NoMatch => f.write_str("no metrics returned matched known pods"),
            Self::NoRequest {
                resource,
                container: Some(container),
                pod,
            } => {
                write!(
                    f,
                    "missing request for {resource} in container {container} of Pod {pod}"
                )
            }
            Self::NoRequest {
                resource,
                container: None,
                pod,
            } => {
                write!(f, "missing pod-level request for {resource} in Pod {pod}")
            }
            Self::NoContainer { container, pod } => write!(f, "container {container} not found in Pod {pod}"),
        }
    }
}

/// Target of a metric.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// Percentage of the requests.
    Utilization(i32),
    /// Average per pod, in thousandths.
    Average(i64),
}

/// Deviations of the load from its target, in thousandths, that cause no scaling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerances {
    pub(super) down: i64,
    pub(super) up: i64,
}

/// Replica count and current value of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    pub(super) utilization: Option<i32>,
    pub(super) average: i64,
}

/// Ratio of a load to its target.
#[derive(Clone, Copy)]
pub(super) struct Ratio {
    pub(super) usage: i128,
    pub(super) goal: i128,
}

impl Ratio {
    pub(super) fn is_within(self, tolerances: Tolerances) -> bool {
        let [down, up] = [-tolerances.down, tolerances.up].map(|off| (i128::from(off) + 1000) * self.goal);
        (down..=up).contains(&(self.usage * 1000))
    }

    fn is_above(self) -> bool {
        self.usage > self.goal
    }

    fn is_below(self) -> bool {
        self.usage < self.goal
    }

    /// Replica count that reaches the target, if `pods` have this load.
    pub(super) fn times(self, pods: usize) -> i32 {
        let pods = i128::try_from(pods).unwrap_or(i128::MAX);
        let whole = self.usage.saturating_mul(pods);
        let up = whole.saturating_add(self.goal.max(1) - 1) / self.goal.max(1);
        i32::try_from(up).unwrap_or(i32::MAX)
    }
}

/// A metric of pods or of one container in each.
pub(super) struct Metric<'a> {
    /// Empty for a custom metric.
    pub(super) resource: &'a str,
    pub(super) container: Option<&'a str>,
    pub(super) goal: Goal,
    pub(super) tolerances: Tolerances,
}

#[derive(Default)]
struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

impl Metric<'_> {
    /// Replica count that the samples of `pods` ask for.
    pub(super) fn propose(
        &self,
        current: i32,
        pods: &[&Pod],
        mut samples: Samples,
        now: Timestamp,
    ) -> Result<Proposal, Unknown> {
        if pods.is_empty() {
            return Err(Unknown::NoPods);
        }
        let groups = self.group(pods, &samples, now);
        samples.retain(|pod, _| !groups.ignored.contains(pod) && !groups.unready.contains(pod));
        if samples.is_empty() {
            return Err(Unknown::NoSamples);
        }
        let mut usage: BTreeMap<String, i64> = samples.into_iter().map(|(pod, sample)| (pod, sample.milli)).collect();
        let requests = match self.goal {
            Goal::Utilization(_) => self.requests(pods)?,
            Goal::Average(_) => BTreeMap::new(),
        };
        let (ratio, utilization, average) = self.ratio(&usage, &requests)?;
        let proposal = |replicas| Proposal {
            replicas,
            utilization,
            average,
        };
        let add_unready = !groups.unready.is_empty() && ratio.is_above();
        if !add_unready && groups.missing.is_empty() {
            let keeps = ratio.is_within(self.tolerances);
            return Ok(proposal(if keeps { current } else { ratio.times(groups.ready) }));
        }
        // Pods without samples are assumed to damp the change.
        for pod in &groups.missing {
            if ratio.is_below() {
                usage.insert(pod.clone(), self.full(requests.get(pod)));
            } else if ratio.is_above() {
                usage.insert(pod.clone(), 0);
            }
        }
        if add_unready {
            usage.extend(groups.unready.iter().map(|pod| (pod.clone(), 0)));
        }
        let (again, ..) = self.ratio(&usage, &requests)?;
        let turns = (ratio.is_below() && again.is_above()) || (ratio.is_above() && again.is_below());
        let replicas = again.times(usage.len());
        let strays = (again.is_below() && replicas > current) || (again.is_above() && replicas < current);
        let keeps = again.is_within(self.tolerances) || turns || strays;
        Ok(proposal(if keeps { current } else { replicas }))
    }

    /// Usage that is assumed for a pod without a sample when scaling down.
    fn full(&self, request: Option<&i64>) -> i64 {
        match self.goal {
            Goal::Utilization(percent) => {
                let request = request.copied().unwrap_or(0);
                request.saturating_mul(i64::from(percent.max(100))) / 100
            }
            Goal::Average(milli) => milli,
        }
    }

    fn ratio(
        &self,
        usage: &BTreeMap<String, i64>,
        requests: &BTreeMap<String, i64>,
    ) -> Result<(Ratio, Option<i32>, i64), Unknown> {
        let average = |total: i128, count: usize| {
            let count = i128::try_from(count).unwrap_or(1).max(1);
            i64::try_from(total / count).unwrap_or(i64::MAX)
        };
        match self.goal {
            Goal::Average(milli) => {
                let total: i128 = usage.values().map(|milli| i128::from(*milli)).sum();
                let average = average(total, usage.len());
                let ratio = Ratio {
                    usage: average.into(),
                    goal: milli.into(),
                };
                Ok((ratio, None, average))
            }
            Goal::Utilization(percent) => {
                let both = usage
                    .iter()
                    .filter_map(|(pod, usage)| Some((*usage, *requests.get(pod)?)));
                let both: Vec<(i64, i64)> = both.collect();
                let used: i128 = both.iter().map(|(usage, _)| i128::from(*usage)).sum();
                let asked: i128 = both.iter().map(|(_, request)| i128::from(*request)).sum();
                if asked == 0 {
                    return Err(Unknown::NoMatch);
                }
                let utilization = i32::try_from(used * 100 / asked).unwrap_or(i32::MAX);
                let ratio = Ratio {
                    usage: utilization.into(),
                    goal: percent.into(),
                };
                Ok((ratio, Some(utilization), average(used, both.len())))
            }
        }
    }

    /// Sorts pods by whether their samples count (`groupPods`).
    fn group(&self, pods: &[&Pod], samples: &Samples, now: Timestamp) -> Groups {
        let mut groups = Groups::default();
        for pod in pods {
            let name = pod.metadata.name().to_owned();
            if pod.metadata.is_deleting() || is_finished(pod) {
                groups.ignored.insert(name);
                continue;
            }
            let Some(sample) = samples.get(&name).filter(|_| phase(pod) != "Pending") else {
                let group = if phase(pod) == "Pending" {
                    &mut groups.unready
                } else {
                    &mut groups.missing
                };
                group.insert(name);
                continue;
            };
            if self.resource == "cpu" && is_unready(pod, sample, now) {
                groups.unready.insert(name);
            } else {
                groups.ready = groups.ready.saturating_add(1);
            }
        }
        groups
    }

    /// Requests of the pods (`calculateRequests`).
    fn requests(&self, pods: &[&Pod]) -> Result<BTreeMap<String, i64>, Unknown> {
        let each = pods.iter().map(|pod| {
            let empty = PodSpec::default();
            let spec = pod.spec.as_deref().unwrap_or(&empty);
            let own = spec.resources.as_ref().and_then(|own| own.requests.as_ref());
            let request = if self.container.is_none() && own.is_some_and(|own| !own.is_empty()) {
                // What the runtime needs beside the containers is in no sample.
                let bare = PodSpec {
                    overhead: None,
                    ..spec.clone()
                };
                let request = pod::requests(&bare).get(self.resource).copied();
                request.map(Quantity::milli).ok_or_else(|| self.no_request(pod, None))
            } else {
                self.containers_request(pod, spec)
            };
            Ok((pod.metadata.name().to_owned(), request?))
        });
        each.collect()
    }

    fn containers_request(&self, pod: &Pod, spec: &PodSpec) -> Result<i64, Unknown> {
        let sidecars = spec.init_containers.iter().flatten().filter(|one| pod::is_sidecar(one));
        let containers = spec.containers.iter().chain(sidecars);
        let mut counted = containers
            .filter(|one| self.container.is_none_or(|name| name == one.name))
            .peekable();
        if let (None, Some(container)) = (counted.peek(), self.container) {
            let pod = pod.metadata.name().to_owned();
            return Err(Unknown::NoContainer {
                container: container.to_owned(),
                pod,
            });
        }
        let request = |one: &Container| {
            let own = one.resources.as_ref().and_then(|own| own.requests.as_ref());
            let own = own.and_then(|own| own.get(self.resource));
            own.map(|own| Quantity::of(own).milli())
                .ok_or_else(|| self.no_request(pod, Some(&one.name)))
        };
        counted.try_fold(0_i64, |sum, one| Ok(sum.saturating_add(request(one)?)))
    }

    fn no_request(&self, pod: &Pod, container: Option<&str>) -> Unknown {
        Unknown::NoRequest {
            resource: self.resource.to_owned(),
            container: container.map(str::to_owned),
            pod: pod.metadata.name().to_owned(),
        }
    }
}

fn is_unready(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let status = &pod.status;
    let since = status.ready_since.or(status.unready_since);
    let (Some(started), Some(since)) = (status.started, since) else {
        return true;
    };
    if now.duration_since(started) < INITIALIZATION {
        !status.ready || sample.at.duration_since(since) < sample.window
    } else {
        !status.ready && since.duration_since(started) < INITIAL_READINESS
    }
}
