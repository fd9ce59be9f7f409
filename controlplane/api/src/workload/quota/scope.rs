//! Scopes of a quota.

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, ResourceQuota, ScopedResourceSelectorRequirement};

use crate::object::Object;
use crate::workload::pod::qos;

/// True if a quota counts an object: all of its scopes match. Scopes concern pods, so a quota with
/// scopes counts nothing else.
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
    let Some(pod) = object.as_any().downcast_ref::<Pod>().and_then(|pod| pod.spec.as_ref()) else {
        return false;
    };
    demands.all(|demand| fits(pod, &demand))
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
            let class = pod.priority_class_name.as_ref().filter(|class| !class.is_empty());
            let among = class.is_some_and(|class| demand.values.iter().flatten().any(|value| value == class));
            match demand.operator.as_str() {
                "In" => among,
                "NotIn" => !among,
                "Exists" => class.is_some(),
                "DoesNotExist" => class.is_none(),
                _ => false,
            }
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
    let with = affinity.pod_affinity.iter().flat_map(|affinity| {
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        let required = affinity
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    let without = affinity.pod_anti_affinity.iter().flat_map(|affinity| {
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        let required = affinity
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        required.chain(preferred.map(|weighted| &weighted.pod_affinity_term))
    });
    with.chain(without).any(out)
}
