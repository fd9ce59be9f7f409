//! `NoExecute` taints: evictions and their times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::jiff::Timestamp;

use crate::node::departure::{Why, delete, mark};
use crate::objects::{Meta as _, target, uid};
use crate::placement::filters::tolerates;
use crate::pod::Pod;
use crate::step::{PODS, Plan, Severity, Step};

/// Reason of the events about evictions.
pub const EVICTED: &str = "TaintManagerEviction";

/// Pods whose eviction waits for the end of what they tolerate, by uid.
#[derive(Debug, Clone, Default)]
pub struct Scheduled(BTreeSet<String>);

/// First-seen times of `NoExecute` taints without `timeAdded` (those that other clients set), by
/// key and value, on a monotonic clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tainted(BTreeMap<(String, Option<String>), Duration>);

impl Tainted {
    /// Looks at the node: known taints keep their time, new ones get the current one.
    #[must_use]
    pub fn next(mut self, node: &Node, at: Duration) -> Self {
        let taints = driving(node).filter(|taint| taint.time_added.is_none());
        let seen = taints.map(|taint| {
            let name = (taint.key.clone(), taint.value.clone());
            let since = self.0.remove(&name).unwrap_or(at);
            (name, since)
        });
        Self(seen.collect())
    }

    fn since(&self, taint: &Taint) -> Option<Duration> {
        self.0.get(&(taint.key.clone(), taint.value.clone())).copied()
    }
}

/// The `NoExecute` taints of a node.
fn driving(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let taints = taints.unwrap_or_default().iter();
    taints.filter(|taint| taint.effect == "NoExecute")
}

/// The current time on both clocks.
#[derive(Clone, Copy)]
pub(super) struct Clock<'a> {
    pub(super) tainted: &'a Tainted,
    pub(super) at: Duration,
    pub(super) now: Timestamp,
}

impl Clock<'_> {
    /// Time that a taint has applied to a pod: not longer than the pod exists.
    fn borne(&self, taint: &Taint, pod: &Pod) -> Duration {
        let tainted = match &taint.time_added {
            Some(time) => self.past(time.0),
            None => self.at.saturating_sub(self.tainted.since(taint).unwrap_or(self.at)),
        };
        let age = pod.metadata.created.map(|created| self.past(created));
        age.map_or(tainted, |age| tainted.min(age))
    }

    fn past(&self, time: Timestamp) -> Duration {
        let seconds = self.now.as_second().saturating_sub(time.as_second());
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }
}

/// Adds the evictions that are due, the time of the next one, and events about those that will not be.
pub(super) fn plan(node: &Node, pods: &[&Pod], clock: Clock<'_>, scheduled: &mut Scheduled, plan: &mut Plan) {
    let taints: Vec<&Taint> = driving(node).collect();
    let before = std::mem::take(&mut scheduled.0);
    if taints.is_empty() && before.is_empty() {
        return;
    }
    let (mut marks, mut deletions, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for pod in pods.iter().filter(|pod| !pod.metadata.is_deleting()) {
        match stay(pod, &taints, clock) {
            None => events.extend(before.contains(uid(*pod)).then(|| cancel(pod))),
            Some(Duration::ZERO) => {
                let [mark, delete] = evict(pod, clock.now);
                marks.push(mark);
                deletions.push(delete);
            }
            Some(rest) => {
                scheduled.0.insert(uid(*pod).to_owned());
                plan.again(rest);
            }
        }
    }
    plan.stage(marks);
    plan.stage(deletions);
    plan.stage(events);
}

/// Event about a pod that stays after all (`cancelWorkWithEvent`, `pkg/controller/tainteviction/taint_eviction.go`).
fn cancel(pod: &Pod) -> Step {
    let (namespace, name) = (pod.metadata.namespace(), pod.metadata.name());
    Step::Event(target(PODS, pod).note(
        Severity::Normal,
        EVICTED,
        format!("Cancelling deletion of Pod {namespace}/{name}"),
    ))
}

/// Time that a pod may still stay; `None` for forever.
fn stay(pod: &Pod, taints: &[&Taint], clock: Clock<'_>) -> Option<Duration> {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let stays = taints.iter().map(|taint| {
        // The first that matches counts: `GetMatchingTolerations` of
        // `pkg/apis/core/v1/helper/helpers.go`.
        let Some(toleration) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Some(Duration::ZERO);
        };
        let seconds = toleration.toleration_seconds?;
        let borne = clock.borne(taint, pod);
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).saturating_sub(borne))
    });
    stays.flatten().min()
}

/// The `DisruptionTarget` condition and the deletion.
fn evict(pod: &Pod, now: Timestamp) -> [Step; 2] {
    let why = Why {
        reason: "DeletionByTaintManager",
        message: "Taint manager: deleting due to NoExecute taint",
        phase: None,
    };
    let (namespace, name) = (pod.metadata.namespace(), pod.metadata.name());
    let message = format!("Marking for deletion Pod {namespace}/{name}");
    [mark(pod, why, now), delete(pod, EVICTED, message)]
}
