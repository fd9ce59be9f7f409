//! Mutable parts of a Job's pod template.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Affinity, Container, PodSpec};

use super::{has_condition, of_status};

/// True if a Job is suspended and has no active pods (`shouldAllowMutablePodTemplate` of
/// `pkg/registry/batch/job/strategy.go`).
pub(super) fn may_change_template(job: &Job, spec: &JobSpec) -> bool {
    let has_begun = of_status(job, |status| status.start_time.clone()).is_some();
    let is_active = of_status(job, |status| status.active).is_some_and(|active| active > 0);
    spec.suspend == Some(true) && (!has_begun || has_condition(job, "Suspended")) && !is_active
}

/// Old pod spec with the fields that a suspended Job may still change: scheduling directives and
/// resources. Labels and annotations are free (`validatePodTemplateUpdate` of
/// `pkg/apis/batch/validation/validation.go`).
pub(super) fn with_directives(old: Option<&PodSpec>, new: Option<&PodSpec>) -> Option<PodSpec> {
    let (Some(old), Some(new)) = (old, new) else {
        return old.cloned();
    };
    let mut spec = old.clone();
    spec.node_selector.clone_from(&new.node_selector);
    spec.tolerations.clone_from(&new.tolerations);
    spec.scheduling_gates.clone_from(&new.scheduling_gates);
    let of_nodes = new
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.clone());
    let mut affinity = spec.affinity.take().unwrap_or_default();
    affinity.node_affinity = of_nodes;
    let is_needed = new.affinity.is_some() || affinity != Affinity::default();
    spec.affinity = Some(affinity).filter(|_| is_needed);
    let resources = |old: &mut [Container], new: &[Container]| {
        let same = old.iter_mut().zip(new).filter(|(old, new)| old.name == new.name);
        same.for_each(|(old, new)| old.resources.clone_from(&new.resources));
    };
    if spec.containers.len() == new.containers.len() {
        resources(&mut spec.containers, &new.containers);
    }
    if let (Some(old), Some(new)) = (&mut spec.init_containers, &new.init_containers)
        && old.len() == new.len()
    {
        resources(old, new);
    }
    Some(spec)
}
