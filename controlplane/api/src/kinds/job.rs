//! Job: pods that run to completion.

mod rules;
mod selector;
mod status;
mod update;

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

pub use self::selector::{CONTROLLER_UID, JOB_NAME};
use crate::kind::{Dependents, Field, Kind, Subresource};
use crate::table::{Column, age, age_column, containers, selector_or_none};
use crate::value::invalid::Invalid;
use crate::value::selector::LabelSelector;
use crate::workload::pod::defaults::{set_template_defaults, text};
use crate::workload::validation::selector::label_selector;
use crate::workload::validation::workload::pod_template;
use crate::workload::validation::{immutable, non_negative, one_of};
use crate::workload::warnings;

impl Kind for Job {
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const GENERATION: bool = true;
    const DEPENDENTS: Dependents = Dependents::Orphaned;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "Status of the job.", |job, _| status(job).into()),
        Column::text("Completions", "batch.v1.JobStatus.succeeded", |job, _| {
            completions(job).into()
        }),
        Column::text("Duration", "Time required to complete the job.", |job, now| {
            duration(job, now).into()
        }),
        age_column(),
        Column::wide("Containers", "Names of each container in the template.", |job, _| {
            containers(job.spec.as_ref().map(|spec| &spec.template)).0.into()
        }),
        Column::wide(
            "Images",
            "Images referenced by each container in the template.",
            |job, _| containers(job.spec.as_ref().map(|spec| &spec.template)).1.into(),
        ),
        Column::wide("Selector", "batch.v1.JobSpec.selector", |job, _| {
            selector_or_none(job.spec.as_ref().and_then(|spec| spec.selector.as_ref())).into()
        }),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field::new("status.successful", |job| succeeded(job).to_string())];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        set_spec_defaults(spec);
        label(&mut self.metadata, spec);
    }

    fn prepare_create(&mut self) {
        self.status = Some(JobStatus::default());
        let uid = self.metadata.uid.clone().unwrap_or_default();
        let name = self.metadata.name.clone().unwrap_or_default();
        let spec = self.spec.get_or_insert_default();
        if spec.manual_selector != Some(true) && !uid.is_empty() {
            selector::generate(spec, &name, &uid);
        }
        label(&mut self.metadata, spec);
    }

    crate::kept_apart!();

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        status::validate(self, old)
    }

    crate::spec_alone!();

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let old = old.map(|old| &old.metadata);
        warnings::of_job(&self.metadata, old, self.spec.as_ref(), "spec")
    }

    fn validate(&self) -> Vec<Invalid> {
        validate_whole(self, None)
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = validate_whole(self, old.spec.as_ref());
        // A Job from when there were fewer rules can still be changed and deleted.
        let before = validate_whole(old, old.spec.as_ref());
        errors.retain(|error| !before.contains(error));
        let (Some(new), Some(spec)) = (&self.spec, &old.spec) else {
            return errors;
        };
        if spec.completion_mode.as_deref() != Some("Indexed") {
            immutable(&mut errors, "spec.completions", &new.completions, &spec.completions);
        } else if let Some(completions) = new.completions.filter(|_| new.completions != spec.completions)
            && new.completions != new.parallelism
        {
            let detail = "can only be modified in tandem with spec.parallelism";
            errors.push(Invalid::value("spec.completions", completions, detail));
        }
        immutable(&mut errors, "spec.selector", &new.selector, &spec.selector);
        if update::may_change_template(old, spec) {
            let allowed = update::with_directives(spec.template.spec.as_ref(), new.template.spec.as_ref());
            immutable(&mut errors, "spec.template.spec", &new.template.spec, &allowed);
        } else {
            immutable(&mut errors, "spec.template", &new.template, &spec.template);
        }
        immutable(
            &mut errors,
            "spec.completionMode",
            &new.completion_mode,
            &spec.completion_mode,
        );
        immutable(
            &mut errors,
            "spec.podFailurePolicy",
            &new.pod_failure_policy,
            &spec.pod_failure_policy,
        );
        let limits = (&new.backoff_limit_per_index, &spec.backoff_limit_per_index);
        immutable(&mut errors, "spec.backoffLimitPerIndex", limits.0, limits.1);
        immutable(&mut errors, "spec.managedBy", &new.managed_by, &spec.managed_by);
        immutable(
            &mut errors,
            "spec.successPolicy",
            &new.success_policy,
            &spec.success_policy,
        );
        errors
    }
}

