//! The end of a Job. Several conditions may hold at once: the one that an earlier plan reported
//! comes first, then failure, then success (`syncJob` of `pkg/controller/job/job_controller.go`).

use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::jiff::Timestamp;

use super::policy::{self, Action};
use super::{Sync, has_failed, is_indexed, is_suspended, number};
use crate::objects::seconds;
use crate::pod::phase;
use crate::step::Plan;
use std::time::Duration;

pub(super) const MET: &str = "SuccessCriteriaMet";
pub(super) const TARGET: &str = "FailureTarget";

pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
        last_probe_time: Some(seconds(now)),
        last_transition_time: Some(seconds(now)),
    }
}

/// A condition of the type that is true.
pub(super) fn holding<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind && condition.status == "True")
}

/// Sets a condition; true if that changed anything. A condition that never was true is not set to
/// false.
pub(super) fn set(status: &mut JobStatus, new: JobCondition) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|condition| condition.type_ == new.type_) {
        Some(old) if old.status == new.status && old.reason == new.reason && old.message == new.message => false,
        Some(old) => {
            *old = new;
            true
        }
        None if new.status == "False" => false,
        None => {
            conditions.push(new);
            true
        }
    }
}

impl Sync<'_> {
    /// Evaluates all conditions that end the Job, apart from its completions.
    pub(super) fn evaluate(&mut self, plan: &mut Plan) {
        self.finished = holding(&self.status, MET)
            .cloned()
            .or_else(|| {
                let target = holding(&self.status, TARGET).cloned();
                target.map(|target| JobCondition {
                    type_: "Failed".to_owned(),
                    ..target
                })
            })
            .or_else(|| self.by_policy())
            .or_else(|| self.by_limits(plan))
            .or_else(|| self.by_indexes())
            .or_else(|| {
                let met = policy::on_success(self.spec, self.completions(), &self.completed);
                let message = met.filter(|_| is_indexed(self.spec))?;
                Some(condition(MET, "True", "SuccessPolicy", message, self.now))
            });
    }

    fn failure(&self, reason: &str, message: impl Into<String>) -> JobCondition {
        condition(TARGET, "True", reason, message, self.now)
    }

    fn by_policy(&self) -> Option<JobCondition> {
        let mut failed = self.pods.iter().filter(|pod| has_failed(self.spec, pod));
        failed.find_map(|pod| match policy::on_failure(self.spec, pod) {
            Action::FailJob(message) => Some(self.failure("PodFailurePolicy", message)),
            Action::Count | Action::Ignore | Action::FailIndex => None,
        })
    }

    fn by_limits(&self, plan: &mut Plan) -> Option<JobCondition> {
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if number(self.failed) > limit || self.restarted_too_often(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(self.failure("BackoffLimitExceeded", message));
        }
        let (Some(deadline), Some(start)) = (self.spec.active_deadline_seconds, &self.status.start_time) else {
            return None;
        };
        if is_suspended(self.spec) {
            return None;
        }
        let active = Duration::try_from(self.now.duration_since(start.0)).unwrap_or_default();
        let left = Duration::from_secs(deadline.try_into().unwrap_or(0)).saturating_sub(active);
        if left.is_zero() {
            let message = "Job was active longer than specified deadline";
            return Some(self.failure("DeadlineExceeded", message));
        }
        plan.again(left);
        None
    }

    /// Pods with in-place restarts count by their restarts.
    fn restarted_too_often(&self, limit: i32) -> bool {
        let pod = self.spec.template.spec.as_ref();
        if pod.and_then(|pod| pod.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let running = self
            .pods
            .iter()
            .filter(|pod| matches!(phase(pod), "Running" | "Pending"));
        let restarts = running.filter_map(|pod| Some(pod.attempt.as_ref()?.restarts));
        restarts.fold(0, i32::saturating_add) >= limit.max(1)
    }

    fn by_indexes(&self) -> Option<JobCondition> {
        let failed = self.failed_indexes.as_ref()?.total();
        if self.spec.max_failed_indexes.is_some_and(|most| number(failed) > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(self.failure("MaxFailedIndexesExceeded", message));
        }
        let ended = failed.saturating_add(self.completed.total()) >= self.completions();
        (failed > 0 && ended).then(|| self.failure("FailedIndexes", "Job has failed indexes"))
    }

    /// Ends the Job if enough pods have succeeded; otherwise, if pods were managed, sets the
    /// Suspended condition.
    pub(super) fn complete(&mut self, managed: bool, creations: usize) {
        let enough = match self.spec.completions {
            None => self.succeeded > 0,
            Some(completions) => number(self.succeeded) >= completions,
        };
        if enough && self.active.is_empty() && creations == 0 {
            let message = "Reached expected number of succeeded pods";
            self.finished = Some(condition(MET, "True", "CompletionsReached", message, self.now));
            return;
        }
        if !managed {
            return;
        }
        if is_suspended(self.spec) {
            let suspended = condition("Suspended", "True", "JobSuspended", "Job suspended", self.now);
            if set(&mut self.status, suspended) {
                self.event = Some("Suspended");
                self.status.start_time = None;
            }
        } else {
            let resumed = condition("Suspended", "False", "JobResumed", "Job resumed", self.now);
            if set(&mut self.status, resumed) {
                self.event = Some("Resumed");
                self.status.start_time = Some(seconds(self.now));
            }
        }
    }
}
