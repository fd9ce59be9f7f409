//! `PodSecurity`: enforces the levels in namespace labels on pods, warns about pod templates, and
//! about existing pods when a namespace's level is raised.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use api::Object;
use api::pod_security::{Demand, Level, Policy, details, evaluate, reasons};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec, PodTemplate, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use store::{Key, Prefix};

use crate::request::failure::Failure;
use crate::write::admission::{Part, Review};

/// Number of existing pods that are evaluated when a namespace's level is raised.
const MOST: usize = 3000;
/// Metadata of a template without any.
static NONE: LazyLock<ObjectMeta> = LazyLock::new(ObjectMeta::default);

/// Checks pods, pod templates, and namespaces.
pub(in crate::write::admission) fn check(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    if matches!(review.part, Part::Status | Part::Decided) {
        return Ok(());
    }
    // Only pods have subresources that change what runs.
    let aside = !review.context.info.subresource.is_empty();
    if let Some(namespace) = object.as_any().downcast_ref::<Namespace>() {
        return if aside {
            Ok(())
        } else {
            check_namespace(review, namespace)
        };
    }
    let Some((metadata, spec, own)) = template(object) else {
        return Ok(());
    };
    if aside && !own {
        return Ok(());
    }
    let Some((policy, unreadable)) = policy(review) else {
        return Ok(());
    };
    let enforce = if own { policy.enforce } else { Demand::default() };
    let idle = [enforce, policy.audit, policy.warn]
        .iter()
        .all(|demand| demand.level == Level::Privileged);
    if idle || (own && !is_significant(review.old, spec)) {
        return Ok(());
    }
    if let Some(because) = unreadable {
        review.annotate(
            "pod-security.kubernetes.io/error",
            format!("Failed to parse policy: {because}"),
        );
    }
    let refused = evaluate(enforce, metadata, spec);
    if own {
        review.annotate("pod-security.kubernetes.io/enforce-policy", enforce.to_string());
    }
    let noted = evaluate(policy.audit, metadata, spec);
    if !noted.is_empty() {
        let violates = format!("would violate PodSecurity \"{}\": {}", policy.audit, details(&noted));
        review.annotate("pod-security.kubernetes.io/audit-violations", violates);
    }
    if !refused.is_empty() {
        let because = format!("violates PodSecurity \"{enforce}\": {}", details(&refused));
        return Err(review.forbid(object, because));
    }
    let warned = evaluate(policy.warn, metadata, spec);
    if !warned.is_empty() {
        let warning = format!("would violate PodSecurity \"{}\": {}", policy.warn, details(&warned));
        review.warnings.push(warning);
    }
    Ok(())
}

/// Policy of the request's namespace, and the error for invalid labels; `None` without any of the
/// labels.
fn policy(review: &Review<'_>) -> Option<(Policy, Option<String>)> {
    let key = Key::new("", "namespaces", "", &review.context.info.namespace).ok()?;
    let entry = review.context.store().get(&key)?;
    let labels: &BTreeMap<String, String> = &entry.attributes.labels;
    let (policy, errors) = Policy::of(labels);
    if policy == Policy::default() {
        return None;
    }
    Some((policy, aggregate(&errors)))
}

