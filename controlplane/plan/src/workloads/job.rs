//! Jobs: creates pods until enough have succeeded, each counted once
//! (`pkg/controller/job/job_controller.go`).
//!
//! A pod keeps the finalizer [`TRACKING`] until the status has counted it. A plan first evaluates
//! whether the Job ends (`finish`), then creates or deletes pods (`manage`), and counts finished
//! ones (`track`): the status lists a pod as uncounted, the finalizer is removed, and only when the
//! cache shows that, the pod moves from the list into the counters. An indexed Job needs no list of
//! succeeded pods: `completedIndexes` is one.

mod backoff;
mod finish;
mod indexes;
mod manage;
mod orphans;
mod policy;
#[cfg(test)]
mod tests;
mod track;
pub mod ttl;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::jiff::Timestamp;

use crate::objects::{Meta as _, matches, seconds, target, uid};
use crate::pod::Pod;
pub use crate::pod::attempt::{FAILURES, IGNORED_FAILURES, INDEX, TRACKING};
use crate::pod::{is_active, is_ready, phase};
use crate::step::{JOBS, PODS, Plan, Target};
use crate::workloads::claim::claim_with;
pub use crate::workloads::rollout::Failure;
pub use backoff::Backoff;
pub use indexes::Indexes;
pub use orphans::plan as plan_orphan;
pub use policy::action_on_failure;

/// Value of `managedBy` that stands for this controller.
const OWN: &str = "kubernetes.io/job-controller";

/// Input of the Job controller's plan.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The Job.
    pub job: &'a Job,
    /// Its pods and the namespace's pods without a manager.
    pub pods: &'a [&'a Pod],
    /// The server's last refusal to create a pod.
    pub failure: Option<&'a Failure>,
    /// Failures of its pods so far, including these.
    pub backoff: &'a Backoff,
}

/// Makes the plan.
pub fn plan(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let job = snapshot.job;
    let Some(spec) = job.spec.as_ref().filter(|spec| !is_external(spec) && !is_finished(job)) else {
        return plan;
    };
    let owner = target(JOBS, job);
    let deleted = job.metadata.deletion_timestamp.is_some();
    let selector = spec.selector.as_ref();
    let candidates = snapshot.pods.iter().copied();
    let claimed = claim_with(
        &owner,
        deleted,
        // That of a Job with `manualSelector` may be empty, and selects all pods then.
        |pod: &Pod| selector.is_some_and(|selector| matches(selector, pod.metadata.labels())),
        PODS,
        candidates,
        Some(TRACKING),
    );
    if !claimed.steps.is_empty() {
        plan.stage(claimed.steps);
        return plan;
    }
    // A Job keeps those that were counted, perhaps thousands; nothing below depends on them.
    let mut pods = claimed.owned;
    pods.retain(|pod| phase(pod) != "Succeeded" || is_tracked(pod));
    let mut sync = Sync::new(job, spec, owner, pods, now);
    sync.evaluate(&mut plan);
    let mut creations = Vec::new();
    if sync.finished.is_some() {
        let active = sync.delete_active();
        if !active.is_empty() {
            // Finalizers are removed, and the end is reported, once the cache shows the deletions.
            // Its reason is kept at once: pods that end meanwhile may no longer show it.
            plan.stage(active);
            if sync.tell_beginning_of_end() {
                plan.stage(vec![sync.patch(None)]);
            }
            return plan;
        }
    } else {
        let mut managed = false;
        if !deleted {
            let surplus = sync.remove_surplus();
            if surplus.iter().any(|stage| !stage.is_empty()) {
                for stage in surplus {
                    plan.stage(stage);
                }
                return plan;
            }
            creations = sync.add_missing(snapshot, &mut plan);
            managed = true;
        }
        sync.complete(managed, creations.len());
    }
    sync.track(creations, snapshot.failure, &mut plan);
    plan
}

/// True if another controller manages the Job.
pub fn is_external(spec: &JobSpec) -> bool {
    spec.managed_by.as_deref().is_some_and(|manager| manager != OWN)
}

/// True if the Job is complete or has failed.
pub fn is_finished(job: &Job) -> bool {
    end_of(job).is_some()
}

/// The condition that ended the Job.
pub fn end_of(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True")
}

/// True if each completion has its own index.
pub fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend == Some(true)
}

fn count(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

fn number(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

/// True if a terminating pod is replaced only after its end.
fn waits_for_end(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// True if the pod still has the tracking finalizer.
pub fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers().iter().any(|held| held == TRACKING)
}

fn index_of(pod: &Pod) -> Option<u32> {
    pod.attempt.as_ref()?.index
}

/// The pod's index, if it is below the number of completions.
fn index_in(spec: &JobSpec, pod: &Pod) -> Option<u32> {
    index_of(pod).filter(|index| *index < count(spec.completions))
}

/// True if the pod is to be counted: tracked, and with a valid index.
fn is_valid(spec: &JobSpec, pod: &Pod) -> bool {
    is_tracked(pod) && (!is_indexed(spec) || index_in(spec, pod).is_some())
}

/// A pod that is being deleted may never reach the phase: it counts as failed at once, unless the
/// Job waits for its end.
fn has_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pod.metadata.is_deleting() && !waits_for_end(spec),
    }
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.is_deleting() && !matches!(phase(pod), "Succeeded" | "Failed")
}

fn indexes_of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<u32> {
    pods.into_iter().filter_map(index_of).collect()
}

