//! `CronJob`s: a Job at each time of a schedule (`pkg/controller/cronjob/cronjob_controllerv2.go`).
//!
//! A Job's name contains its scheduled time, so none is created twice. The status lists a Job only
//! once the cache shows it: a Job by that name and newer than `lastScheduleTime` was created by the
//! previous plan.

mod due;
mod history;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use api::schedule::{Schedule, time_zone};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use serde_json::json;

use crate::objects::{annotation, controlled_by, name, seconds, target, uid};
use crate::step::{CRON_JOBS, JOBS, Outcome, Plan, Propagation, Severity, Step, Target};
use crate::workloads::job::end_of;
use due::Due;

/// Annotation of a Job with its scheduled time.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Input of the `CronJob` controller's plan.
pub struct Snapshot<'a> {
    /// The `CronJob`.
    pub cron_job: &'a CronJob,
    /// The Jobs that it controls.
    pub jobs: &'a [&'a Job],
    /// Looks a Job up by its name, under any controller.
    pub uid_of: &'a dyn Fn(&str) -> Option<String>,
    /// Uids of Jobs that were looked up and do not exist.
    pub missing: &'a BTreeSet<String>,
    /// Tells once that its schedule has changed since the last plan: it counts from the next time
    /// on (`updateCronJob`).
    pub rescheduled: &'a dyn Fn() -> bool,
}

/// A sync of a `CronJob`.
struct Sync<'a> {
    cron_job: &'a CronJob,
    owner: Target,
    status: CronJobStatus,
    changed: bool,
    /// Deletions, which are the first steps.
    deletions: Vec<Step>,
    creations: Vec<Step>,
    events: Vec<Step>,
}

/// Makes the plan.
pub fn plan(snapshot: &Snapshot<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let cron_job = snapshot.cron_job;
    let mut sync = Sync {
        cron_job,
        owner: target(CRON_JOBS, cron_job),
        status: cron_job.status.clone().unwrap_or_default(),
        changed: false,
        deletions: history::surplus(cron_job, snapshot.jobs),
        creations: Vec::new(),
        events: Vec::new(),
    };
    sync.follow(snapshot.jobs);
    let looks = sync.look_for_missing(snapshot);
    if !looks.is_empty() {
        plan.stage(looks);
        return plan;
    }
    let rescheduled = (snapshot.rescheduled)();
    let suspended = cron_job.spec.suspend == Some(true);
    if cron_job.metadata.deletion_timestamp.is_none()
        && let Some((schedule, zone)) = sync.schedule(suspended)
    {
        sync.start(snapshot, &schedule, &zone, (now, rescheduled), &mut plan);
    }
    let status = sync.changed.then(|| sync.patch());
    plan.stage(sync.deletions);
    plan.stage(status.into_iter().collect());
    plan.stage(sync.events);
    plan.stage(sync.creations);
    plan
}

/// Name of the Job for a scheduled time.
fn job_name(cron_job: &CronJob, time: Timestamp) -> String {
    format!("{}-{}", name(cron_job), time.as_second().div_euclid(60))
}

/// Scheduled time of a Job, from its annotation.
pub fn scheduled(job: &Job) -> Option<Timestamp> {
    annotation(&job.metadata, SCHEDULED)?.parse().ok()
}

/// Scheduled time of a Job of this `CronJob`.
fn time_of(cron_job: &CronJob, job: &Job) -> Option<Timestamp> {
    scheduled(job).filter(|time| name(job) == job_name(cron_job, *time))
}

