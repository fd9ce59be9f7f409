//! Changes of a pod that is not ready for scheduling: its nodes may be narrowed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, NodeAffinity, NodeSelectorTerm, PodSpec};

use crate::value::invalid::Invalid;
use crate::workload::validation::internal;

const TERMS: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

/// Copies the changes that are allowed from the old spec, and reports a change that does not narrow
/// the selected nodes.
pub(super) fn narrow(errors: &mut Vec<Invalid>, new: &mut PodSpec, old: &PodSpec) {
    if old.scheduling_gates.as_ref().is_none_or(Vec::is_empty) {
        return;
    }
    if new.node_selector != old.node_selector {
        selector(errors, new.node_selector.as_ref(), old.node_selector.as_ref());
        new.node_selector.clone_from(&old.node_selector);
    }
    let of = |spec: &PodSpec| {
        spec.affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.clone())
    };
    let (is, was) = (of(new), of(old));
    if is != was {
        affinity(errors, is.as_ref(), was.as_ref());
        new.affinity = restored(new.affinity.take(), was, old.affinity.is_some());
    }
}

/// New affinity with the old node affinity; none if only node affinity was added.
fn restored(new: Option<Affinity>, was: Option<NodeAffinity>, had_one: bool) -> Option<Affinity> {
    let new = match new {
        None => was.is_some().then(Affinity::default)?,
        Some(new) if !had_one && new.pod_affinity.is_none() && new.pod_anti_affinity.is_none() => return None,
        Some(new) => new,
    };
    Some(Affinity {
        node_affinity: was,
        ..new
    })
}

fn selector(errors: &mut Vec<Invalid>, new: Option<&BTreeMap<String, String>>, old: Option<&BTreeMap<String, String>>) {
    let value = |key: &String| new.and_then(|new| new.get(key));
    if old.into_iter().flatten().any(|(key, old)| value(key) != Some(old)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        let shown = serde_json::to_string(&new).unwrap_or_default();
        errors.push(Invalid::rendered("spec.nodeSelector", shown, detail));
    }
}

fn affinity(errors: &mut Vec<Invalid>, new: Option<&NodeAffinity>, old: Option<&NodeAffinity>) {
    let terms = |affinity: Option<&NodeAffinity>| {
        let required = affinity?.required_during_scheduling_ignored_during_execution.as_ref()?;
        Some(required.node_selector_terms.clone())
    };
    let Some(old) = terms(old).filter(|old| !old.is_empty()) else {
        return;
    };
    let new = terms(new).unwrap_or_default();
    if new.len() != old.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(Invalid::rendered(TERMS, internal::node_selector_terms(&new), detail));
        return;
    }
    for (index, (new, old)) in new.iter().zip(&old).enumerate() {
        if !only_adds(new, old) {
            let detail = "only additions are allowed (no mutations or deletions)";
            let shown = internal::node_selector_term(new);
            errors.push(Invalid::rendered(format!("{TERMS}[{index}]"), shown, detail));
        }
    }
}

fn only_adds(new: &NodeSelectorTerm, old: &NodeSelectorTerm) -> bool {
    let lists = |term: &NodeSelectorTerm| {
        let list = |list: &Option<Vec<_>>| list.clone().unwrap_or_default();
        [list(&term.match_expressions), list(&term.match_fields)]
    };
    let (new, old) = (lists(new), lists(old));
    // A term without requirements matches no node.
    if old.iter().all(Vec::is_empty) {
        return new.iter().all(Vec::is_empty);
    }
    new.iter().zip(&old).all(|(new, old)| new.starts_with(old))
}
