//! Validation of quotas, with upstream's messages (`pkg/apis/core/validation`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceQuotaSpec, ScopedResourceSelectorRequirement};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::value::invalid::Invalid;
use crate::value::quantity::Quantity;
use crate::workload::validation::{ENOUGH, Shown, resources};

/// Scopes that only support the operator `Exists`.
const PLAIN: [&str; 5] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "Terminating",
];
const PAIRS: [(&str, &str); 2] = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
/// Compute resources of pods that a quota can limit.
const COMPUTE: [&str; 6] = [
    "cpu",
    "memory",
    "limits.cpu",
    "limits.memory",
    "requests.cpu",
    "requests.memory",
];
/// Other resources without a domain in their name that a quota can limit.
const OTHERS: [&str; 13] = [
    "configmaps",
    "ephemeral-storage",
    "limits.ephemeral-storage",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.ephemeral-storage",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Validates a spec.
pub(super) fn validate(spec: &ResourceQuotaSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    amounts(&mut errors, spec.hard.as_ref(), "spec.hard");
    scopes(&mut errors, spec);
    selector(&mut errors, spec);
    errors
}

/// Validates that the scopes do not change.
pub(super) fn update(new: &ResourceQuotaSpec, old: &ResourceQuotaSpec) -> Vec<Invalid> {
    let mut errors = validate(new);
    let sorted = |spec: &ResourceQuotaSpec| {
        let mut scopes = spec.scopes.clone().unwrap_or_default();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    };
    if sorted(new) != sorted(old) {
        errors.push(Invalid::rendered(
            "spec.scopes",
            shown(&new.scopes),
            crate::workload::validation::IMMUTABLE,
        ));
    }
    errors
}

fn shown<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn is_standard(name: &str) -> bool {
    let huge = name.strip_prefix("requests.").unwrap_or(name).starts_with("hugepages-");
    huge || COMPUTE.contains(&name) || OTHERS.contains(&name)
}

/// Validates quantities of a quota's spec or status.
pub(super) fn amounts(errors: &mut Vec<Invalid>, amounts: Option<&BTreeMap<String, Text>>, path: &str) {
    for (name, text) in amounts.into_iter().flatten() {
        let field = format!("{path}[{name}]");
        resources::resource_name(errors, name, &field);
        if !name.contains('/') && !is_standard(name) {
            let detail = "must be a standard resource for quota";
            errors.push(Invalid::value(field.as_str(), name, detail));
        }
        match Quantity::parse(&text.0) {
            Err(error) => errors.push(Invalid::value(field, &text.0, error.to_string())),
            Ok(amount) if amount.is_negative() => {
                errors.push(Invalid::value(field, &text.0, "must be greater than or equal to 0"));
            }
            Ok(amount) if resources::is_integer(name) && !amount.is_whole() => {
                errors.push(Invalid::value(field, &text.0, "must be an integer"));
            }
            Ok(_) => {}
        }
    }
}

fn fits(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "CrossNamespacePodAffinity" | "NotBestEffort" | "NotTerminating" | "PriorityClass" | "Terminating" => {
            resource == "pods" || COMPUTE.contains(&resource)
        }
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        _ => true,
    }
}

fn is_scope(scope: &str) -> bool {
    PLAIN.contains(&scope) || scope == "PriorityClass" || scope == "VolumeAttributesClass"
}

/// Number of limited resources that each scope does not match; scopes are few, resources may be
/// many.
struct Misfits<'a> {
    standard: Vec<&'a str>,
    known: BTreeMap<&'a str, usize>,
}

impl<'a> Misfits<'a> {
    fn new(spec: &'a ResourceQuotaSpec) -> Self {
        let names = spec.hard.iter().flatten().map(|(name, _)| name.as_str());
        Self {
            standard: names.filter(|name| is_standard(name)).collect(),
            known: BTreeMap::new(),
        }
    }

    fn of(&mut self, scope: &'a str) -> usize {
        if !is_scope(scope) {
            return 0;
        }
        let count = || self.standard.iter().filter(|name| !fits(scope, name)).count();
        *self.known.entry(scope).or_insert_with(count)
    }
}

fn conflicts(scopes: &[&str]) -> usize {
    let both = |pair: &&(&str, &str)| scopes.contains(&pair.0) && scopes.contains(&pair.1);
    PAIRS.iter().filter(both).count()
}

fn scopes(errors: &mut Vec<Invalid>, spec: &ResourceQuotaSpec) {
    let own: Vec<&str> = spec.scopes.iter().flatten().map(String::as_str).collect();
    let (mut shown, mut misfits) = (Shown::new(&own), Misfits::new(spec));
    let mut wrong = |detail: &str| {
        errors.push(Invalid::rendered("spec.scopes", shown.next(), detail));
        errors.len() < ENOUGH
    };
    for scope in &own {
        if !is_scope(scope) && !wrong("unsupported scope") {
            return;
        }
        if !(0..misfits.of(scope)).all(|_| wrong("unsupported scope applied to resource")) {
            return;
        }
    }
    for _ in 0..conflicts(&own) {
        wrong("conflicting scopes");
    }
}

fn selector(errors: &mut Vec<Invalid>, spec: &ResourceQuotaSpec) {
    const PATH: &str = "spec.scopeSelector.matchExpressions";
    let Some(selector) = &spec.scope_selector else { return };
    let demands = selector.match_expressions.as_deref().unwrap_or_default();
    let (mut shown, mut misfits) = (Shown::new(&spec.scope_selector), Misfits::new(spec));
    for own in demands {
        if errors.len() >= ENOUGH {
            return;
        }
        let scope = own.scope_name.as_str();
        if !is_scope(scope) {
            errors.push(Invalid::value(format!("{PATH}.scopeName"), scope, "unsupported scope"));
        }
        for _ in 0..misfits.of(scope).min(ENOUGH) {
            let detail = "unsupported scope applied to resource";
            errors.push(Invalid::rendered(PATH, shown.next(), detail));
        }
        demand(errors, own, PATH);
    }
    let own: Vec<&str> = demands.iter().map(|demand| demand.scope_name.as_str()).collect();
    let mut shown = Shown::new(&spec.scopes);
    for _ in 0..conflicts(&own) {
        errors.push(Invalid::rendered(PATH, shown.next(), "conflicting scopes"));
    }
}

fn demand(errors: &mut Vec<Invalid>, demand: &ScopedResourceSelectorRequirement, path: &str) {
    let (operator, values) = (format!("{path}.operator"), format!("{path}.values"));
    let given = demand.values.as_deref().unwrap_or_default();
    if PLAIN.contains(&demand.scope_name.as_str()) && demand.operator != "Exists" {
        let detail = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                      ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                      ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(Invalid::value(operator.as_str(), &demand.operator, detail));
    }
    match demand.operator.as_str() {
        "In" | "NotIn" if given.is_empty() => {
            let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.push(Invalid::required(values, detail));
        }
        "Exists" | "DoesNotExist" if !given.is_empty() => {
            let detail = "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector";
            errors.push(Invalid::rendered(values, shown(&given), detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(Invalid::value(operator, other, "not a valid selector operator")),
    }
}