impl Sync<'_> {
    fn tell(&mut self, severity: Severity, reason: &'static str, message: String) {
        self.events
            .push(Step::Event(self.owner.note(severity, reason, message)));
    }

    fn active(&self) -> &[ObjectReference] {
        self.status.active.as_deref().unwrap_or_default()
    }

    fn forget(&mut self, uid: &str) {
        self.changed = true;
        let active = self.status.active.get_or_insert_default();
        active.retain(|job| job.uid.as_deref() != Some(uid));
    }

    /// Adds new Jobs to the status and removes finished ones.
    fn follow(&mut self, jobs: &[&Job]) {
        let before = self.status.last_schedule_time.as_ref().map(|time| time.0);
        for job in jobs {
            let listed = self
                .active()
                .iter()
                .any(|active| active.uid.as_deref() == Some(uid(*job)));
            let new = time_of(self.cron_job, job).filter(|time| !listed && before.is_none_or(|before| *time > before));
            if let Some(time) = new {
                let last = self.status.last_schedule_time.as_ref().map(|time| time.0);
                self.status.last_schedule_time = Some(seconds(time.max(last.unwrap_or(time))));
                self.changed = true;
            }
            match end_of(job) {
                Some(end) => {
                    if listed || new.is_some() {
                        let message = format!("Saw completed job: {}, condition: {}", name(*job), end.type_);
                        self.forget(uid(*job));
                        self.tell(Severity::Normal, "SawCompletedJob", message);
                    }
                    self.note_success(job, &end.type_);
                }
                None if new.is_some() => {
                    let active = self.status.active.get_or_insert_default();
                    active.push(ObjectReference {
                        resource_version: job.metadata.resource_version.clone(),
                        ..target(JOBS, *job).reference()
                    });
                }
                None if !listed => {
                    let message = format!("Saw a job that the controller did not create or forgot: {}", name(*job));
                    self.tell(Severity::Warning, "UnexpectedJob", message);
                }
                None => {}
            }
        }
    }

    fn note_success(&mut self, job: &Job, end: &str) {
        let completion = job.status.as_ref().and_then(|status| status.completion_time.clone());
        let last = self.status.last_successful_time.as_ref();
        if let Some(completion) = completion.filter(|_| end == "Complete")
            && last.is_none_or(|last| completion.0 > last.0)
        {
            self.status.last_successful_time = Some(completion);
            self.changed = true;
        }
    }

    /// Removes missing Jobs from the status. A Job that the cache does not show is looked up first.
    fn look_for_missing(&mut self, snapshot: &Snapshot<'_>) -> Vec<Step> {
        let there: BTreeSet<&str> = snapshot.jobs.iter().map(|job| uid(*job)).collect();
        let mut looks = Vec::new();
        for active in self.active().to_vec() {
            let (job, uid) = (active.name.unwrap_or_default(), active.uid.unwrap_or_default());
            // A Job that exists but is no longer owned stays listed, as upstream.
            if there.contains(uid.as_str()) || (snapshot.uid_of)(&job).is_some_and(|own| own == uid) {
                continue;
            }
            if snapshot.missing.contains(&uid) {
                self.forget(&uid);
                self.tell(
                    Severity::Normal,
                    "MissingJob",
                    format!("Active job went missing: {job}"),
                );
            } else {
                looks.push(Step::Look(Target {
                    resource: JOBS,
                    namespace: self.owner.namespace.clone(),
                    name: job,
                    uid,
                }));
            }
        }
        looks
    }

    /// The schedule and its time zone; the default is UTC, in which the daemons run.
    fn schedule(&mut self, suspended: bool) -> Option<(Schedule, TimeZone)> {
        let spec = &self.cron_job.spec;
        let zone = match spec.time_zone.as_deref() {
            None => TimeZone::UTC,
            Some(name) => {
                let zone = time_zone(name);
                if zone.is_none() {
                    let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
                    self.tell(Severity::Warning, "UnknownTimeZone", message);
                }
                zone?
            }
        };
        if suspended {
            return None;
        }
        match Schedule::parse(&spec.schedule) {
            Ok(schedule) => Some((schedule, zone)),
            Err(problem) => {
                let message = format!("unparseable schedule: {:?} : {problem}", spec.schedule);
                self.tell(Severity::Warning, "UnparseableSchedule", message);
                None
            }
        }
    }

    /// Creates the Job that is due, if the concurrency policy allows it.
    fn start(
        &mut self,
        snapshot: &Snapshot<'_>,
        schedule: &Schedule,
        zone: &TimeZone,
        (now, rescheduled): (Timestamp, bool),
        plan: &mut Plan,
    ) {
        let last = self.status.last_schedule_time.as_ref().map(|time| time.0);
        let due = Due::new(self.cron_job, last, schedule, zone, now);
        let Some(due) = due else {
            let problem = "time difference between two schedules is less than 1 second";
            let message = format!("invalid schedule: {} : {problem}", self.cron_job.spec.schedule);
            self.tell(Severity::Warning, "InvalidSchedule", message);
            return;
        };
        plan.again(due.next);
        let Some(time) = due.time.filter(|_| !rescheduled) else {
            return;
        };
        if due.many {
            let message =
                "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.tell(Severity::Warning, "TooManyMissedTimes", message.to_owned());
        }
        if due.is_late {
            let time = time.strftime("%a, %d %b %Y %H:%M:%S +0000");
            self.tell(
                Severity::Warning,
                "MissSchedule",
                format!("Missed scheduled time to start a job: {time}"),
            );
            return;
        }
        let job = job_name(self.cron_job, time);
        let is_listed = self.active().iter().any(|active| active.name.as_deref() == Some(&job));
        if is_listed || last == Some(time) || (snapshot.uid_of)(&job).is_some() {
            return;
        }
        let policy = self.cron_job.spec.concurrency_policy.as_deref();
        if policy == Some("Forbid") && !self.active().is_empty() {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            self.tell(Severity::Normal, "JobAlreadyActive", message.to_owned());
            return;
        }
        if policy == Some("Replace") {
            self.replace(snapshot.jobs);
        }
        self.creations.push(self.create(job, time, zone));
    }

    fn replace(&mut self, jobs: &[&Job]) {
        let active: BTreeSet<String> = self.active().iter().filter_map(|active| active.uid.clone()).collect();
        for job in jobs.iter().filter(|job| active.contains(uid(**job))) {
            self.deletions.push(delete(&self.owner, job));
            self.forget(uid(*job));
        }
    }

    fn create(&self, job: String, time: Timestamp, zone: &TimeZone) -> Step {
        let template = &self.cron_job.spec.job_template;
        let metadata = template.metadata.clone().unwrap_or_default();
        let mut annotations = metadata.annotations.unwrap_or_default();
        let offset = zone.to_offset(time).seconds();
        let local = if offset == 0 {
            time.to_string()
        } else {
            let local = time.to_zoned(zone.clone());
            local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
        };
        annotations.insert(SCHEDULED.to_owned(), local);
        let job = Job {
            metadata: ObjectMeta {
                name: Some(job),
                namespace: Some(self.owner.namespace.clone()),
                labels: metadata.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![controlled_by(&self.owner)]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        };
        Step::Create {
            resource: JOBS,
            namespace: self.owner.namespace.clone(),
            body: Box::new(json!(job)),
            outcome: Outcome {
                done: Some(self.owner.note(Severity::Normal, "SuccessfulCreate", "Created job {}")),
                failed: vec![
                    self.owner
                        .note(Severity::Warning, "FailedCreate", "Error creating job: {}"),
                ],
            },
        }
    }

    fn patch(&self) -> Step {
        let active = Some(self.active()).filter(|active| !active.is_empty());
        self.owner.clone().merge_status(json!({
            "metadata": { "uid": self.owner.uid, "resourceVersion": self.cron_job.metadata.resource_version },
            "status": {
                "active": active,
                "lastScheduleTime": self.status.last_schedule_time,
                "lastSuccessfulTime": self.status.last_successful_time,
            },
        }))
    }
}

/// Deletes a Job; its pods are deleted afterwards.
fn delete(owner: &Target, job: &Job) -> Step {
    Step::Delete {
        target: target(JOBS, job),
        resource_version: None,
        propagation: Some(Propagation::Background),
        grace_seconds: None,
        outcome: Outcome {
            done: Some(owner.note(Severity::Normal, "SuccessfulDelete", "Deleted job {}")),
            failed: vec![owner.note(Severity::Warning, "FailedDelete", "Deleted job: {}")],
        },
    }
}
