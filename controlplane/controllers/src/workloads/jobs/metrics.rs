//! Metrics of Jobs and `CronJob`s under upstream's names (`pkg/controller/job/metrics/metrics.go`,
//! `pkg/controller/cronjob/metrics/metrics.go`).
//!
//! Upstream counts when a write has succeeded; this counts changes in the caches, so that repeated
//! requests are not counted twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controlplane_plan::objects::{Meta as _, controller_of};
use controlplane_plan::pod::Pod;
use controlplane_plan::pod::{is_finished, phase};
use controlplane_plan::step::{CRON_JOBS, JOBS};
use controlplane_plan::workloads::cron_job;
use controlplane_plan::workloads::job::{self, Indexes};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::jiff::Timestamp;

use crate::machinery::cache::{Change, Key};
use crate::machinery::driver::Done;
use crate::machinery::kinds::Caches;
use crate::machinery::metrics::page::{Buckets, Page};

/// Upper bounds of a sync's duration: from 4 ms, each twice the one before.
const SYNC: &[f64] = &[
    0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768, 65.536,
];
/// Upper bounds of the delay of a `CronJob`'s Job.
const SKEW: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Reasons for which this controller ends a Job.
const REASONS: [&str; 7] = [
    "BackoffLimitExceeded",
    "CompletionsReached",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
    "SuccessPolicy",
];
/// Actions of pod failure policies.
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

/// Counters by label values.
type Counters<const LABELS: usize> = BTreeMap<[&'static str; LABELS], u64>;

/// Counters of Jobs.
#[derive(Default)]
pub(crate) struct JobMetrics(Mutex<Counts>);

struct Counts {
    syncs: BTreeMap<[&'static str; 3], (u64, Buckets)>,
    finished: Counters<3>,
    pods: Counters<2>,
    indexes: Counters<2>,
    creations: Counters<2>,
    policy: Counters<1>,
    tracked: Counters<1>,
    skew: Buckets,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            syncs: BTreeMap::new(),
            finished: Counters::new(),
            pods: Counters::new(),
            indexes: Counters::new(),
            creations: Counters::new(),
            policy: Counters::new(),
            tracked: Counters::new(),
            skew: Buckets::new(SKEW),
        }
    }
}

impl JobMetrics {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts changes in the caches. Jobs older than `since` were counted when they were created.
    pub(crate) fn follow(self: &Arc<Self>, caches: &Arc<Caches>, since: Timestamp) {
        let metrics = self.clone();
        let since = since.as_second();
        caches
            .jobs
            .listen(move |change| metrics.lock().job_changed(change, since));
        let (metrics, all) = (self.clone(), Arc::downgrade(caches));
        caches.pods.listen(move |change| {
            let Some(caches) = all.upgrade() else { return };
            metrics.lock().pod_changed(change, &caches);
        });
    }

    /// Counts a sync of an unfinished Job.
    pub(crate) fn synced(&self, job: &Job, done: &Done, took: Duration) {
        let Some(spec) = job
            .spec
            .as_ref()
            .filter(|spec| !job::is_external(spec) && !job::is_finished(job))
        else {
            return;
        };
        let steps = done.counts;
        let action = if steps.created + steps.refused > 0 {
            "pods_created"
        } else if steps.deleted > 0 {
            "pods_deleted"
        } else {
            "tracking"
        };
        let result = if done.retry { "error" } else { "success" };
        let mut counts = self.lock();
        let sync = counts.syncs.entry([mode(spec), result, action]);
        let (number, durations) = sync.or_insert_with(|| (0, Buckets::new(SYNC)));
        *number += 1;
        durations.took(took);
        let reason = creation_reason(spec, job.status.as_ref());
        for (status, number) in [("succeeded", steps.created), ("failed", steps.refused)] {
            add(&mut counts.creations, [reason, status], number);
        }
    }
}

