//! Aggregated cluster roles: their rules are those of all roles that their selectors match.

use std::sync::Arc;

use api::selector::LabelSelector;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde_json::json;

use crate::objects::{name, target};
use crate::step::{CLUSTER_ROLES, Plan};

/// Makes the plan for one role. `all` holds all cluster roles in the order of their names.
pub fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Plan {
    let mut plan = Plan::default();
    let Some(wanted) = rules(role, all) else { return plan };
    if role.metadata.deletion_timestamp.is_some() || wanted == role.rules.as_deref().unwrap_or_default() {
        return plan;
    }
    plan.stage(vec![target(CLUSTER_ROLES, role).merge(json!({
        "metadata": { "uid": role.metadata.uid, "resourceVersion": role.metadata.resource_version },
        "rules": wanted,
    }))]);
    plan
}

/// Returns each rule once, in the order of the selectors and of the roles' names; `None` for a role
/// without an aggregation rule.
fn rules(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.as_deref()?;
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors {
        // Stored selectors are valid; one that does not parse selects nothing.
        let Ok(selector) = LabelSelector::of(Some(selector)) else {
            continue;
        };
        for other in all {
            if name(&**other) == name(role) || !selector.matches_option(other.metadata.labels.as_ref()) {
                continue;
            }
            for rule in other.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Step;

    fn role(value: serde_json::Value) -> Arc<ClusterRole> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn rule(resource: &str) -> serde_json::Value {
        json!({ "apiGroups": [""], "resources": [resource], "verbs": ["get"] })
    }

    fn sum(rules: &serde_json::Value) -> Arc<ClusterRole> {
        role(json!({
            "metadata": { "name": "sum", "uid": "u", "resourceVersion": "7", "labels": { "to": "sum" } }, "rules": rules,
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { "to": "sum" } }] },
        }))
    }

    fn all(sum: &Arc<ClusterRole>) -> Vec<Arc<ClusterRole>> {
        vec![
            role(
                json!({ "metadata": { "name": "a", "labels": { "to": "sum" } }, "rules": [rule("pods"), rule("nodes")] }),
            ),
            role(json!({ "metadata": { "name": "b", "labels": { "to": "else" } }, "rules": [rule("secrets")] })),
            role(
                json!({ "metadata": { "name": "c", "labels": { "to": "sum" } }, "rules": [rule("pods"), rule("events")] }),
            ),
            sum.clone(),
        ]
    }

    #[test]
    fn the_rules_of_the_chosen_come_together_each_once() {
        let old = sum(&json!([rule("leases")]));
        let plan = plan(&old, &all(&old));
        let [stage] = plan.stages.as_slice() else {
            panic!("{plan}")
        };
        let [Step::Patch { body, .. }] = stage.as_slice() else {
            panic!("{plan}")
        };
        assert_eq!(
            **body,
            json!({
                "metadata": { "uid": "u", "resourceVersion": "7" },
                "rules": [rule("pods"), rule("nodes"), rule("events")],
            })
        );
    }

    #[test]
    fn a_role_that_has_them_or_chooses_none_is_left_alone() {
        let done = sum(&json!([rule("pods"), rule("nodes"), rule("events")]));
        assert!(plan(&done, &all(&done)).is_empty());
        let plain = role(json!({ "metadata": { "name": "x", "labels": { "to": "sum" } } }));
        assert!(plan(&plain, &all(&done)).is_empty());
    }
}
