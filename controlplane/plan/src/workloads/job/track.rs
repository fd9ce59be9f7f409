//! Counts finished pods, each once, and reports the Job's end (`trackJobStatusAndRemoveFinalizers`
//! of `pkg/controller/job/job_controller.go`).

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, UncountedTerminatedPods};
use serde_json::{Value, json};

use super::finish::{self, MET, TARGET};
use super::policy::{self, Action};
use super::{Failure, Sync, has_failed, index_in, is_indexed, is_tracked, is_valid, manage, number};
use crate::objects::uid;
use crate::pod::Pod;
use crate::pod::phase;
use crate::step::{Note, Plan, Severity, Step};

/// Most pods that the status lists as uncounted.
const MOST_UNCOUNTED: usize = 500;
/// Number of active pods above which a Job's pods are counted and replaced only from time to time,
/// and of unready ones above which the ready count is updated so (`syncJobBatchPeriod` of upstream
/// is a second).
const CROWD: usize = 8;
const NOW_AND_THEN: Duration = Duration::from_millis(50);

impl<'a> Sync<'a> {
    /// Adds the steps that count pods and report the end, and those that create pods.
    pub(super) fn track(mut self, creations: Vec<Step>, failure: Option<&Failure>, plan: &mut Plan) {
        let expected = if failure.is_some() { 0 } else { creations.len() };
        let goes_on = self.finished.is_none() && self.event.is_none() && failure.is_none();
        let goes_on = goes_on && self.job.metadata.deletion_timestamp.is_none();
        let gathers = goes_on && self.active.len() > CROWD;
        let only_counts = self.count_running(expected);
        let held: BTreeSet<&str> = self
            .pods
            .iter()
            .copied()
            .filter(|pod| is_tracked(pod))
            .map(uid)
            .collect();
        let mut tells = self.event.is_some() | self.count_untracked(&held);
        let (counted, more) = self.list_ended();
        tells |= more | self.tell_indexes();
        let mut events = Vec::new();
        let begins_to_end = self.tell_beginning_of_end();
        if !begins_to_end && counted.is_empty() {
            tells |= self.tell_end(&mut events);
        }
        tells |= begins_to_end;
        let uncounted = counted.into_iter().map(|pod| manage::untrack(pod, false)).collect();
        let status = (tells || only_counts.is_some()).then(|| self.patch(events.pop()));
        let patient = !tells && creations.is_empty() && only_counts == Some(true);
        // Pods that cannot be created must not keep finished ones from being counted.
        let (beside, last) = if failure.is_some() {
            (Vec::new(), creations)
        } else {
            (creations, Vec::new())
        };
        plan.stage(status.into_iter().chain(beside).collect());
        plan.stage(uncounted);
        plan.stage(last);
        if gathers || (patient && plan.stages.len() == 1) {
            plan.patience = Some(NOW_AND_THEN);
        }
        plan.stage(events.into_iter().map(Step::Event).collect());
    }

    /// Sets the counts of unfinished pods. `None` if they are unchanged; otherwise true if only the
    /// ready count of many pods has changed.
    fn count_running(&mut self, expected: usize) -> Option<bool> {
        let active = number(self.active.len().saturating_add(expected));
        let (ready, terminating) = (Some(number(self.ready)), Some(number(self.terminating)));
        let was = (
            self.status.active.unwrap_or(0),
            self.status.ready,
            self.status.terminating,
        );
        self.status.active = Some(active).filter(|active| *active > 0);
        self.status.ready = ready;
        self.status.terminating = terminating;
        let starting = self.active.len().saturating_sub(self.ready);
        let minor = (active, terminating) == (was.0, was.2) && was.1.is_some() && starting > CROWD;
        (was != (active, ready, terminating)).then_some(minor)
    }

    /// Moves pods whose finalizers are gone from the uncounted list into the counters; true if
    /// there were any.
    fn count_untracked(&mut self, held: &BTreeSet<&str>) -> bool {
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        let mut moved = false;
        for (list, counter) in [
            (&mut uncounted.succeeded, &mut self.status.succeeded),
            (&mut uncounted.failed, &mut self.status.failed),
        ] {
            let Some(pods) = list.as_mut() else { continue };
            let before = pods.len();
            pods.retain(|pod| held.contains(pod.as_str()));
            let gone = number(before.saturating_sub(pods.len()));
            *counter = Some(counter.unwrap_or(0).saturating_add(gone)).filter(|count| *count > 0);
            moved |= gone > 0;
            if pods.is_empty() {
                *list = None;
            }
        }
        moved
    }

    /// Lists finished pods as uncounted. Returns those whose finalizer may be removed once the
    /// status has them, and whether the status lists more than before.
    fn list_ended(&mut self) -> (Vec<&'a Pod>, bool) {
        let mut lists = self.status.uncounted_terminated_pods.take().unwrap_or_default();
        let (mut removable, mut more, mut indexes) = (Vec::new(), false, 0_usize);
        for pod in self.pods.iter().copied().filter(|pod| is_tracked(pod)) {
            if !self.may_be_untracked(pod) {
                continue;
            }
            removable.push(pod);
            let listed = |list: &Option<Vec<String>>| list.iter().flatten().any(|listed| listed == uid(pod));
            let is_listed_failed = listed(&lists.failed);
            if phase(pod) == "Succeeded" && !is_listed_failed {
                if is_indexed(self.spec) {
                    let index = index_in(self.spec, pod);
                    indexes += usize::from(index.is_some_and(|index| !self.told.has(index)));
                } else if !listed(&lists.succeeded) {
                    lists.succeeded.get_or_insert_default().push(uid(pod).to_owned());
                    more = true;
                }
            } else if !is_listed_failed && self.counts_as_failed(pod) {
                lists.failed.get_or_insert_default().push(uid(pod).to_owned());
                more = true;
            }
            let length = |list: &Option<Vec<String>>| list.as_ref().map_or(0, Vec::len);
            if indexes + length(&lists.succeeded) + length(&lists.failed) >= MOST_UNCOUNTED {
                break;
            }
        }
        self.status.uncounted_terminated_pods = Some(lists);
        (removable, more)
    }

