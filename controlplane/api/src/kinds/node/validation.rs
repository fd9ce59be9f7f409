//! Validation of nodes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::json;

use crate::value::cidr::Cidr;
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::value::quantity::Quantity;
use crate::workload::validation::resources::is_integer;
use crate::workload::validation::{TAINT_EFFECTS, each, one_of, plain_range};

const RANGES: &str = "spec.podCIDRs";
const UPPER_CAMEL_CASE: &str = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' \
                                (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters \
                                and slashes";

/// Validates a new node.
pub(super) fn validate(node: &Node) -> Vec<Invalid> {
    let mut errors = Vec::new();
    taints(&mut errors, node);
    amounts(&mut errors, node);
    features(&mut errors, node);
    let ranges = pod_ranges(node);
    for (index, own) in ranges.iter().enumerate() {
        plain_range(&mut errors, &format!("{RANGES}[{index}]"), own);
    }
    if ranges.len() > 1 {
        let parsed = ranges.iter().filter_map(|own| own.parse::<Cidr>().ok());
        let families: Vec<bool> = parsed.map(Cidr::is_ipv6).collect();
        if ranges.len() > 2 || !families.contains(&true) || !families.contains(&false) {
            let value = serde_json::to_string(ranges).unwrap_or_default();
            let detail = "may specify no more than one CIDR for each IP family";
            errors.push(Invalid::rendered(RANGES, value, detail));
        }
        let mut seen = BTreeSet::new();
        for (index, own) in ranges.iter().enumerate() {
            if !seen.insert(own) {
                errors.push(Invalid::duplicate(format!("{RANGES}[{index}]"), own));
            }
        }
    }
    errors
}

/// Validates a change of a node, its status included.
pub(super) fn validate_update(new: &Node, old: &Node) -> Vec<Invalid> {
    let mut errors = Vec::new();
    amounts(&mut errors, new);
    features(&mut errors, new);
    addresses(&mut errors, new);
    let (before, now) = (pod_ranges(old), pod_ranges(new));
    if !before.is_empty() && before != now {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        // Upstream reports one error for each range that differs.
        let differ = before.iter().zip(now).filter(|(before, now)| before != now).count();
        let times = if before.len() == now.len() { differ } else { 1 };
        errors.extend((0..times).map(|_| Invalid::forbidden(RANGES, detail)));
    }
    let id = |node: &Node| {
        node.spec
            .as_ref()
            .and_then(|spec| spec.provider_id.clone())
            .unwrap_or_default()
    };
    if !id(old).is_empty() && id(new) != id(old) {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.push(Invalid::forbidden("spec.providerID", detail));
    }
    taints(&mut errors, new);
    let external = |node: &Node| {
        node.spec
            .as_ref()
            .and_then(|spec| spec.external_id.clone())
            .unwrap_or_default()
    };
    if external(new) != external(old) {
        errors.push(Invalid::forbidden("spec.externalID", "may not be updated"));
    }
    errors
}

fn pod_ranges(node: &Node) -> &[String] {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default()
}

/// Validates taints. Upstream reports them with paths in metadata.
fn taints(errors: &mut Vec<Invalid>, node: &Node) {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let mut known = BTreeSet::new();
    for (index, taint) in taints.unwrap_or_default().iter().enumerate() {
        let path = format!("metadata.taints[{index}]");
        let (key, value) = (&taint.key, taint.value.as_deref().unwrap_or_default());
        each(errors, &format!("{path}.key"), key, names::qualified_name(key));
        let rest = names::label_value(value);
        each(errors, &format!("{path}.value"), value, rest);
        one_of(errors, &format!("{path}.effect"), Some(&taint.effect), &TAINT_EFFECTS);
        if !known.insert((key, &taint.effect)) {
            let mut error = Invalid::duplicate(path, "");
            error.value = Some(internal(taint));
            "taints must be unique by key and effect pair".clone_into(&mut error.detail);
            errors.push(error);
        }
    }
}

/// Taint as upstream shows it: with the names of Go's fields.
fn internal(taint: &Taint) -> String {
    let (key, effect, added) = (json!(taint.key), json!(taint.effect), json!(taint.time_added));
    let value = json!(taint.value.as_deref().unwrap_or_default());
    format!("{{\"Key\":{key},\"Value\":{value},\"Effect\":{effect},\"TimeAdded\":{added}}}")
}

fn amounts(errors: &mut Vec<Invalid>, node: &Node) {
    let Some(status) = &node.status else { return };
    let mut check = |list: &Option<BTreeMap<String, Text>>, path: &str| {
        for (name, text) in list.iter().flatten() {
            let (field, amount) = (format!("status.{path}.{name}"), Quantity::of(text));
            if amount.is_negative() {
                let detail = "must be greater than or equal to 0";
                errors.push(Invalid::value(field, &text.0, detail));
            } else if is_integer(name) && !amount.is_whole() {
                errors.push(Invalid::value(field, &text.0, "must be an integer"));
            }
        }
    };
    check(&status.capacity, "capacity");
    check(&status.allocatable, "allocatable");
}

/// Validates names and order of declared features (`validateNodeDeclaredFeatures`).
fn features(errors: &mut Vec<Invalid>, node: &Node) {
    let status = node.status.as_ref();
    let all = status
        .and_then(|status| status.declared_features.as_deref())
        .unwrap_or_default();
    for (index, name) in all.iter().enumerate() {
        let mut parts = name.split('/');
        let is_name = parts
            .next()
            .is_some_and(|first| first.starts_with(|letter: char| letter.is_ascii_uppercase()))
            && parts.all(|part| part.starts_with(|letter: char| letter.is_ascii_alphabetic()))
            && name.bytes().all(|byte| byte == b'/' || byte.is_ascii_alphanumeric());
        let because = match (name.len(), is_name) {
            (254.., _) => Some("must be no more than 253 characters"),
            (_, false) => Some(UPPER_CAMEL_CASE),
            (_, true) => None,
        };
        if let Some(because) = because {
            let detail = format!("invalid feature name {name:?}: {because}");
            let field = format!("status.declaredFeatures[{index}]");
            errors.push(Invalid::value(field, name, detail));
        }
        let field = format!("status.declaredFeatures[{}]", index + 1);
        match all.get(index + 1) {
            Some(next) if name == next => errors.push(Invalid::duplicate(field, next)),
            Some(next) if name > next => {
                errors.push(Invalid::value(field, next, "list must be sorted alphabetically"));
            }
            Some(_) | None => {}
        }
    }
}

fn addresses(errors: &mut Vec<Invalid>, node: &Node) {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_deref())
        .unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, address) in addresses.iter().enumerate() {
        if !seen.insert((&address.type_, &address.address)) {
            let mut error = Invalid::duplicate(format!("status.addresses[{index}]"), "");
            let (kind, own) = (json!(address.type_), json!(address.address));
            error.value = Some(format!("{{\"Type\":{kind},\"Address\":{own}}}"));
            errors.push(error);
        }
    }
}
