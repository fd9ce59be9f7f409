//! Affinity terms with label keys: the pod's label values are added to the terms' selectors when
//! the pod is created.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Adds the values of `matchLabelKeys` and `mismatchLabelKeys` to the selectors of the same term. A
/// term without a selector selects no pods, whatever its keys.
pub(crate) fn merge(pod: &mut Pod) {
    let Some((labels, spec)) = pod.metadata.labels.as_ref().zip(pod.spec.as_mut()) else {
        return;
    };
    if let Some(affinity) = &mut spec.affinity {
        if let Some(pods) = &mut affinity.pod_affinity {
            let preferred = &mut pods.preferred_during_scheduling_ignored_during_execution;
            terms(
                preferred,
                &mut pods.required_during_scheduling_ignored_during_execution,
                labels,
            );
        }
        if let Some(pods) = &mut affinity.pod_anti_affinity {
            let preferred = &mut pods.preferred_during_scheduling_ignored_during_execution;
            terms(
                preferred,
                &mut pods.required_during_scheduling_ignored_during_execution,
                labels,
            );
        }
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        if let Some(selector) = &mut constraint.label_selector {
            add(selector, constraint.match_label_keys.as_deref(), "In", labels);
        }
    }
}

fn terms(
    preferred: &mut Option<Vec<WeightedPodAffinityTerm>>,
    required: &mut Option<Vec<PodAffinityTerm>>,
    labels: &BTreeMap<String, String>,
) {
    let preferred = preferred.iter_mut().flatten().map(|term| &mut term.pod_affinity_term);
    for term in preferred.chain(required.iter_mut().flatten()) {
        if let Some(selector) = &mut term.label_selector {
            add(selector, term.match_label_keys.as_deref(), "In", labels);
            add(selector, term.mismatch_label_keys.as_deref(), "NotIn", labels);
        }
    }
}

fn add(selector: &mut LabelSelector, keys: Option<&[String]>, operator: &str, labels: &BTreeMap<String, String>) {
    let values = keys
        .unwrap_or_default()
        .iter()
        .filter_map(|key| labels.get_key_value(key));
    let mut added = values
        .map(|(key, value)| LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.to_owned(),
            values: Some(vec![value.clone()]),
        })
        .peekable();
    if added.peek().is_some() {
        selector.match_expressions.get_or_insert_default().extend(added);
    }
}