    /// True if the finalizer may be removed: for all pods when the Job ends; otherwise for finished
    /// pods whose failure count no replacement still has to continue.
    fn may_be_untracked(&self, pod: &Pod) -> bool {
        let ends = self.job.metadata.deletion_timestamp.is_some() || self.finished.is_some();
        let waits = || self.replaced.values().any(|failed| uid(*failed) == uid(pod));
        ends || phase(pod) == "Succeeded" || (has_failed(self.spec, pod) && !waits())
    }

    /// True if the Job has failed, in which case all unfinished pods count as failed.
    fn counts_as_failed(&self, pod: &Pod) -> bool {
        let fails = self.finished.as_ref().is_some_and(|finished| finished.type_ != MET);
        (has_failed(self.spec, pod) || fails)
            && is_valid(self.spec, pod)
            && policy::on_failure(self.spec, pod) != Action::Ignore
    }

    /// Sets the finished indexes; true if they have changed.
    fn tell_indexes(&mut self) -> bool {
        if !is_indexed(self.spec) {
            return false;
        }
        let status = &mut self.status;
        let was = (status.completed_indexes.take(), status.failed_indexes.take());
        status.completed_indexes = Some(self.completed.to_string()).filter(|indexes| !indexes.is_empty());
        status.failed_indexes = self.failed_indexes.as_ref().map(ToString::to_string);
        status.succeeded = Some(number(self.completed.total())).filter(|succeeded| *succeeded > 0);
        let before = was.0.filter(|indexes| !indexes.is_empty());
        (&before, &was.1) != (&status.completed_indexes, &status.failed_indexes)
    }

    /// Adds the condition that precedes the removal of the last finalizers; true if it is new.
    pub(super) fn tell_beginning_of_end(&mut self) -> bool {
        let Some(finished) = self.finished.clone() else {
            return false;
        };
        let is_told = finished.type_ == "Failed" || finish::holding(&self.status, &finished.type_).is_some();
        if !is_told {
            self.status.conditions.get_or_insert_default().push(finished);
        }
        !is_told
    }

    /// Adds the final condition once all pods are counted and finished.
    fn tell_end(&mut self, events: &mut Vec<Note>) -> bool {
        let Some(finished) = self.finished.clone() else {
            return false;
        };
        let lists = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let is_counted = lists == UncountedTerminatedPods::default();
        if !is_counted || self.terminating > 0 {
            return false;
        }
        let succeeds = finished.type_ == MET;
        let kind = if succeeds { "Complete" } else { "Failed" };
        let JobCondition { reason, message, .. } = finished;
        let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
        if succeeds {
            events.push(self.owner.note(Severity::Normal, "Completed", "Job completed"));
            let too_many = |completions: i32| self.status.succeeded.unwrap_or(0) > completions;
            if self.spec.completions.is_some_and(too_many) {
                let message = "Too many succeeded pods running after completion count reached";
                events.insert(0, self.owner.note(Severity::Warning, "TooManySucceededPods", message));
            }
        } else {
            events.push(self.owner.note(Severity::Warning, known(&reason), message.clone()));
        }
        let last = finish::condition(kind, "True", &reason, message, self.now);
        if succeeds {
            self.status.completion_time.clone_from(&last.last_transition_time);
        }
        finish::set(&mut self.status, last)
    }

    pub(super) fn patch(&self, event: Option<Note>) -> Step {
        let suspension = self.event.map(|reason| {
            let message = if reason == "Suspended" {
                "Job suspended"
            } else {
                "Job resumed"
            };
            self.owner.note(Severity::Normal, reason, message)
        });
        self.owner
            .clone()
            .merge_status(json!({
                "metadata": { "uid": self.owner.uid, "resourceVersion": self.job.metadata.resource_version },
                "status": whole(&self.status),
            }))
            .with(event.or(suspension))
    }
}

/// The static text of an event's reason.
fn known(reason: &str) -> &'static str {
    let known = [
        "PodFailurePolicy",
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "MaxFailedIndexesExceeded",
        "FailedIndexes",
    ];
    known.into_iter().find(|known| *known == reason).unwrap_or(TARGET)
}

/// The status as a merge patch: absent fields are removed.
fn whole(status: &JobStatus) -> Value {
    let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
    json!({
        "active": status.active,
        "completedIndexes": status.completed_indexes,
        "completionTime": status.completion_time,
        "conditions": status.conditions,
        "failed": status.failed,
        "failedIndexes": status.failed_indexes,
        "ready": status.ready,
        "startTime": status.start_time,
        "succeeded": status.succeeded,
        "terminating": status.terminating,
        "uncountedTerminatedPods": { "succeeded": lists.succeeded, "failed": lists.failed },
    })
}
