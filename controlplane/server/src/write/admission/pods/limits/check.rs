//! Checks of quantities against a `LimitRange`, with upstream's messages.

use std::collections::BTreeMap;

use api::pod::{self, Resources};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{LimitRange, PersistentVolumeClaimSpec, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::items_of;

/// Requests and limits of a container or pod.
struct Asked {
    requests: Resources,
    limits: Resources,
}

fn read(amounts: Option<&BTreeMap<String, Text>>) -> Resources {
    let amounts = amounts.into_iter().flatten();
    amounts
        .map(|(name, amount)| (name.clone(), Quantity::of(amount)))
        .collect()
}

fn of_container(resources: Option<&ResourceRequirements>) -> Asked {
    Asked {
        requests: read(resources.and_then(|resources| resources.requests.as_ref())),
        limits: read(resources.and_then(|resources| resources.limits.as_ref())),
    }
}

/// Collects the violations of a pod.
pub(super) fn pod(range: &LimitRange, spec: &PodSpec, found: &mut Vec<String>) {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let containers: Vec<Asked> = containers
        .map(|container| of_container(container.resources.as_ref()))
        .collect();
    for item in items_of(range, "Container") {
        for asked in &containers {
            bounds("Container", item, asked, found);
        }
    }
    let whole = Asked {
        requests: pod::requests(spec),
        limits: pod::limits(spec),
    };
    for item in items_of(range, "Pod") {
        bounds("Pod", item, &whole, found);
    }
}

/// Collects the violations of a claim: it has no limits, so its requests are compared with both
/// bounds.
pub(super) fn claim(range: &LimitRange, spec: &PersistentVolumeClaimSpec, found: &mut Vec<String>) {
    let kind = "PersistentVolumeClaim";
    let asked = Asked {
        requests: read(
            spec.resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref()),
        ),
        limits: Resources::new(),
    };
    for item in items_of(range, kind) {
        for (name, bound) in read(item.min.as_ref()) {
            found.extend(below(kind, &name, bound, &asked));
        }
        for (name, bound) in read(item.max.as_ref()) {
            let text = match asked.requests.get(&name) {
                None => format!("maximum {name} usage per {kind} is {bound}.  No request is specified"),
                Some(request) if *request > bound => {
                    format!("maximum {name} usage per {kind} is {bound}, but request is {request}")
                }
                Some(_) => continue,
            };
            found.push(text);
        }
    }
}

fn bounds(kind: &str, item: &k8s_openapi::api::core::v1::LimitRangeItem, asked: &Asked, found: &mut Vec<String>) {
    for (name, bound) in read(item.min.as_ref()) {
        found.extend(below(kind, &name, bound, asked));
    }
    for (name, bound) in read(item.max.as_ref()) {
        found.extend(above(kind, &name, bound, asked));
    }
    for (name, bound) in read(item.max_limit_request_ratio.as_ref()) {
        found.extend(stretched(kind, &name, bound, asked));
    }
}

fn below(kind: &str, name: &str, bound: Quantity, asked: &Asked) -> Option<String> {
    let but = |what: &str, amount: &Quantity| {
        Some(format!(
            "minimum {name} usage per {kind} is {bound}, but {what} is {amount}"
        ))
    };
    match (asked.requests.get(name), asked.limits.get(name)) {
        (None, _) => Some(format!(
            "minimum {name} usage per {kind} is {bound}.  No request is specified"
        )),
        (Some(request), _) if *request < bound => but("request", request),
        (Some(_), Some(limit)) if *limit < bound => but("limit", limit),
        (Some(_), Some(_) | None) => None,
    }
}

fn above(kind: &str, name: &str, bound: Quantity, asked: &Asked) -> Option<String> {
    let but = |what: &str, amount: &Quantity| {
        Some(format!(
            "maximum {name} usage per {kind} is {bound}, but {what} is {amount}"
        ))
    };
    match (asked.limits.get(name), asked.requests.get(name)) {
        (None, _) => Some(format!(
            "maximum {name} usage per {kind} is {bound}.  No limit is specified"
        )),
        (Some(limit), _) if *limit > bound => but("limit", limit),
        (Some(_), Some(request)) if *request > bound => but("request", request),
        (Some(_), Some(_) | None) => None,
    }
}

fn stretched(kind: &str, name: &str, bound: Quantity, asked: &Asked) -> Option<String> {
    let says = |but: &str| {
        Some(format!(
            "{name} max limit to request ratio per {kind} is {bound}, but {but}"
        ))
    };
    let given = |amounts: &Resources| amounts.get(name).copied().filter(|amount| !amount.is_zero());
    let Some(request) = given(&asked.requests) else {
        return says("no request is specified or request is 0");
    };
    let Some(limit) = given(&asked.limits) else {
        return says("no limit is specified or limit is 0");
    };
    let ratio = limit.per(request);
    if ratio > bound.per(Quantity::units(1)) {
        return says(&format!("provided ratio is {ratio:.6}"));
    }
    None
}
