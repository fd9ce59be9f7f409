//! Scopes of a quota.

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, PodAffinityTerm, PodSpec, ResourceQuota, ScopedResourceSelectorRequirement,
    WeightedPodAffinityTerm,
};

use crate::object::Object;
use crate::workload::pod::qos;

/// True if a quota counts an object: all of its scopes match. Scopes concern pods and claims, so a
/// quota with scopes counts nothing else.
pub fn covers(quota: &ResourceQuota, object: &dyn Object) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let scopes = spec
        .scopes
        .iter()
        .flatten()
        .map(|scope| ScopedResourceSelectorRequirement {
            scope_name: scope.clone(),
            operator: "Exists".to_owned(),
            values: None,
        });
    let selected = spec
        .scope_selector
        .iter()
        .flat_map(|selector| selector.match_expressions.iter().flatten());
    let mut demands = scopes.chain(selected.cloned()).peekable();
    if demands.peek().is_none() {
        return true;
    }
    let object = object.as_any();
    if let Some(claim) = object.downcast_ref::<PersistentVolumeClaim>() {
        let classes = attributes_classes(claim);
        return demands.all(|demand| demand.scope_name == "VolumeAttributesClass" && selects(&demand, &classes));
    }
    let Some(pod) = object.downcast_ref::<Pod>().and_then(|pod| pod.spec.as_ref()) else {
        return false;
    };
    demands.all(|demand| fits(pod, &demand))
}

/// Classes that a claim asks for, has, or is about to get.
fn attributes_classes(claim: &PersistentVolumeClaim) -> Vec<&str> {
    let status = claim.status.as_ref();
    let change = status.and_then(|status| status.modify_volume_status.as_ref());
    let spec = claim.spec.as_ref();
    let names = [
        spec.and_then(|spec| spec.volume_attributes_class_name.as_deref()),
        status.and_then(|status| status.current_volume_attributes_class_name.as_deref()),
        change.and_then(|change| change.target_volume_attributes_class_name.as_deref()),
    ];
    names.into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

/// True if a scope selects one of an object's classes.
fn selects(demand: &ScopedResourceSelectorRequirement, classes: &[&str]) -> bool {
    let listed = |class: &&str| demand.values.iter().flatten().any(|value| value == class);
    match demand.operator.as_str() {
        "In" => classes.iter().any(listed),
        "NotIn" => classes.is_empty() || !classes.iter().all(listed),
        "Exists" => !classes.is_empty(),
        "DoesNotExist" => classes.is_empty(),
        _ => false,
    }
}

fn fits(pod: &PodSpec, demand: &ScopedResourceSelectorRequirement) -> bool {
    let terminating = pod.active_deadline_seconds.is_some_and(|seconds| seconds >= 0);
    match demand.scope_name.as_str() {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => qos(pod) == "BestEffort",
        "NotBestEffort" => qos(pod) != "BestEffort",
        "CrossNamespacePodAffinity" => reaches_out(pod),
        "PriorityClass" => {
            let class = pod.priority_class_name.as_deref().filter(|class| !class.is_empty());
            selects(demand, class.as_slice())
        }
        _ => false,
    }
}

/// True if the pod has an affinity term that selects other namespaces.
fn reaches_out(pod: &PodSpec) -> bool {
    let Some(affinity) = &pod.affinity else { return false };
    let out = |term: &PodAffinityTerm| {
        term.namespaces
            .as_ref()
            .is_some_and(|namespaces| !namespaces.is_empty())
            || term.namespace_selector.is_some()
    };
    let any = |required: Option<&[PodAffinityTerm]>, preferred: Option<&[WeightedPodAffinityTerm]>| {
        let preferred = preferred
            .into_iter()
            .flatten()
            .map(|weighted| &weighted.pod_affinity_term);
        required.into_iter().flatten().chain(preferred).any(out)
    };
    affinity.pod_affinity.as_ref().is_some_and(|own| {
        any(
            own.required_during_scheduling_ignored_during_execution.as_deref(),
            own.preferred_during_scheduling_ignored_during_execution.as_deref(),
        )
    }) || affinity.pod_anti_affinity.as_ref().is_some_and(|own| {
        any(
            own.required_during_scheduling_ignored_during_execution.as_deref(),
            own.preferred_during_scheduling_ignored_during_execution.as_deref(),
        )
    })
}
