//! Rules for amounts of resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::each;
use crate::invalid::Invalid;
use crate::names;
use crate::quantity::Quantity;

/// Limits and requests of a container.
pub(super) fn requirements(errors: &mut Vec<Invalid>, resources: &ResourceRequirements, path: &str) {
    let limits = amounts(errors, resources.limits.as_ref(), &format!("{path}.limits"));
    let requests = amounts(errors, resources.requests.as_ref(), &format!("{path}.requests"));
    for (name, request) in &requests {
        let field = format!("{path}.requests");
        match limits.get(name) {
            Some(limit) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(Invalid::value(field, request.to_string(), detail));
            }
            Some(limit) if request != limit && !may_differ(name) => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.push(Invalid::value(field, request.to_string(), detail));
            }
            None if !may_differ(name) => {
                let field = format!("{path}.limits");
                errors.push(Invalid::required(
                    field,
                    "Limit must be set for non overcommitable resources",
                ));
            }
            Some(_) | None => {}
        }
    }
    let pages = |name: &&str| name.starts_with("hugepages-");
    let ordinary = |name: &&str| matches!(*name, "cpu" | "memory");
    let mut named = limits.keys().chain(requests.keys()).copied();
    if named.clone().any(|name| pages(&name)) && !named.any(|name| ordinary(&name)) {
        errors.push(Invalid::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// Whether a request may be smaller than the limit.
pub(crate) fn may_differ(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

/// Reads amounts; those that break a rule are reported and left out.
pub(super) fn amounts<'a>(
    errors: &mut Vec<Invalid>,
    amounts: Option<&'a BTreeMap<String, Text>>,
    path: &str,
) -> BTreeMap<&'a str, Quantity> {
    let mut read = BTreeMap::new();
    for (name, text) in amounts.into_iter().flatten() {
        let field = format!("{path}[{name}]");
        container_resource_name(errors, name, &field);
        match Quantity::parse(&text.0) {
            Err(error) => errors.push(Invalid::value(field, &text.0, error.to_string())),
            Ok(amount) if amount.is_negative() => {
                errors.push(Invalid::value(field, &text.0, "must be greater than or equal to 0"));
            }
            Ok(amount) if !may_differ(name) && !amount.is_whole() => {
                errors.push(Invalid::value(field, &text.0, "must be an integer"));
            }
            Ok(amount) => {
                read.insert(name.as_str(), amount);
            }
        }
    }
    read
}

/// The name of anything that can be counted.
pub(crate) fn resource_name(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    each(errors, field, name, names::qualified_name(name));
    if !name.contains('/') && !is_standard(name) {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(Invalid::value(field, name, detail));
    }
}

/// Whether a name without a domain means something somewhere.
fn is_standard(name: &str) -> bool {
    let counted = [
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "storage",
    ];
    let split = name.strip_prefix("limits.").or_else(|| name.strip_prefix("requests."));
    may_differ(split.unwrap_or(name))
        || name == "requests.storage"
        || counted.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// The name of what a container can ask for.
pub(crate) fn container_resource_name(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    each(errors, field, name, names::qualified_name(name));
    if !name.contains('/') && !may_differ(name) && !name.starts_with("hugepages-") {
        errors.push(Invalid::value(
            field,
            name,
            "must be a standard resource type or fully qualified",
        ));
    }
}
