//! `CronJob`: jobs on a schedule.

use k8s_openapi::api::batch::v1::CronJob;

use super::job;
use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column, containers, selector_or_none, since, truth};
use crate::value::invalid::Invalid;
use crate::value::schedule::{Schedule, time_zone};
use crate::workload::pod::defaults::text;
use crate::workload::validation::{newly, non_negative, one_of, required};
use crate::workload::warnings;

impl Kind for CronJob {
    const SHORT_NAMES: &'static [&'static str] = &["cj"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Schedule", "batch.v1.CronJobSpec.schedule", |cron, _| {
            cron.spec.schedule.as_str().into()
        }),
        Column::text("Timezone", "batch.v1.CronJobSpec.timeZone", |cron, _| {
            let zone = cron.spec.time_zone.as_deref();
            zone.unwrap_or("<none>").into()
        }),
        Column::boolean("Suspend", "batch.v1.CronJobSpec.suspend", |cron, _| {
            truth(cron.spec.suspend).into()
        }),
        Column::integer("Active", "batch.v1.CronJobStatus.active", |cron, _| {
            let active = cron.status.as_ref().and_then(|status| status.active.as_ref());
            active.map_or(0, Vec::len).into()
        }),
        Column::text(
            "Last Schedule",
            "batch.v1.CronJobStatus.lastScheduleTime",
            |cron, now| {
                let last = cron
                    .status
                    .as_ref()
                    .and_then(|status| status.last_schedule_time.as_ref());
                last.map_or_else(|| "<none>".to_owned(), |last| since(Some(last), now))
                    .into()
            },
        ),
        age_column(),
        Column::wide("Containers", "Names of each container in the template.", |cron, _| {
            let spec = cron.spec.job_template.spec.as_ref();
            containers(spec.map(|spec| &spec.template)).0.into()
        }),
        Column::wide(
            "Images",
            "Images referenced by each container in the template.",
            |cron, _| {
                let spec = cron.spec.job_template.spec.as_ref();
                containers(spec.map(|spec| &spec.template)).1.into()
            },
        ),
        Column::wide("Selector", "batch.v1.JobSpec.selector", |cron, _| {
            let spec = cron.spec.job_template.spec.as_ref();
            selector_or_none(spec.and_then(|spec| spec.selector.as_ref())).into()
        }),
    ];

    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        text(&mut spec.concurrency_policy, "Allow");
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        spec.job_template.metadata.get_or_insert_default();
        job::set_template_part_defaults(spec.job_template.spec.get_or_insert_default());
    }

    crate::spec_and_status!();

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let (old, spec) = (old.map(|old| &old.metadata), self.spec.job_template.spec.as_ref());
        warnings::of_job(&self.metadata, old, spec, "spec.jobTemplate.spec")
    }

    fn validate(&self) -> Vec<Invalid> {
        unfit(self, None)
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        newly(unfit(self, Some(old)), || unfit(old, Some(old)))
    }
}

/// Validates a `CronJob`, in the order of upstream's `validateCronJobSpec`
/// (`pkg/apis/batch/validation/validation.go`).
fn unfit(job: &CronJob, old: Option<&CronJob>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let spec = &job.spec;
    if required(&mut errors, "spec.schedule", Some(&spec.schedule)) {
        if spec.schedule.contains("TZ") {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.push(Invalid::value("spec.schedule", &spec.schedule, detail));
        } else if let Err(problem) = Schedule::parse(&spec.schedule) {
            errors.push(Invalid::value("spec.schedule", &spec.schedule, problem.to_string()));
        }
    }
    let deadline = spec.starting_deadline_seconds.unwrap_or(0);
    non_negative(&mut errors, "spec.startingDeadlineSeconds", deadline);
    // An unchanged time zone may stay though it is no longer known.
    let is_kept = old.is_some_and(|old| old.spec.time_zone == spec.time_zone);
    if let Some(zone) = spec.time_zone.as_deref().filter(|_| !is_kept) {
        errors.extend(unfit_zone(zone));
    }
    let policies = ["Allow", "Forbid", "Replace"];
    let policy = spec.concurrency_policy.as_deref();
    one_of(&mut errors, "spec.concurrencyPolicy", policy, &policies);
    let own = spec.job_template.spec.clone().unwrap_or_default();
    let before = old.and_then(|old| old.spec.job_template.spec.as_ref());
    errors.extend(job::validate_spec(&own, before, "spec.jobTemplate.spec"));
    if old.is_none() {
        errors.extend(job::unfit_for_template(&own, "spec.jobTemplate.spec"));
    }
    for (name, number) in [
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit),
    ] {
        non_negative(&mut errors, &format!("spec.{name}"), number.unwrap_or(0).into());
    }
    let name = job.metadata.name.as_deref().unwrap_or_default();
    // Names of the jobs have eleven more characters.
    if name.len() > 52 {
        errors.push(Invalid::value(
            "metadata.name",
            name,
            "must be no more than 52 characters",
        ));
    }
    errors
}

/// Validates the name of a time zone.
fn unfit_zone(zone: &str) -> Vec<Invalid> {
    let field = "spec.timeZone";
    if zone.is_empty() {
        let detail = "timeZone must be nil or non-empty string";
        return vec![Invalid::value(field, zone, detail)];
    }
    let mut errors = Vec::new();
    if zone.eq_ignore_ascii_case("Local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.push(Invalid::value(field, zone, detail));
    }
    if zone != "Local" && time_zone(zone).is_none() {
        errors.push(Invalid::value(field, zone, format!("unknown time zone {zone}")));
    }
    errors
}