/// Defaults a job's labels to those of its template.
fn label(metadata: &mut ObjectMeta, spec: &JobSpec) {
    let labels = spec.template.metadata.as_ref().and_then(|own| own.labels.as_ref());
    if let Some(labels) = labels.filter(|labels| !labels.is_empty())
        && metadata.labels.as_ref().is_none_or(BTreeMap::is_empty)
    {
        metadata.labels = Some(labels.clone());
    }
}

fn set_spec_defaults(spec: &mut JobSpec) {
    // Non-parallel jobs default both to 1.
    if spec.completions.is_none() && spec.parallelism.is_none() {
        spec.completions = Some(1);
    }
    spec.parallelism.get_or_insert(1);
    let many = if spec.backoff_limit_per_index.is_some() {
        i32::MAX
    } else {
        6
    };
    spec.backoff_limit.get_or_insert(many);
    text(&mut spec.completion_mode, "NonIndexed");
    spec.suspend.get_or_insert(false);
    spec.manual_selector.get_or_insert(false);
    if spec.pod_replacement_policy.is_none() {
        let policy = if spec.pod_failure_policy.is_some() {
            "Failed"
        } else {
            "TerminatingOrFailed"
        };
        spec.pod_replacement_policy = Some(policy.to_owned());
    }
    set_template_part_defaults(spec);
}

/// Sets defaults that a job's spec also has inside a `CronJob`.
pub(super) fn set_template_part_defaults(spec: &mut JobSpec) {
    for rule in spec.pod_failure_policy.iter_mut().flat_map(|policy| &mut policy.rules) {
        for pattern in rule.on_pod_conditions.iter_mut().flatten() {
            text(&mut pattern.status, "True");
        }
    }
    set_template_defaults(&mut spec.template);
}

fn of_status<T>(job: &Job, of: fn(&JobStatus) -> Option<T>) -> Option<T> {
    job.status.as_ref().and_then(of)
}

fn succeeded(job: &Job) -> i32 {
    of_status(job, |status| status.succeeded).unwrap_or(0)
}

/// True if the job has a condition of the type with status `True`.
pub fn has_condition(job: &Job, kind: &str) -> bool {
    let conditions = job
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten();
    let mut own = conditions.filter(|condition| condition.type_ == kind);
    own.any(|condition| condition.status == "True")
}

fn status(job: &Job) -> &'static str {
    if has_condition(job, "Complete") {
        "Complete"
    } else if has_condition(job, "Failed") {
        "Failed"
    } else if job.metadata.deletion_timestamp.is_some() {
        "Terminating"
    } else if has_condition(job, "Suspended") {
        "Suspended"
    } else if has_condition(job, "FailureTarget") {
        "FailureTarget"
    } else if has_condition(job, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Job) -> String {
    let succeeded = succeeded(job);
    let spec = job.spec.as_ref();
    let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(0);
    match spec.and_then(|spec| spec.completions) {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    }
}

fn duration(job: &Job, now: Timestamp) -> String {
    let Some(start) = of_status(job, |status| status.start_time.clone()) else {
        return String::new();
    };
    let end = of_status(job, |status| status.completion_time.clone());
    age(end.map_or(now, |end| end.0), start.0)
}

/// Validates that a job template leaves out what each job must have of its own: the selector.
pub(super) fn unfit_for_template(spec: &JobSpec, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if let Some(selector) = &spec.selector {
        let value = serde_json::to_string(selector).unwrap_or_default();
        let detail = "`selector` will be auto-generated";
        errors.push(Invalid::rendered(format!("{path}.selector"), value, detail));
    }
    if spec.manual_selector == Some(true) {
        let field = format!("{path}.manualSelector");
        errors.push(Invalid::not_supported(field, true, &["nil", "false"]));
    }
    errors
}

