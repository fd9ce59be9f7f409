//! Validation of affinity, tolerations and topology spread constraints.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Toleration,
    TopologySpreadConstraint, VolumeNodeAffinity, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{TAINT_EFFECTS, each, internal, non_empty, one_of_or_none, selector};

/// Validates node affinity, pod affinity and pod anti-affinity.
pub(super) fn affinity(errors: &mut Vec<Invalid>, affinity: &Affinity, path: &str) {
    if let Some(node) = &affinity.node_affinity {
        let path = format!("{path}.nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution");
            node_selector(errors, selector, &path);
        }
        let preferred = node
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        for (index, term) in preferred.enumerate() {
            let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
            weight(errors, term.weight, &path);
            node_term(errors, &term.preference, &format!("{path}.preference"), false);
        }
    }
    if let Some(pods) = &affinity.pod_affinity {
        let path = format!("{path}.podAffinity");
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        pod_terms(errors, required, preferred, &path);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let path = format!("{path}.podAntiAffinity");
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        pod_terms(errors, required, preferred, &path);
    }
}

/// Validates a node selector: a node must match one of its terms.
pub(crate) fn node_selector(errors: &mut Vec<Invalid>, selector: &NodeSelector, path: &str) {
    let path = format!("{path}.nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.push(Invalid::required(
            path.as_str(),
            "must have at least one node selector term",
        ));
    }
    for (index, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(errors, term, &format!("{path}[{index}]"), true);
    }
}

/// Validates the node affinity of a volume.
pub(crate) fn volume_node_affinity(errors: &mut Vec<Invalid>, affinity: &VolumeNodeAffinity, path: &str) {
    let path = format!("{path}.required");
    match &affinity.required {
        Some(selector) => node_selector(errors, selector, &path),
        None => errors.push(Invalid::required(path, "must specify required node constraints")),
    }
}

fn weight(errors: &mut Vec<Invalid>, weight: i32, path: &str) {
    if !(1..=100).contains(&weight) {
        errors.push(Invalid::value(
            format!("{path}.weight"),
            weight,
            "must be in the range 1-100",
        ));
    }
}

/// Validates a node selector term. Preferred terms may have values that are invalid for labels.
fn node_term(errors: &mut Vec<Invalid>, term: &NodeSelectorTerm, path: &str, required: bool) {
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        node_requirement(errors, requirement, &path);
        let key = &requirement.key;
        each(errors, &format!("{path}.key"), key, names::qualified_name(key));
        for (index, value) in requirement.values.iter().flatten().enumerate().filter(|_| required) {
            let field = format!("{path}.values[{index}]");
            each(errors, &field, value, names::label_value(value));
        }
    }
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        node_field(errors, requirement, &format!("{path}.matchFields[{index}]"));
    }
}

/// Validates a field requirement: only `metadata.name` is supported.
fn node_field(errors: &mut Vec<Invalid>, requirement: &NodeSelectorRequirement, path: &str) {
    let operator = requirement.operator.as_str();
    if operator != "In" && operator != "NotIn" {
        let detail = "not a valid selector operator";
        errors.push(Invalid::value(format!("{path}.operator"), operator, detail));
    } else if requirement.values.iter().flatten().count() != 1 {
        let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
        errors.push(Invalid::required(format!("{path}.values"), detail));
    }
    if requirement.key != "metadata.name" {
        let detail = "not a valid field selector key";
        return errors.push(Invalid::value(format!("{path}.key"), &requirement.key, detail));
    }
    for (index, value) in requirement.values.iter().flatten().enumerate() {
        let field = format!("{path}.values[{index}]");
        each(errors, &field, value, names::dns1123_subdomain(value));
    }
}