/// Reason for which a pod is created (`recordJobPodsCreationTotal`).
fn creation_reason(spec: &JobSpec, status: Option<&JobStatus>) -> &'static str {
    let uncounted = status.and_then(|status| status.uncounted_terminated_pods.as_ref()?.failed.as_ref());
    let failed =
        status.is_some_and(|status| status.failed > Some(0)) || uncounted.is_some_and(|failed| !failed.is_empty());
    let terminating = status.is_some_and(|status| status.terminating > Some(0));
    match spec.pod_replacement_policy.as_deref() {
        Some("Failed") if failed => "recreate_failed",
        _ if failed || terminating => "recreate_terminating_or_failed",
        _ => "new",
    }
}

fn mode(spec: &JobSpec) -> &'static str {
    if job::is_indexed(spec) { "Indexed" } else { "NonIndexed" }
}

fn add<const LABELS: usize>(counters: &mut Counters<LABELS>, labels: [&'static str; LABELS], number: u64) {
    if number > 0 {
        *counters.entry(labels).or_default() += number;
    }
}

impl Counts {
    fn job_changed(&mut self, change: &Change<'_, Job>, since: i64) {
        let Some(job) = change.new else { return };
        let Some(old) = change.old.filter(|old| old.metadata.uid == job.metadata.uid) else {
            self.begins(job, since);
            return;
        };
        let Some(spec) = job.spec.as_ref().filter(|spec| !job::is_external(spec)) else {
            return;
        };
        let none = JobStatus::default();
        let statuses = [old, job].map(|job| job.status.as_ref().unwrap_or(&none));
        self.count_pods(spec, statuses);
        if let Some(end) = job::end_of(job).filter(|_| !job::is_finished(old)) {
            let result = if end.type_ == "Complete" { "succeeded" } else { "failed" };
            let reason = end.reason.as_deref().unwrap_or_default();
            let reason = REASONS.into_iter().find(|known| *known == reason).unwrap_or_default();
            add(&mut self.finished, [mode(spec), result, reason], 1);
        }
    }

    /// Records the delay of a `CronJob`'s Job.
    fn begins(&mut self, job: &Job, since: i64) {
        let own = controller_of(&job.metadata).is_some_and(|owner| owner.kind == CRON_JOBS.kind);
        let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
        let created = created.filter(|created| own && *created >= since);
        if let (Some(created), Some(scheduled)) = (created, cron_job::scheduled(job)) {
            let skew = u64::try_from(created.saturating_sub(scheduled.as_second())).unwrap_or(0);
            self.skew.took(Duration::from_secs(skew));
        }
    }

    /// Counts the pods and indexes that have finished since the previous status
    /// (`recordJobPodFinished`).
    fn count_pods(&mut self, spec: &JobSpec, [old, new]: [&JobStatus; 2]) {
        let more = |of: fn(&JobStatus) -> Option<i32>| {
            let more = of(new).unwrap_or(0).saturating_sub(of(old).unwrap_or(0));
            u64::try_from(more).unwrap_or(0)
        };
        let mut succeeded = more(|status| status.succeeded);
        if job::is_indexed(spec) {
            let completions = spec.completions.and_then(|number| u32::try_from(number).ok());
            let total = |text: &Option<String>| {
                let text = text.as_deref().unwrap_or_default();
                Indexes::parse(text, completions.unwrap_or(0)).total()
            };
            let limit = spec.backoff_limit_per_index.map_or("global", |_| "perIndex");
            succeeded = total(&new.completed_indexes)
                .saturating_sub(total(&old.completed_indexes))
                .into();
            let failed = total(&new.failed_indexes).saturating_sub(total(&old.failed_indexes));
            add(&mut self.indexes, ["succeeded", limit], succeeded);
            add(&mut self.indexes, ["failed", limit], failed.into());
        }
        add(&mut self.pods, [mode(spec), "succeeded"], succeeded);
        add(&mut self.pods, [mode(spec), "failed"], more(|status| status.failed));
    }

    /// Counts finished pods that wait to be counted by their Job
    /// (`recordFinishedPodWithTrackingFinalizer` of `pkg/controller/job/tracking_utils.go`).
    fn pod_changed(&mut self, change: &Change<'_, Pod>, caches: &Caches) {
        let waits = |pod: Option<&Pod>| pod.is_some_and(|pod| is_finished(pod) && job::is_tracked(pod));
        match (waits(change.old), waits(change.new)) {
            (false, true) => add(&mut self.tracked, ["add"], 1),
            (true, false) => add(&mut self.tracked, ["delete"], 1),
            (true, true) | (false, false) => return,
        }
        let Some(pod) = change.new.filter(|pod| phase(pod) == "Failed" && !job::is_tracked(pod)) else {
            return;
        };
        let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == JOBS.kind);
        let job = owner.and_then(|owner| caches.jobs.get(&Key::new(pod.metadata.namespace(), &owner.name)));
        let action = job.as_ref().and_then(|job| {
            let action = job::action_on_failure(job.spec.as_ref()?, pod)?;
            ACTIONS.into_iter().find(|known| *known == action)
        });
        if let Some(action) = action {
            add(&mut self.policy, [action], 1);
        }
    }
}