/// Validates the host names of an indexed job's pods, which are the job's name with the index.
fn unfit_host_name(metadata: &ObjectMeta, spec: &JobSpec) -> Option<Invalid> {
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let completions = spec.completions.filter(|completions| indexed && *completions > 0)?;
    let name = metadata.name.as_deref()?;
    let last = format!("{name}-{}", completions - 1);
    let detail = format!("will not able to create pod with invalid DNS label: {last}");
    (last.len() > 63 || last.contains('.')).then(|| Invalid::value("metadata.name", name, detail))
}

/// Validates a job: its spec, and that it selects its own pods. Errors of its spec that the old one
/// has, too, are ignored.
fn validate_whole(job: &Job, old: Option<&JobSpec>) -> Vec<Invalid> {
    let spec = job.spec.clone().unwrap_or_default();
    let mut errors = selector::validate(&job.metadata, &spec);
    errors.extend(validate_spec(&spec, old, "spec"));
    errors.extend(unfit_host_name(&job.metadata, &spec));
    let selector = LabelSelector::of(spec.selector.as_ref());
    let labels = spec
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.as_ref());
    match &spec.selector {
        None => errors.push(Invalid::required("spec.selector", "")),
        Some(given) => label_selector(&mut errors, given, "spec.selector"),
    }
    if spec.selector.is_some() && selector.is_ok_and(|selector| !selector.matches_option(labels)) {
        let value = serde_json::to_string(&labels).unwrap_or_default();
        let detail = "`selector` does not match template `labels`";
        errors.push(Invalid::rendered("spec.template.metadata.labels", value, detail));
    }
    errors
}

/// Validates a job's spec at any path. Errors that the old spec has, too, are ignored: it was
/// stored when there were fewer rules.
pub(super) fn validate_spec(spec: &JobSpec, old: Option<&JobSpec>, path: &str) -> Vec<Invalid> {
    let of_template = |spec: &JobSpec| pod_template(&spec.template, &format!("{path}.template"));
    let mut before = old.map(|old| rules::validate(old, path)).unwrap_or_default();
    before.extend(old.into_iter().flat_map(of_template));
    let mut errors = rules::validate(spec, path);
    errors.retain(|error| !before.contains(error));
    let numbers = [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        (
            "ttlSecondsAfterFinished",
            spec.ttl_seconds_after_finished.map(i64::from),
        ),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.map(i64::from)),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ];
    for (name, number) in numbers {
        non_negative(&mut errors, &format!("{path}.{name}"), number.unwrap_or(0));
    }
    let mode = spec.completion_mode.as_deref();
    if let Some(mode) = mode.filter(|mode| *mode != "Indexed" && *mode != "NonIndexed") {
        let field = format!("{path}.completionMode");
        errors.push(Invalid::not_supported(field, mode, &["NonIndexed", "Indexed"]));
    }
    if mode == Some("Indexed") && spec.completions.is_none() {
        let detail = "when completion mode is Indexed";
        errors.push(Invalid::required(format!("{path}.completions"), detail));
    }
    if let Some(policy) = spec.pod_replacement_policy.as_deref() {
        let field = format!("{path}.podReplacementPolicy");
        one_of(&mut errors, &field, Some(policy), &["Failed", "TerminatingOrFailed"]);
    }
    errors.extend(of_template(spec).into_iter().filter(|error| !before.contains(error)));
    let place = format!("{path}.template.spec");
    let pod = spec.template.spec.as_ref();
    match pod.and_then(|pod| pod.restart_policy.as_deref()) {
        Some("OnFailure") if spec.pod_failure_policy.is_some() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(Invalid::value(format!("{place}.restartPolicy"), "OnFailure", detail));
        }
        Some("OnFailure" | "Never") => {}
        None | Some("" | "Always") => {
            let detail = "valid values: \"OnFailure\", \"Never\"";
            errors.push(Invalid::required(format!("{place}.restartPolicy"), detail));
        }
        Some(policy) => {
            let field = format!("{place}.restartPolicy");
            errors.push(Invalid::not_supported(field, policy, &["OnFailure", "Never"]));
        }
    }
    errors
}
