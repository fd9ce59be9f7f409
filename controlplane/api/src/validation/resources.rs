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
}

/// Whether a request may be smaller than the limit.
fn may_differ(name: &str) -> bool {
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
        resource_name(errors, name, &field);
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

fn resource_name(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    each(errors, field, name, names::qualified_name(name));
    if !name.contains('/') && !may_differ(name) && !name.starts_with("hugepages-") {
        errors.push(Invalid::value(
            field,
            name,
            "must be a standard resource type or fully qualified",
        ));
    }
}