fn aggregate(errors: &[api::Invalid]) -> Option<String> {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

/// The pod that an object is (`true`) or makes.
fn template(object: &dyn Object) -> Option<(&ObjectMeta, &PodSpec, bool)> {
    let any = object.as_any();
    if let Some(pod) = any.downcast_ref::<Pod>() {
        return Some((&pod.metadata, pod.spec.as_ref()?, true));
    }
    let template = if let Some(own) = any.downcast_ref::<Deployment>() {
        &own.spec.as_ref()?.template
    } else if let Some(own) = any.downcast_ref::<ReplicaSet>() {
        own.spec.as_ref()?.template.as_ref()?
    } else if let Some(own) = any.downcast_ref::<StatefulSet>() {
        &own.spec.as_ref()?.template
    } else if let Some(own) = any.downcast_ref::<DaemonSet>() {
        &own.spec.as_ref()?.template
    } else if let Some(own) = any.downcast_ref::<Job>() {
        &own.spec.as_ref()?.template
    } else if let Some(own) = any.downcast_ref::<CronJob>() {
        &own.spec.job_template.spec.as_ref()?.template
    } else if let Some(own) = any.downcast_ref::<ReplicationController>() {
        own.spec.as_ref()?.template.as_ref()?
    } else {
        any.downcast_ref::<PodTemplate>()?.template.as_ref()?
    };
    Some((
        template.metadata.as_ref().unwrap_or(&NONE),
        template.spec.as_ref()?,
        false,
    ))
}

/// True if an update of a pod needs evaluation: it changes images or adds containers.
fn is_significant(old: Option<&dyn Object>, new: &PodSpec) -> bool {
    let Some(old) = old.and_then(|old| old.as_any().downcast_ref::<Pod>()?.spec.as_ref()) else {
        return true;
    };
    let shape = |spec: &PodSpec| -> Vec<(String, Option<String>)> {
        let main = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let main = main.map(|container| (container.name.clone(), container.image.clone()));
        let added = spec.ephemeral_containers.iter().flatten();
        main.chain(added.map(|container| (container.name.clone(), container.image.clone())))
            .collect()
    };
    shape(old) != shape(new)
}

/// Changed labels must be valid; existing pods that violate a higher level are reported as
/// warnings.
fn check_namespace(review: &mut Review<'_>, namespace: &Namespace) -> Result<(), Failure> {
    let labels = |metadata: &ObjectMeta| metadata.labels.clone().unwrap_or_default();
    let (policy, errors) = Policy::of(&labels(&namespace.metadata));
    let (before, errors_before) = review
        .old
        .map(|old| Policy::of(&labels(old.metadata())))
        .unwrap_or_default();
    let name = namespace.metadata.name.clone().unwrap_or_default();
    if !errors.is_empty() && aggregate(&errors) != aggregate(&errors_before) {
        return Err(Failure::invalid("", "Namespace", &name, &errors));
    }
    let relaxed = policy.enforce.version == before.enforce.version && policy.enforce.level <= before.enforce.level;
    if review.is_new() || policy.enforce == before.enforce || policy.enforce.level == Level::Privileged || relaxed {
        return Ok(());
    }
    let warnings = existing(review, &name, policy.enforce);
    review.warnings.extend(warnings);
    Ok(())
}

/// Warnings about the existing pods of a namespace that violate a level, one line for each distinct
/// set of violations.
fn existing(review: &Review<'_>, namespace: &str, demand: Demand) -> Vec<String> {
    let entries = review
        .context
        .store()
        .present(&Prefix::namespace("", "pods", namespace));
    let mut troubles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in entries.iter().take(MOST) {
        let Ok(pod) = serde_json::from_slice::<Pod>(&entry.bytes) else {
            continue;
        };
        let Some(spec) = &pod.spec else { continue };
        let found = evaluate(demand, &pod.metadata, spec);
        if !found.is_empty() {
            troubles
                .entry(reasons(&found))
                .or_default()
                .push(entry.key.name().to_owned());
        }
    }
    let mut warnings = Vec::new();
    if entries.len() > MOST {
        let all = entries.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MOST} of {all} existing pods"
        ));
    }
    if !troubles.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{demand}\""
        ));
    }
    let mut lines: Vec<String> = troubles
        .into_iter()
        .filter_map(|(trouble, pods)| {
            let first = pods.first()?;
            Some(match pods.len() {
                1 => format!("{first}: {trouble}"),
                2 => format!("{first} (and 1 other pod): {trouble}"),
                count => format!("{first} (and {} other pods): {trouble}", count - 1),
            })
        })
        .collect();
    lines.sort_unstable();
    warnings.extend(lines);
    warnings
}