/// Writes a family of counters.
fn write<const LABELS: usize>(
    page: &mut Page,
    [name, help]: [&'static str; 2],
    labels: [&'static str; LABELS],
    counters: &Counters<LABELS>,
) {
    page.counter(name, help);
    for (values, number) in counters {
        let pairs: Vec<(&str, &str)> = labels.into_iter().zip(values.iter().copied()).collect();
        page.sample(&pairs, number);
    }
}

impl JobMetrics {
    /// Writes all metrics.
    pub(crate) fn write(&self, page: &mut Page) {
        let counts = self.lock();
        let labels = ["completion_mode", "result", "action"];
        let syncs = counts.syncs.iter().map(|(values, (number, _))| (*values, *number));
        let help = ["job_controller_job_syncs_total", "[STABLE] The number of job syncs"];
        write(page, help, labels, &syncs.collect());
        page.histogram(
            "job_controller_job_sync_duration_seconds",
            "[STABLE] The time it took to sync a job",
        );
        for (values, (_, durations)) in &counts.syncs {
            let pairs: Vec<(&str, &str)> = labels.into_iter().zip(values.iter().copied()).collect();
            page.buckets(&pairs, durations);
        }
        let help = [
            "job_controller_jobs_finished_total",
            "[STABLE] The number of finished jobs",
        ];
        write(page, help, ["completion_mode", "result", "reason"], &counts.finished);
        let help = [
            "job_controller_job_pods_finished_total",
            "[STABLE] The number of finished Pods that are fully tracked",
        ];
        write(page, help, ["completion_mode", "result"], &counts.pods);
        counts.write_beta(page);
        page.histogram(
            "cronjob_controller_job_creation_skew_duration_seconds",
            "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
        );
        page.buckets(&[], &counts.skew);
    }
}

impl Counts {
    /// Families that are not stable in upstream.
    fn write_beta(&self, page: &mut Page) {
        let help = [
            "job_controller_pod_failures_handled_by_failure_policy_total",
            "[BETA] The number of failed Pods handled by failure policy with respect to the failure policy action \
             applied based on the matched rule. Possible values of the action label correspond to the possible values \
             for the failure policy rule action, which are: \"FailJob\", \"Ignore\" and \"Count\".",
        ];
        write(page, help, ["action"], &self.policy);
        let help = [
            "job_controller_terminated_pods_tracking_finalizer_total",
            "[BETA] The number of terminated pods (phase=Failed|Succeeded)\\nthat have the finalizer \
             batch.kubernetes.io/job-tracking\\nThe event label can be \"add\" or \"delete\".",
        ];
        write(page, help, ["event"], &self.tracked);
        let help = [
            "job_controller_job_finished_indexes_total",
            "[ALPHA] The number of finished indexes. Possible values for the status label are: \"succeeded\", \
             \"failed\". Possible values for the backoffLimit label are: \"perIndex\" and \"global\"",
        ];
        write(page, help, ["status", "backoffLimit"], &self.indexes);
        let help = [
            "job_controller_job_pods_creation_total",
            "[ALPHA] The number of Pods created by the Job controller labelled with a reason for the Pod creation.",
        ];
        write(page, help, ["reason", "status"], &self.creations);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::machinery::driver::StepCounts;

    fn job(revision: u32, status: &Value) -> Job {
        let owner =
            json!([{ "apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "c", "controller": true }]);
        let scheduled = json!({ "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-01-01T01:00:00Z" });
        from_value(json!({
            "metadata": {
                "name": "tick-1", "namespace": "ns", "uid": "j", "resourceVersion": revision.to_string(),
                "creationTimestamp": "2026-01-01T01:00:03Z",
                "ownerReferences": owner, "annotations": scheduled,
            },
            "spec": { "completions": 4, "completionMode": "Indexed", "template": {}, "podFailurePolicy": { "rules": [
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            ] } },
            "status": status,
        }))
        .unwrap()
    }

    fn pod(revision: u32, phase: &str, finalizers: &[&str]) -> Pod {
        from_value(json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "p", "resourceVersion": revision.to_string(), "finalizers": finalizers,
                "ownerReferences": [
                    { "apiVersion": "batch/v1", "kind": "Job", "name": "tick-1", "uid": "j", "controller": true },
                ],
            },
            "spec": { "containers": [] },
            "status": { "phase": phase, "conditions": [{ "type": "DisruptionTarget", "status": "True" }] },
        }))
        .unwrap()
    }

    #[test]
    fn jobs_are_counted_by_what_the_caches_tell() {
        let (metrics, caches) = (Arc::new(JobMetrics::default()), Arc::new(Caches::new()));
        metrics.follow(&caches, "2026-01-01T00:00:00Z".parse().unwrap());
        caches.jobs.apply(job(1, &json!({})), false);
        let done = Done {
            counts: StepCounts {
                created: 4,
                ..StepCounts::default()
            },
            ..Done::default()
        };
        let begun = caches.jobs.get(&Key::new("ns", "tick-1")).unwrap();
        metrics.synced(&begun, &done, Duration::from_millis(5));
        caches.pods.apply(pod(2, "Running", &[job::TRACKING]), false);
        caches.pods.apply(pod(3, "Failed", &[job::TRACKING]), false);
        caches.pods.apply(pod(4, "Failed", &[]), false);
        let ended = json!([{ "type": "Complete", "status": "True", "reason": "CompletionsReached" }]);
        let ended = json!({ "succeeded": 4, "failed": 1, "completedIndexes": "0-3", "conditions": ended });
        let half = json!({ "completedIndexes": "1,2", "succeeded": 2 });
        for (revision, status) in [(5, &half), (6, &ended), (7, &ended)] {
            caches.jobs.apply(job(revision, status), false);
        }
        let mut page = Page::default();
        metrics.write(&mut page);
        let page = page.text();
        let mode = "completion_mode=\"Indexed\"";
        for line in [
            format!("job_controller_job_syncs_total{{{mode},result=\"success\",action=\"pods_created\"}} 1"),
            format!(
                "job_controller_job_sync_duration_seconds_bucket{{{mode},result=\"success\",action=\"pods_created\",le=\"0.008\"}} 1"
            ),
            format!(
                "job_controller_jobs_finished_total{{{mode},result=\"succeeded\",reason=\"CompletionsReached\"}} 1"
            ),
            format!("job_controller_job_pods_finished_total{{{mode},result=\"succeeded\"}} 4"),
            format!("job_controller_job_pods_finished_total{{{mode},result=\"failed\"}} 1"),
            "job_controller_job_finished_indexes_total{status=\"succeeded\",backoffLimit=\"global\"} 4".to_owned(),
            "job_controller_job_pods_creation_total{reason=\"new\",status=\"succeeded\"} 4".to_owned(),
            "job_controller_terminated_pods_tracking_finalizer_total{event=\"add\"} 1".to_owned(),
            "job_controller_terminated_pods_tracking_finalizer_total{event=\"delete\"} 1".to_owned(),
            "job_controller_pod_failures_handled_by_failure_policy_total{action=\"Ignore\"} 1".to_owned(),
            "cronjob_controller_job_creation_skew_duration_seconds_bucket{le=\"2\"} 0".to_owned(),
            "cronjob_controller_job_creation_skew_duration_seconds_bucket{le=\"4\"} 1".to_owned(),
            "cronjob_controller_job_creation_skew_duration_seconds_sum 3".to_owned(),
        ] {
            assert!(page.lines().any(|own| own == line), "{line}\n{page}");
        }
    }
}
