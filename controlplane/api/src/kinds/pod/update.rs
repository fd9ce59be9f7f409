//! Validation of changes to a pod's spec.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration};

use super::{ANNOTATIONS, gated};
use crate::value::invalid::Invalid;
use crate::workload::validation::{annotations, difference, newly, pod_spec};

const CHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Validates an update of the pod itself.
pub(super) fn validate(new: &Pod, old: &Pod) -> Vec<Invalid> {
    let (is, was) = (new.metadata.annotations.as_ref(), old.metadata.annotations.as_ref());
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else {
        return vec![Invalid::required("spec", "")];
    };
    let mut errors = Vec::new();
    if is != was {
        annotations::changes(&mut errors, is, was, ANNOTATIONS);
        annotations::of_pod(&mut errors, is, new, ANNOTATIONS);
    }
    // The spec was validated on creation; only a changed one is validated again.
    if new != old {
        errors.extend(newly(pod_spec::validate(new, "spec"), || {
            pod_spec::validate(old, "spec")
        }));
    }
    let counts = |spec: &PodSpec| (spec.containers.len(), spec.init_containers.iter().flatten().count());
    if counts(new) != counts(old) {
        errors.push(Invalid::forbidden(
            "spec.containers",
            "pod updates may not add or remove containers",
        ));
        return errors;
    }
    deadline(&mut errors, new, old);
    gates(&mut errors, new, old);
    tolerations(
        &mut errors,
        new.tolerations.as_deref().unwrap_or_default(),
        old.tolerations.as_deref().unwrap_or_default(),
    );
    let mut allowed = with_allowed(new, old);
    gated::narrow(&mut errors, &mut allowed, old);
    if allowed != *old {
        let detail = format!("{CHANGEABLE}\n{}", difference(&allowed, old));
        errors.push(Invalid::forbidden("spec", detail));
    }
    errors
}

/// New spec with all mutable fields replaced by the old ones.
fn with_allowed(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut spec = new.clone();
    images(&mut spec.containers, &old.containers);
    let old_init = old.init_containers.as_deref().unwrap_or_default();
    images(spec.init_containers.as_deref_mut().unwrap_or_default(), old_init);
    spec.active_deadline_seconds = old.active_deadline_seconds;
    spec.tolerations.clone_from(&old.tolerations);
    spec.scheduling_gates.clone_from(&old.scheduling_gates);
    let was_negative = old.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0);
    if was_negative && new.termination_grace_period_seconds == Some(1) {
        spec.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    spec
}

fn images(new: &mut [Container], old: &[Container]) {
    for (new, old) in new.iter_mut().zip(old) {
        new.image.clone_from(&old.image);
    }
}

fn deadline(errors: &mut Vec<Invalid>, new: &PodSpec, old: &PodSpec) {
    const FIELD: &str = "spec.activeDeadlineSeconds";
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), Some(old)) if new > old => {
            errors.push(Invalid::value(
                FIELD,
                new,
                "must be less than or equal to previous value",
            ));
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(Invalid::rendered(FIELD, "null".to_owned(), detail));
        }
        (Some(_) | None, _) => {}
    }
}

fn gates(errors: &mut Vec<Invalid>, new: &PodSpec, old: &PodSpec) {
    let known = old.scheduling_gates.as_deref().unwrap_or_default();
    for (index, gate) in new.scheduling_gates.iter().flatten().enumerate() {
        if !known.contains(gate) {
            let detail = "only deletion is allowed, but found new scheduling gate";
            let detail = format!("{detail} '{}'", gate.name);
            errors.push(Invalid::forbidden(
                format!("spec.schedulingGates[{index}].name"),
                detail,
            ));
        }
    }
}

fn tolerations<'a>(errors: &mut Vec<Invalid>, new: &'a [Toleration], old: &'a [Toleration]) {
    let bare = |toleration: &'a Toleration| {
        let Toleration {
            effect,
            key,
            operator,
            value,
            toleration_seconds: _,
        } = toleration;
        (key, operator, value, effect)
    };
    let new: BTreeSet<_> = new.iter().map(bare).collect();
    let kept = old.iter().all(|old| new.contains(&bare(old)));
    if !kept {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(Invalid::forbidden("spec.tolerations", detail));
    }
}
