//! Validation of flow schemas, with upstream's messages (`pkg/apis/flowcontrol/validation`).

use k8s_openapi::api::flowcontrol::v1::{
    FlowSchemaSpec, NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject,
};

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{each, one_of_or_none, required};

/// Schema of requests that are never queued, the only one with the highest precedence.
const EXEMPT: &str = "exempt";
const LAST: i32 = 10_000;
const VERBS: [&str; 9] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];

/// Validates the spec of the flow schema of this name.
pub(super) fn validate(name: &str, spec: &FlowSchemaSpec) -> Vec<Invalid> {
    const PRECEDENCE: &str = "spec.matchingPrecedence";
    const LEVEL: &str = "spec.priorityLevelConfiguration.name";
    let mut errors = Vec::new();
    let precedence = spec.matching_precedence.unwrap_or(0);
    let mut wrong = |detail: String| errors.push(Invalid::value(PRECEDENCE, precedence, detail));
    if precedence <= 0 {
        wrong("must be a positive value".to_owned());
    }
    if precedence > LAST {
        wrong(format!("must not be greater than {LAST}"));
    }
    if precedence == 1 && name != EXEMPT {
        wrong("only the schema named 'exempt' may have matchingPrecedence 1".to_owned());
    }
    if let Some(method) = &spec.distinguisher_method {
        let field = "spec.distinguisherMethod.type";
        one_of_or_none(&mut errors, field, Some(&method.type_), &["ByNamespace", "ByUser"]);
    }
    let level = &spec.priority_level_configuration.name;
    if level.is_empty() {
        errors.push(Invalid::required(LEVEL, "must reference a priority level"));
    } else {
        each(&mut errors, LEVEL, level, names::dns1123_subdomain(level));
    }
    for (index, own) in spec.rules.iter().flatten().enumerate() {
        rules(&mut errors, own, &format!("spec.rules[{index}]"));
    }
    errors
}

fn rules(errors: &mut Vec<Invalid>, rules: &PolicyRulesWithSubjects, path: &str) {
    let subjects = format!("{path}.subjects");
    if rules.subjects.is_empty() {
        errors.push(Invalid::required(
            subjects.as_str(),
            "subjects must contain at least one value",
        ));
    }
    for (index, own) in rules.subjects.iter().enumerate() {
        subject(errors, own, &format!("{subjects}[{index}]"));
    }
    let resources = rules.resource_rules.as_deref().unwrap_or_default();
    let others = rules.non_resource_rules.as_deref().unwrap_or_default();
    if resources.is_empty() && others.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(Invalid::required(path, detail));
    }
    for (index, own) in resources.iter().enumerate() {
        resource_rule(errors, own, &format!("{path}.resourceRules[{index}]"));
    }
    for (index, own) in others.iter().enumerate() {
        other_rule(errors, own, &format!("{path}.nonResourceRules[{index}]"));
    }
}

fn subject(errors: &mut Vec<Invalid>, subject: &Subject, path: &str) {
    let given = [
        ("ServiceAccount", "serviceAccount", subject.service_account.is_some()),
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
    ];
    if !given.iter().any(|(kind, ..)| *kind == subject.kind) {
        let kinds = ["Group", "ServiceAccount", "User"];
        return errors.push(Invalid::not_supported(format!("{path}.kind"), &subject.kind, &kinds));
    }
    for (kind, field, there) in given {
        let place = format!("{path}.{field}");
        match (kind == subject.kind, there) {
            (true, false) => {
                let detail = format!("{field} is required when subject kind is '{kind}'");
                errors.push(Invalid::required(place, detail));
            }
            (true, true) => named(errors, subject, &place),
            (false, true) => {
                let detail = format!("{field} is forbidden when subject kind is not '{kind}'");
                errors.push(Invalid::forbidden(place, detail));
            }
            (false, false) => {}
        }
    }
}

