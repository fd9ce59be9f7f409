//! Validation of roles and bindings (`k8s.io/kubernetes/pkg/apis/rbac/validation`).

use k8s_openapi::api::rbac::v1::{AggregationRule, PolicyRule, RoleRef, Subject};

use super::{each, one_of_or_none};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::selector::LabelSelector;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Validates the rules of a role.
pub(crate) fn rules(errors: &mut Vec<Invalid>, rules: Option<&Vec<PolicyRule>>, namespaced: bool) {
    for (at, rule) in rules.into_iter().flatten().enumerate() {
        let field = |name: &str| format!("rules[{at}].{name}");
        let is_empty = |values: Option<&Vec<String>>| values.is_none_or(Vec::is_empty);
        if rule.verbs.is_empty() {
            errors.push(Invalid::required(
                field("verbs"),
                "verbs must contain at least one value",
            ));
        }
        let (groups, resources) = (rule.api_groups.as_ref(), rule.resources.as_ref());
        if let Some(paths) = rule.non_resource_urls.as_ref().filter(|paths| !paths.is_empty()) {
            let mut refuse = |because| {
                let shown = serde_json::to_string(paths).unwrap_or_default();
                errors.push(Invalid::rendered(field("nonResourceURLs"), shown, because));
            };
            if namespaced {
                refuse("namespaced rules cannot apply to non-resource URLs");
            }
            if !is_empty(groups) || !is_empty(resources) || !is_empty(rule.resource_names.as_ref()) {
                refuse("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if is_empty(groups) {
            let because = "resource rules must supply at least one api group";
            errors.push(Invalid::required(field("apiGroups"), because));
        }
        if is_empty(resources) {
            let because = "resource rules must supply at least one resource";
            errors.push(Invalid::required(field("resources"), because));
        }
    }
}

/// Validates the aggregation rule of a `ClusterRole`.
pub(crate) fn aggregation(errors: &mut Vec<Invalid>, rule: Option<&AggregationRule>) {
    let Some(rule) = rule else { return };
    let field = "aggregationRule.clusterRoleSelectors";
    let selectors = rule.cluster_role_selectors.as_deref().unwrap_or_default();
    if selectors.is_empty() {
        let because = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(Invalid::required(field, because));
    }
    for (at, selector) in selectors.iter().enumerate() {
        if let Err(error) = LabelSelector::of(Some(selector)) {
            let shown = serde_json::to_string(selector).unwrap_or_default();
            errors.push(Invalid::rendered(format!("{field}[{at}]"), shown, error.to_string()));
        }
    }
}

/// Validates a role binding.
pub(crate) fn binding(errors: &mut Vec<Invalid>, role: &RoleRef, subjects: &[Subject], namespaced: bool) {
    let group = role.api_group.as_deref().unwrap_or_default();
    if group != GROUP {
        errors.push(Invalid::not_supported("roleRef.apiGroup", group, &[GROUP]));
    }
    let kinds: &[&str] = if namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    one_of_or_none(errors, "roleRef.kind", Some(&role.kind), kinds);
    if role.name.is_empty() {
        errors.push(Invalid::required("roleRef.name", ""));
    } else {
        each(
            errors,
            "roleRef.name",
            &role.name,
            names::Rule::PathSegment.check(&role.name, false),
        );
    }
    for (at, subject) in subjects.iter().enumerate() {
        of_subject(errors, &format!("subjects[{at}]"), subject, namespaced);
    }
}

fn of_subject(errors: &mut Vec<Invalid>, at: &str, subject: &Subject, namespaced: bool) {
    let name = format!("{at}.name");
    if subject.name.is_empty() {
        errors.push(Invalid::required(&name, ""));
    }
    let group = subject.api_group.as_deref().unwrap_or_default();
    let own = match subject.kind.as_str() {
        "ServiceAccount" => {
            if !subject.name.is_empty() {
                each(
                    errors,
                    &name,
                    &subject.name,
                    names::Rule::Subdomain.check(&subject.name, false),
                );
            }
            ""
        }
        "User" | "Group" => GROUP,
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(Invalid::not_supported(format!("{at}.kind"), other, &kinds));
            return;
        }
    };
    if group != own {
        errors.push(Invalid::not_supported(format!("{at}.apiGroup"), group, &[own]));
    }
    let homeless = subject.namespace.as_deref().unwrap_or_default().is_empty();
    if own.is_empty() && !namespaced && homeless {
        errors.push(Invalid::required(format!("{at}.namespace"), ""));
    }
}

/// Reports a changed role reference, which is immutable.
pub(crate) fn same_role(errors: &mut Vec<Invalid>, new: &RoleRef, old: &RoleRef) {
    if new != old {
        let group = new.api_group.as_deref().unwrap_or_default();
        let shown = serde_json::json!({"APIGroup": group, "Kind": new.kind, "Name": new.name}).to_string();
        errors.push(Invalid::rendered("roleRef", shown, "cannot change roleRef"));
    }
}
