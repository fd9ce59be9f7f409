//! Validation of resource requirements.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::each;
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity;
use crate::workload::pod::{self, level};

const NO_RESOURCE: &str = "must be a standard resource type or fully qualified";

/// Validates limits and requests of a container.
pub(super) fn requirements(errors: &mut Vec<Invalid>, resources: &ResourceRequirements, path: &str) {
    let limits_path = format!("{path}.limits");
    let mut limits = BTreeMap::new();
    for (name, text) in resources.limits.iter().flatten() {
        let amount = amount(errors, name, text, &limits_path);
        limits.extend(amount.map(|amount| (name.as_str(), amount)));
    }
    let requests_path = format!("{path}.requests");
    for (name, text) in resources.requests.iter().flatten() {
        let Some(request) = amount(errors, name, text, &requests_path) else {
            continue;
        };
        let differs = match limits.get(name.as_str()) {
            Some(limit) if request != *limit && !may_differ(name) => {
                format!("must be equal to {name} limit of {limit}")
            }
            Some(limit) if request > *limit => format!("must be less than or equal to {name} limit of {limit}"),
            None if !may_differ(name) => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(Invalid::required(limits_path.as_str(), detail));
                continue;
            }
            Some(_) | None => continue,
        };
        errors.push(Invalid::value(requests_path.as_str(), request.to_string(), differs));
    }
    let given = [&resources.limits, &resources.requests];
    let mut named = given.into_iter().flatten().flat_map(BTreeMap::keys);
    if named.clone().any(|name| is_pages(name)) && !named.any(|name| matches!(name.as_str(), "cpu" | "memory")) {
        errors.push(Invalid::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// Validates pod-level limits and requests, also against those of the containers.
pub(super) fn of_pod(errors: &mut Vec<Invalid>, spec: &PodSpec, path: &str) {
    let Some(own) = &spec.resources else { return };
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        errors.push(Invalid::forbidden(path, "may not be set for a windows pod"));
        return;
    }
    if own.claims.is_some() {
        let detail = "claims may not be set for Resources at pod-level";
        errors.push(Invalid::forbidden(format!("{path}.claims"), detail));
    }
    let mut shared = own.clone();
    for (list, field) in [(&mut shared.limits, "limits"), (&mut shared.requests, "requests")] {
        let Some(list) = list else { continue };
        for name in list.keys().filter(|name| !level::is_shared(name)) {
            let field = format!("{path}.{field}[{name}]");
            if name.contains('/') || is_standard(name) {
                errors.push(Invalid::not_supported(field, name, &["cpu", "hugepages-", "memory"]));
            } else {
                errors.push(Invalid::value(field, name, NO_RESOURCE));
            }
        }
        list.retain(|name, _| level::is_shared(name));
    }
    requirements(errors, &shared, path);
    let read = |list: &Option<BTreeMap<String, Text>>, name: &str| -> Option<Quantity> {
        Quantity::parse(&list.as_ref()?.get(name)?.0).ok()
    };
    let mut covers = |what: &str, whole: &Option<BTreeMap<String, Text>>, sums: pod::Resources| {
        for (name, sum) in sums {
            if let Some(whole) = read(whole, &name).filter(|whole| sum > *whole) {
                let detail = format!("must be greater than or equal to aggregate container {what} of {sum}");
                errors.push(Invalid::value(
                    format!("{path}.{what}[{name}]"),
                    whole.to_string(),
                    detail,
                ));
            }
        }
    };
    covers("requests", &own.requests, pod::container_requests(spec));
    let mut pages = pod::container_limits(spec);
    pages.retain(|name, _| name.starts_with("hugepages-"));
    covers("limits", &own.limits, pages);
    for (index, container) in spec.containers.iter().enumerate() {
        let limits = container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref());
        for (name, limit) in limits.into_iter().flatten() {
            let limit = Quantity::of(limit);
            if let Some(whole) = read(&own.limits, name).filter(|whole| limit > *whole) {
                // Field names are spelled as upstream's.
                let field = format!("{path}.containers[{index}][{name}].limits");
                let detail = format!("must be less than or equal to pod limits of {whole}");
                errors.push(Invalid::value(field, limit.to_string(), detail));
            }
        }
    }
}

/// True if a request may be smaller than the limit: all native resources but huge pages.
pub(crate) fn may_differ(name: &str) -> bool {
    is_native(name) && !is_pages(name)
}

/// True if a resource takes only integer amounts.
pub(crate) fn is_integer(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

fn is_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// True for a resource of Kubernetes itself.
pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    let quota = format!("requests.{name}");
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&quota).is_empty()
}

/// True if an amount of huge pages is a multiple of the page size.
fn is_divisible(name: &str, amount: Quantity) -> bool {
    let Some(page) = name.strip_prefix("hugepages-") else {
        return true;
    };
    Quantity::parse(page).is_ok_and(|page| {
        page.is_whole() && !page.is_negative() && !page.is_zero() && amount.value() % page.value() == 0
    })
}

/// Resources that take only integer amounts.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// Checks amounts.
pub(super) fn amounts(errors: &mut Vec<Invalid>, amounts: Option<&BTreeMap<String, Text>>, path: &str) {
    for (name, text) in amounts.into_iter().flatten() {
        amount(errors, name, text, path);
    }
}

/// Parses and validates one amount; none if it is invalid.
fn amount(errors: &mut Vec<Invalid>, name: &str, text: &Text, path: &str) -> Option<Quantity> {
    let field = format!("{path}[{name}]");
    container_resource_name(errors, name, &field);
    let amount = match Quantity::parse(&text.0) {
        Ok(amount) => amount,
        Err(error) => {
            errors.push(Invalid::value(field, &text.0, error.to_string()));
            return None;
        }
    };
    if !is_divisible(name, amount) {
        let detail = format!("{amount} is not positive integer multiple of {name}");
        errors.push(Invalid::value(field.as_str(), &text.0, detail));
    }
    if amount.is_negative() {
        let detail = "must be greater than or equal to 0";
        errors.push(Invalid::value(field.as_str(), &text.0, detail));
    }
    if is_integer(name) && !amount.is_whole() {
        errors.push(Invalid::value(field, &text.0, "must be an integer"));
    }
    Some(amount)
}

/// Validates the name of any resource.
pub(crate) fn resource_name(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    let found = names::qualified_name(name);
    if found.is_empty() && !name.contains('/') && !is_standard(name) {
        errors.push(Invalid::value(field, name, NO_RESOURCE));
    }
    each(errors, field, name, found);
}

/// True for a standard resource name of containers or quotas.
fn is_standard(name: &str) -> bool {
    let split = name.strip_prefix("limits.").or_else(|| name.strip_prefix("requests."));
    is_standard_of_containers(split.unwrap_or(name))
        || matches!(name, "storage" | "requests.storage")
        || COUNTED.contains(&name)
        || is_pages(name.strip_prefix("requests.").unwrap_or(name))
}

fn is_standard_of_containers(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

/// Validates the name of a container resource.
pub(crate) fn container_resource_name(errors: &mut Vec<Invalid>, name: &str, field: &str) {
    resource_name(errors, name, field);
    let detail = if !name.contains('/') && !is_standard_of_containers(name) && !is_pages(name) {
        "must be a standard resource for containers"
    } else if !is_native(name) && !is_extended(name) {
        "doesn't follow extended resource name standard"
    } else {
        return;
    };
    errors.push(Invalid::value(field, name, detail));
}