fn named(errors: &mut Vec<Invalid>, subject: &Subject, path: &str) {
    let name = format!("{path}.name");
    let (user, group) = (&subject.user, &subject.group);
    let own = user
        .as_ref()
        .map(|user| &user.name)
        .or(group.as_ref().map(|group| &group.name));
    if let Some(account) = subject
        .service_account
        .as_ref()
        .filter(|_| subject.kind == "ServiceAccount")
    {
        if required(errors, &name, Some(&account.name)) && account.name != "*" {
            each(errors, &name, &account.name, names::dns1123_subdomain(&account.name));
        }
        let namespace = format!("{path}.namespace");
        if account.namespace.is_empty() {
            errors.push(Invalid::required(
                namespace,
                "must specify namespace for service account",
            ));
        } else {
            each(
                errors,
                &namespace,
                &account.namespace,
                names::dns1123_label(&account.namespace),
            );
        }
    } else {
        required(errors, &name, own.map(String::as_str));
    }
}

/// Validates a list that must not be empty and in which `*` must stand alone.
fn list(errors: &mut Vec<Invalid>, field: &str, all: &[String], missing: &str, others: &str) {
    if all.is_empty() {
        errors.push(Invalid::required(field, missing));
    } else if all.len() > 1 && all.iter().any(|one| one == "*") {
        let shown = serde_json::to_string(all).unwrap_or_default();
        let detail = format!("if '*' is present, must not specify other {others}");
        errors.push(Invalid::rendered(field, shown, detail));
    }
}

fn verbs(errors: &mut Vec<Invalid>, all: &[String], path: &str) {
    let field = format!("{path}.verbs");
    list(errors, &field, all, "verbs must contain at least one value", "verbs");
    let known = |verb: &String| verb == "*" || VERBS.contains(&verb.as_str());
    if !all.iter().any(|verb| verb == "*") && !all.iter().all(known) {
        let mut error = Invalid::not_supported(field, "", &VERBS);
        error.value = serde_json::to_string(all).ok();
        errors.push(error);
    }
}

fn resource_rule(errors: &mut Vec<Invalid>, rule: &ResourcePolicyRule, path: &str) {
    verbs(errors, &rule.verbs, path);
    let groups = format!("{path}.apiGroups");
    let missing = "resource rules must supply at least one api group";
    list(errors, &groups, &rule.api_groups, missing, "api groups");
    let resources = format!("{path}.resources");
    let missing = "resource rules must supply at least one resource";
    list(errors, &resources, &rule.resources, missing, "resources");
    let (field, namespaces) = (
        format!("{path}.namespaces"),
        rule.namespaces.as_deref().unwrap_or_default(),
    );
    if namespaces.is_empty() && rule.cluster_scope == Some(true) {
        return;
    }
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    list(errors, &field, namespaces, missing, "namespaces");
    if namespaces.iter().any(|namespace| namespace == "*") {
        return;
    }
    for (index, namespace) in namespaces.iter().enumerate() {
        let wrong = names::dns1123_label(namespace).into_iter();
        let wrong = wrong.map(|wrong| format!("each member of this list must be '*' or a DNS-1123 label; {wrong}"));
        each(errors, &format!("{field}[{index}]"), namespace, wrong.collect());
    }
}

fn other_rule(errors: &mut Vec<Invalid>, rule: &NonResourcePolicyRule, path: &str) {
    verbs(errors, &rule.verbs, path);
    let field = format!("{path}.nonResourceURLs");
    let missing = "nonResourceURLs must contain at least one value";
    list(errors, &field, &rule.non_resource_urls, missing, "non-resource URLs");
    if rule.non_resource_urls.iter().any(|url| url == "*") {
        return;
    }
    for (index, url) in rule.non_resource_urls.iter().enumerate() {
        if let Some(detail) = wrong_url(url) {
            errors.push(Invalid::value(format!("{field}[{index}]"), url, detail));
        }
    }
}

fn wrong_url(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    if url.is_empty() {
        Some("must not be empty")
    } else if !url.starts_with('/') {
        Some("must start with slash")
    } else if url.contains(' ') {
        Some("must not contain white-space")
    } else if url.contains("//") {
        Some("must not contain double slash")
    } else if stars > 1 || (stars == 1 && !url.ends_with("/*")) {
        Some("wildcard can only do suffix matching")
    } else {
        None
    }
}