/// A sync of a Job and its pods.
struct Sync<'a> {
    job: &'a Job,
    spec: &'a JobSpec,
    owner: Target,
    /// Pods in the order of their indexes.
    pods: Vec<&'a Pod>,
    active: Vec<&'a Pod>,
    ready: usize,
    terminating: usize,
    /// Number of finished pods after all are counted.
    succeeded: u32,
    failed: u32,
    /// Succeeded indexes in the status, and actual ones.
    told: Indexes,
    completed: Indexes,
    /// Failed indexes, if there is a backoff limit per index.
    failed_indexes: Option<Indexes>,
    /// With a backoff limit per index: failed pods whose failure count a new pod will continue.
    replaced: BTreeMap<u32, &'a Pod>,
    /// The new status.
    status: JobStatus,
    /// The condition that ends the Job, now or earlier.
    finished: Option<JobCondition>,
    /// Reason of the event for the new status.
    event: Option<&'static str>,
    now: Timestamp,
}

impl<'a> Sync<'a> {
    fn new(job: &'a Job, spec: &'a JobSpec, owner: Target, mut pods: Vec<&'a Pod>, now: Timestamp) -> Self {
        if is_indexed(spec) {
            pods.sort_by_key(|pod| index_of(pod));
        }
        let active: Vec<&Pod> = pods.iter().copied().filter(|pod| is_active(pod)).collect();
        let mut status = job.status.clone().unwrap_or_default();
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let waiting = |list: &Option<Vec<String>>| list.iter().flatten().cloned().collect::<BTreeSet<String>>();
        let (succeeded, failed) = (waiting(&uncounted.succeeded), waiting(&uncounted.failed));
        let valid = || pods.iter().filter(|pod| is_valid(spec, pod));
        let new_successes = valid().filter(|pod| phase(pod) == "Succeeded" && !succeeded.contains(uid(**pod)));
        let counts = |pod: &Pod| policy::on_failure(spec, pod) != policy::Action::Ignore;
        let new_failures = valid().filter(|pod| has_failed(spec, pod) && !failed.contains(uid(**pod)) && counts(pod));
        let sum = |before: Option<i32>, waiting: usize, new: usize| {
            count(before).saturating_add(u32::try_from(waiting.saturating_add(new)).unwrap_or(u32::MAX))
        };
        if status.start_time.is_none() && !is_suspended(spec) {
            status.start_time = Some(seconds(now));
        }
        let mut sync = Self {
            job,
            spec,
            owner,
            ready: active.iter().filter(|pod| is_ready(pod)).count(),
            terminating: pods.iter().filter(|pod| is_terminating(pod)).count(),
            succeeded: sum(status.succeeded, succeeded.len(), new_successes.count()),
            failed: sum(status.failed, failed.len(), new_failures.count()),
            told: Indexes::default(),
            completed: Indexes::default(),
            failed_indexes: None,
            replaced: BTreeMap::new(),
            active,
            pods,
            status,
            finished: None,
            event: None,
            now,
        };
        if is_indexed(spec) {
            sync.read_indexes();
        }
        sync
    }

    fn completions(&self) -> u32 {
        count(self.spec.completions)
    }

    fn read_indexes(&mut self) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        self.told = Indexes::parse(&text(&self.status.completed_indexes), self.completions());
        let valid = || self.pods.iter().copied().filter(|pod| is_valid(self.spec, pod));
        let succeeded = indexes_of(valid().filter(|pod| phase(pod) == "Succeeded"));
        self.completed = self.told.with_each(&succeeded);
        self.succeeded = self.completed.total();
        let Some(limit) = self.spec.backoff_limit_per_index else {
            return;
        };
        let known = Indexes::parse(&text(&self.status.failed_indexes), self.completions());
        let over = |pod: &Pod| match policy::on_failure(self.spec, pod) {
            policy::Action::FailIndex => true,
            policy::Action::Ignore => false,
            policy::Action::Count | policy::Action::FailJob(_) => {
                pod.attempt.as_ref().is_some_and(|attempt| attempt.failures >= limit)
            }
        };
        let failed = indexes_of(valid().filter(|pod| has_failed(self.spec, pod) && over(pod)));
        let failed = known.with_each(&failed);
        self.replaced = self.find_replaced(&failed);
        self.failed_indexes = Some(failed);
    }

    /// For each index to retry, the pod that failed last: it is kept until its replacement
    /// continues its failure count.
    fn find_replaced(&self, failed: &Indexes) -> BTreeMap<u32, &'a Pod> {
        let active = indexes_of(self.active.iter().copied());
        let mut replaced: BTreeMap<u32, &Pod> = BTreeMap::new();
        let order = |pod: &Pod| {
            let attempt = pod.attempt.as_ref();
            attempt.map(|attempt| (attempt.failures.saturating_add(attempt.ignored), attempt.ended))
        };
        for pod in self
            .pods
            .iter()
            .copied()
            .filter(|pod| is_valid(self.spec, pod) && has_failed(self.spec, pod))
        {
            let Some(index) = index_in(self.spec, pod) else {
                continue;
            };
            if self.completed.has(index) || failed.has(index) || active.contains(&index) {
                continue;
            }
            let last = replaced.entry(index).or_insert(pod);
            if let (Some((failures, at)), Some((new_failures, new_at))) = (order(last), order(pod))
                && failures <= new_failures
                && at <= new_at
            {
                *last = pod;
            }
        }
        replaced
    }
}
