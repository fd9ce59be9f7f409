//! Finished Jobs beyond the history limits (`cleanupFinishedJobs` of
//! `pkg/controller/cronjob/cronjob_controllerv2.go`).

use k8s_openapi::api::batch::v1::{CronJob, Job};

use crate::objects::{name, target};
use crate::step::{CRON_JOBS, Step};
use crate::workloads::job::end_of;

/// Deletes the oldest Jobs beyond each limit.
pub(super) fn surplus(cron_job: &CronJob, jobs: &[&Job]) -> Vec<Step> {
    let owner = target(CRON_JOBS, cron_job);
    let spec = &cron_job.spec;
    let mut steps = Vec::new();
    for (end, limit) in [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ] {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
            continue;
        };
        let ended = jobs
            .iter()
            .filter(|job| end_of(job).is_some_and(|condition| condition.type_ == end));
        let mut ended: Vec<&Job> = ended.copied().collect();
        let start = |job: &Job| job.status.as_ref()?.start_time.as_ref().map(|time| time.0);
        ended.sort_by_key(|job| (start(job).is_none(), start(job), name(*job).to_owned()));
        let many = ended.len().saturating_sub(limit);
        let oldest = ended.into_iter().take(many);
        let waiting = oldest.filter(|job| job.metadata.deletion_timestamp.is_none());
        steps.extend(waiting.map(|job| super::delete(&owner, job)));
    }
    steps
}