fn node_requirement(errors: &mut Vec<Invalid>, requirement: &NodeSelectorRequirement, path: &str) {
    let count = requirement.values.iter().flatten().count();
    let values = format!("{path}.values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if count == 0 => {
            errors.push(Invalid::required(
                values,
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        "Exists" | "DoesNotExist" if count > 0 => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(Invalid::forbidden(values, detail));
        }
        "Gt" | "Lt" if count != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(Invalid::required(values, detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(Invalid::value(
            format!("{path}.operator"),
            other,
            "not a valid selector operator",
        )),
    }
}

fn pod_terms(
    errors: &mut Vec<Invalid>,
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    path: &str,
) {
    for (index, term) in required.unwrap_or_default().iter().enumerate() {
        pod_term(
            errors,
            term,
            &format!("{path}.requiredDuringSchedulingIgnoredDuringExecution[{index}]"),
        );
    }
    for (index, term) in preferred.unwrap_or_default().iter().enumerate() {
        let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
        weight(errors, term.weight, &path);
        pod_term(errors, &term.pod_affinity_term, &format!("{path}.podAffinityTerm"));
    }
}

fn pod_term(errors: &mut Vec<Invalid>, term: &PodAffinityTerm, path: &str) {
    for (name, own) in [
        ("labelSelector", &term.label_selector),
        ("namespaceSelector", &term.namespace_selector),
    ] {
        if let Some(own) = own {
            selector::label_selector(errors, own, &format!("{path}.{name}"));
        }
    }
    for name in term.namespaces.iter().flatten() {
        each(errors, &format!("{path}.namespace"), name, names::dns1123_label(name));
    }
    let keys = [&term.match_label_keys, &term.mismatch_label_keys].map(|keys| keys.as_deref().unwrap_or_default());
    label_keys(errors, keys, term.label_selector.as_ref(), path);
    let field = format!("{path}.topologyKey");
    if term.topology_key.is_empty() {
        errors.push(Invalid::required(field.as_str(), "can not be empty"));
    }
    let name = &term.topology_key;
    each(errors, &field, name, names::qualified_name(name));
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` of a term or constraint. The selector must
/// not contain the same key, except that the selector of a created pod already has the pod's own
/// values.
fn label_keys(errors: &mut Vec<Invalid>, keys: [&[String]; 2], selector: Option<&LabelSelector>, path: &str) {
    for (name, keys) in ["matchLabelKeys", "mismatchLabelKeys"].into_iter().zip(keys) {
        let field = format!("{path}.{name}");
        if selector.is_none() && !keys.is_empty() {
            errors.push(Invalid::forbidden(
                field,
                "must not be specified when labelSelector is not set",
            ));
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            each(errors, &format!("{field}[{index}]"), key, names::qualified_name(key));
        }
    }
    let [matching, others] = keys;
    let mut selected: BTreeSet<&String> = BTreeSet::new();
    selected.extend(
        selector
            .into_iter()
            .flat_map(|own| own.match_labels.iter().flatten())
            .map(|(key, _)| key),
    );
    for expression in selector
        .into_iter()
        .flat_map(|own| own.match_expressions.iter().flatten())
    {
        let key = &expression.key;
        if let Some(index) = matching.iter().rposition(|own| own == key)
            && selected.contains(key)
        {
            // Upstream omits the field's name from the path.
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(Invalid::value(format!("{path}[{index}]"), key, detail));
        }
        selected.insert(key);
    }
    let others: BTreeSet<&String> = others.iter().collect();
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| others.contains(key)) {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(Invalid::value(format!("{path}.matchLabelKeys[{index}]"), key, detail));
    }
}

/// Validates the tolerations of a pod.
pub(in crate::workload::validation) fn tolerations(errors: &mut Vec<Invalid>, tolerations: &[Toleration], path: &str) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let key = toleration.key.as_deref().unwrap_or_default();
        let operator = toleration.operator.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        if key.is_empty() {
            if operator != "Exists" {
                let detail =
                    "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
                errors.push(Invalid::value(format!("{path}.operator"), operator, detail));
            }
        } else {
            each(errors, &format!("{path}.key"), key, names::qualified_name(key));
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Invalid::value(format!("{path}.effect"), effect, detail));
        }
        let field = format!("{path}.operator");
        match operator {
            "" | "Equal" => each(errors, &field, value, names::label_value(value)),
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let rendered = internal::toleration(toleration);
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(Invalid::rendered(field, rendered, detail));
            }
            other => errors.push(Invalid::not_supported(field, other, &["Equal", "Exists"])),
        }
        let effect = non_empty(toleration.effect.as_deref());
        one_of_or_none(errors, &format!("{path}.effect"), effect, &TAINT_EFFECTS);
    }
}

/// Validates the tolerations of a runtime class, which must be unique.
pub(crate) fn unique_tolerations(errors: &mut Vec<Invalid>, all: &[Toleration], path: &str) {
    tolerations(errors, all, path);
    let key = |own: &Toleration| {
        (
            own.key.clone(),
            own.operator.clone(),
            own.value.clone(),
            own.effect.clone(),
        )
    };
    let mut seen = BTreeSet::new();
    for (index, own) in all.iter().enumerate() {
        if !seen.insert(key(own)) {
            let mut error = Invalid::duplicate(format!("{path}[{index}]"), "");
            error.value = Some(internal::toleration(own));
            errors.push(error);
        }
    }
}

/// Validates topology spread constraints.
pub(super) fn spread(errors: &mut Vec<Invalid>, constraints: &[TopologySpreadConstraint], path: &str) {
    let kind = |own: &TopologySpreadConstraint| (own.topology_key.clone(), own.when_unsatisfiable.clone());
    let numbered = constraints.iter().enumerate();
    let last: BTreeMap<_, usize> = numbered.map(|(index, own)| (kind(own), index)).collect();
    for (index, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if constraint.max_skew <= 0 {
            errors.push(Invalid::value(
                format!("{path}.maxSkew"),
                constraint.max_skew,
                "must be greater than zero",
            ));
        }
        if constraint.topology_key.is_empty() {
            errors.push(Invalid::required(format!("{path}.topologyKey"), "can not be empty"));
        }
        let ways = ["DoNotSchedule", "ScheduleAnyway"];
        let way = Some(constraint.when_unsatisfiable.as_str());
        one_of_or_none(errors, &format!("{path}.whenUnsatisfiable"), way, &ways);
        if last.get(&kind(constraint)).is_some_and(|last| *last > index) {
            let (key, way) = (&constraint.topology_key, &constraint.when_unsatisfiable);
            let field = format!("{path}.{{topologyKey, whenUnsatisfiable}}");
            errors.push(Invalid::duplicate(field, format!("{{{key}, {way}}}")));
        }
        domains(errors, constraint, &path);
        let keys = [constraint.match_label_keys.as_deref().unwrap_or_default(), &[]];
        label_keys(errors, keys, constraint.label_selector.as_ref(), &path);
        if let Some(own) = &constraint.label_selector {
            selector::label_selector(errors, own, &format!("{path}.labelSelector"));
        }
    }
}

/// Validates `minDomains` and the node inclusion policies.
fn domains(errors: &mut Vec<Invalid>, constraint: &TopologySpreadConstraint, path: &str) {
    if let Some(least) = constraint.min_domains {
        let field = format!("{path}.minDomains");
        if least <= 0 {
            errors.push(Invalid::value(field.as_str(), least, "must be greater than zero"));
        }
        let way = &constraint.when_unsatisfiable;
        if way != "DoNotSchedule" {
            let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {way}");
            errors.push(Invalid::value(field, least, detail));
        }
    }
    for (name, policy) in [
        ("nodeAffinityPolicy", &constraint.node_affinity_policy),
        ("nodeTaintsPolicy", &constraint.node_taints_policy),
    ] {
        let field = format!("{path}.{name}");
        one_of_or_none(errors, &field, policy.as_deref(), &["Honor", "Ignore"]);
    }
}
