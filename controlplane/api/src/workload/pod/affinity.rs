//! Node selectors and node affinity of pods.

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// True if the node matches `nodeSelector` and the required node affinity.
pub fn required(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value));
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let wanted = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected && wanted.is_none_or(|wanted| selects(wanted, node))
}

/// True if the node matches one of the terms.
pub fn selects(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| meets(term, node))
}

/// Sum of the weights of the preferred terms that the node matches.
pub fn preference(spec: &PodSpec, node: &Node) -> i64 {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let wanted = affinity.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
    wanted
        .into_iter()
        .flatten()
        .filter(|term| meets(&term.preference, node))
        .map(|term| i64::from(term.weight))
        .sum()
}

/// True if the node matches the term. A term without requirements matches no node.
fn meets(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| {
        node.metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    let field = |key: &str| (key == "metadata.name").then(|| node.metadata.name.as_deref().unwrap_or_default());
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|requirement| holds(requirement, label(&requirement.key)))
        && fields
            .iter()
            .all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |found: &str| values.iter().any(|value| value == found);
    let compare = |holds: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|value| value.parse().ok());
        found
            .and_then(|found| found.parse().ok())
            .zip(bound)
            .is_some_and(|(found, bound)| holds(found, bound))
    };
    match requirement.operator.as_str() {
        "In" => found.is_some_and(listed),
        "NotIn" => !found.is_some_and(listed),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compare(|found, bound| found > bound),
        "Lt" => compare(|found, bound| found < bound),
        _ => false,
    }
}
