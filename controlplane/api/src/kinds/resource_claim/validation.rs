//! Validation of device claims at any path.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector,
    NetworkDeviceData, OpaqueDeviceConfiguration, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus,
};
use serde_json::Value;

use crate::value::cidr::Cidr;
use crate::value::invalid::{Invalid, InvalidKind};
use crate::value::names;
use crate::workload::validation::storage::csi_driver;
use crate::workload::validation::{each, immutable, node_selector, one_of, required, status_conditions};

/// Maximum number of requests, constraints or configurations of a claim, and of selectors of a
/// request.
const LIMIT: usize = 32;
/// Maximum number of consumers of a claim.
const CONSUMERS: usize = 256;
/// Maximum number of conditions of a device.
const CONDITIONS: usize = 8;
/// Maximum number of addresses of a network device.
const ADDRESSES: usize = 16;
/// Maximum size of a text for a driver, in bytes.
const LONGEST: usize = 10 << 10;
/// Maximum number of alternatives of a request.
const CHOICES: usize = 8;

/// Validates a new claim.
pub(super) fn validate(claim: &DeviceClaim, path: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let requests = claim.requests.as_deref().unwrap_or_default();
    let field = format!("{path}.requests");
    limit(&mut errors, &field, requests.len(), LIMIT);
    for (index, own) in requests.iter().enumerate() {
        let field = format!("{field}[{index}]");
        request(&mut errors, own, &field);
        if requests.iter().take(index).any(|earlier| earlier.name == own.name) {
            errors.push(Invalid::duplicate(field, &own.name));
        }
    }
    let constraints = claim.constraints.as_deref().unwrap_or_default();
    let field = format!("{path}.constraints");
    limit(&mut errors, &field, constraints.len(), LIMIT);
    for (index, own) in constraints.iter().enumerate() {
        constraint(&mut errors, own, requests, &format!("{field}[{index}]"));
    }
    let all = claim.config.as_deref().unwrap_or_default();
    let field = format!("{path}.config");
    limit(&mut errors, &field, all.len(), LIMIT);
    for (index, own) in all.iter().enumerate() {
        let field = format!("{field}[{index}]");
        references(
            &mut errors,
            own.requests.as_deref(),
            requests,
            &format!("{field}.requests"),
        );
        opaque(&mut errors, own.opaque.as_ref(), &field);
    }
    errors
}

pub(in crate::kinds) fn limit(errors: &mut Vec<Invalid>, field: &str, count: usize, limit: usize) {
    if count > limit {
        errors.push(Invalid::too_many(field, count, limit));
    }
}

fn request(errors: &mut Vec<Invalid>, own: &DeviceRequest, path: &str) {
    const ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    each(
        errors,
        &format!("{path}.name"),
        &own.name,
        names::dns1123_label(&own.name),
    );
    let choices = own.first_available.as_deref().unwrap_or_default();
    match (&own.exactly, choices) {
        (None, []) => errors.push(Invalid::required(path, ONE)),
        (Some(_), [_, ..]) => {
            let detail = format!("{ONE}, but multiple fields are set");
            errors.push(Invalid::rendered(path, "null".to_owned(), detail));
        }
        (Some(own), []) => {
            let path = format!("{path}.exactly");
            class(errors, &own.device_class_name, &path);
            selectors(errors, own.selectors.as_deref(), &path);
            amount(errors, own.allocation_mode.as_deref(), own.count, &path);
        }
        (None, choices) => {
            let path = format!("{path}.firstAvailable");
            limit(errors, &path, choices.len(), CHOICES);
            for (index, own) in choices.iter().enumerate() {
                let path = format!("{path}[{index}]");
                each(
                    errors,
                    &format!("{path}.name"),
                    &own.name,
                    names::dns1123_label(&own.name),
                );
                class(errors, &own.device_class_name, &path);
                selectors(errors, own.selectors.as_deref(), &path);
                amount(errors, own.allocation_mode.as_deref(), own.count, &path);
                if choices.iter().take(index).any(|earlier| earlier.name == own.name) {
                    errors.push(Invalid::duplicate(path, &own.name));
                }
            }
        }
    }
}

fn class(errors: &mut Vec<Invalid>, name: &str, path: &str) {
    let field = format!("{path}.deviceClassName");
    if required(errors, &field, Some(name)) {
        each(errors, &field, name, names::dns1123_subdomain(name));
    }
}

/// Validates device selectors. The driver's allocator evaluates their expressions.
pub(in crate::kinds) fn selectors(errors: &mut Vec<Invalid>, all: Option<&[DeviceSelector]>, path: &str) {
    let all = all.unwrap_or_default();
    let field = format!("{path}.selectors");
    limit(errors, &field, all.len(), LIMIT);
    for (index, own) in all.iter().enumerate() {
        let field = format!("{field}[{index}].cel");
        match &own.cel {
            None => errors.push(Invalid::required(field, "")),
            Some(cel) if cel.expression.len() > LONGEST => {
                errors.push(Invalid::too_long(format!("{field}.expression"), LONGEST));
            }
            Some(_) => {}
        }
    }
}

fn amount(errors: &mut Vec<Invalid>, mode: Option<&str>, count: Option<i64>, path: &str) {
    let (field, count) = (format!("{path}.count"), count.unwrap_or(0));
    match mode.unwrap_or_default() {
        "All" if count != 0 => {
            let detail = "must not be specified when allocationMode is 'All'";
            errors.push(Invalid::value(field, count, detail));
        }
        "ExactCount" if count <= 0 => errors.push(Invalid::value(field, count, "must be greater than zero")),
        "All" | "ExactCount" => {}
        other => {
            let field = format!("{path}.allocationMode");
            errors.push(Invalid::not_supported(field, other, &["All", "ExactCount"]));
        }
    }
}

fn constraint(errors: &mut Vec<Invalid>, own: &DeviceConstraint, known: &[DeviceRequest], path: &str) {
    references(errors, own.requests.as_deref(), known, &format!("{path}.requests"));
    if own.match_attribute.is_none() && own.distinct_attribute.is_none() {
        let detail =
            "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        errors.push(Invalid::required(path, detail));
    }
}

/// Validates references to requests.
fn references(errors: &mut Vec<Invalid>, all: Option<&[String]>, known: &[DeviceRequest], path: &str) {
    let all = all.unwrap_or_default();
    limit(errors, path, all.len(), LIMIT);
    for (index, own) in all.iter().enumerate() {
        reference(errors, own, known, &format!("{path}[{index}]"));
    }
}

/// Validates a reference to a request, or to an alternative of a request.
fn reference(errors: &mut Vec<Invalid>, own: &str, known: &[DeviceRequest], field: &str) {
    const NAME: &str =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let (name, choice) = own
        .split_once('/')
        .map_or((own, None), |(name, choice)| (name, Some(choice)));
    let found = known
        .iter()
        .find(|request| request.name == name)
        .is_some_and(|request| {
            let mut choices = request.first_available.iter().flatten();
            choice.is_none_or(|choice| choices.any(|one| one.name == choice))
        });
    if !found {
        errors.push(Invalid::value(field, own, NAME));
    }
}

/// Validates the name of a pool of devices.
pub(in crate::kinds) fn pool(errors: &mut Vec<Invalid>, field: &str, name: &str) {
    if required(errors, field, Some(name)) {
        for part in name.split('/') {
            each(errors, field, part, names::dns1123_subdomain(part));
        }
    }
}

/// Validates a status (`validateResourceClaimStatusUpdate` of
/// `pkg/apis/resource/validation/validation.go`).
pub(super) fn status(claim: &ResourceClaim, old: &ResourceClaimStatus) -> Vec<Invalid> {
    const RESERVED: &str = "status.reservedFor";
    let mut errors = Vec::new();
    let Some(new) = &claim.status else { return errors };
    let consumers = new.reserved_for.as_deref().unwrap_or_default();
    reservations(&mut errors, consumers, RESERVED);
    devices(&mut errors, new);
    let known = old.reserved_for.as_deref().unwrap_or_default();
    let is_deleted = claim.metadata.deletion_timestamp.is_some();
    if !consumers.is_empty() && new.allocation.is_none() {
        let detail = "may not be specified when `allocated` is not set";
        errors.push(Invalid::forbidden(RESERVED, detail));
    } else if is_deleted && !consumers.iter().all(|own| known.contains(own)) {
        let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(Invalid::forbidden(RESERVED, detail));
    }
    match (&new.allocation, &old.allocation) {
        (Some(_), Some(_)) => immutable(&mut errors, "status.allocation", &new.allocation, &old.allocation),
        (Some(own), None) => {
            let devices = claim.spec.devices.as_ref();
            let requests = devices.and_then(|devices| devices.requests.as_deref());
            allocation(&mut errors, own, requests.unwrap_or_default(), "status.allocation");
        }
        (None, _) => {}
    }
    errors
}

/// Validates the consumers of a claim.
fn reservations(errors: &mut Vec<Invalid>, all: &[ResourceClaimConsumerReference], path: &str) {
    limit(errors, path, all.len(), CONSUMERS);
    if all.len() > CONSUMERS {
        return;
    }
    for (index, own) in all.iter().enumerate() {
        for (name, value) in [("resource", &own.resource), ("name", &own.name), ("uid", &own.uid)] {
            required(errors, &format!("{path}[{index}].{name}"), Some(value));
        }
    }
    for (index, own) in all.iter().enumerate() {
        if all.iter().take(index).any(|earlier| earlier.uid == own.uid) {
            errors.push(Invalid::duplicate(format!("{path}[{index}]"), &own.uid));
        }
    }
}

/// A device by its driver, its pool, its name and its share.
type Identity = [String; 4];

/// Identity of a device with a status.
pub(super) fn identity(own: &AllocatedDeviceStatus) -> Identity {
    let share = own.share_id.as_deref().unwrap_or_default();
    [own.driver.as_str(), &own.pool, &own.device, share].map(str::to_owned)
}

/// Devices that a claim has been given.
pub(super) fn allocated(status: &ResourceClaimStatus) -> BTreeSet<Identity> {
    let devices = status.allocation.iter().flat_map(|own| &own.devices);
    let results = devices.flat_map(|own| own.results.iter().flatten());
    let identities = results.map(|own| {
        let share = own.share_id.as_deref().unwrap_or_default();
        [own.driver.as_str(), &own.pool, &own.device, share].map(str::to_owned)
    });
    identities.collect()
}

/// Validates what drivers say of the devices (`validateDeviceStatus`).
fn devices(errors: &mut Vec<Invalid>, status: &ResourceClaimStatus) {
    let (known, mut seen) = (allocated(status), BTreeSet::new());
    for (index, own) in status.devices.iter().flatten().enumerate() {
        let path = format!("status.devices[{index}]");
        csi_driver(errors, &format!("{path}.driver"), &own.driver);
        pool(errors, &format!("{path}.pool"), &own.pool);
        let name = &own.device;
        each(errors, &format!("{path}.device"), name, names::dns1123_label(name));
        let identity = identity(own);
        let [driver, pool, device, share] = &identity;
        let shown = format!(r#"{{"Driver":{driver:?},"Pool":{pool:?},"Device":{device:?},"ShareID":{share:?}}}"#);
        if !known.contains(&identity) {
            let detail = "must be an allocated device in the claim";
            errors.push(Invalid::rendered(path.as_str(), shown.clone(), detail));
        }
        let (field, conditions) = (format!("{path}.conditions"), own.conditions.as_deref());
        limit(errors, &field, conditions.map_or(0, <[_]>::len), CONDITIONS);
        status_conditions(errors, conditions.unwrap_or_default(), &field);
        if let Some(data) = own.data.as_ref().filter(|data| !data.0.is_null()) {
            raw(errors, format!("{path}.data"), &data.0);
        }
        if let Some(network) = &own.network_data {
            network_data(errors, network, &format!("{path}.networkData"));
        }
        if !seen.insert(identity) {
            errors.push(Invalid {
                field: path,
                kind: InvalidKind::Duplicate,
                value: Some(shown),
                detail: String::new(),
            });
        }
    }
}

fn network_data(errors: &mut Vec<Invalid>, own: &NetworkDeviceData, path: &str) {
    for (name, text, most) in [
        ("interfaceName", &own.interface_name, 256),
        ("hardwareAddress", &own.hardware_address, 128),
    ] {
        if text.as_ref().is_some_and(|text| text.len() > most) {
            errors.push(Invalid::too_long(format!("{path}.{name}"), most));
        }
    }
    let addresses = own.ips.as_deref().unwrap_or_default();
    limit(errors, &format!("{path}.ips"), addresses.len(), ADDRESSES);
    for (index, text) in addresses.iter().enumerate() {
        let field = format!("{path}.ips[{index}]");
        match text.parse::<Cidr>().ok().map(|range| range.to_string()) {
            None => {
                let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
                errors.push(Invalid::value(field.as_str(), text, detail));
            }
            Some(wanted) if wanted != *text => {
                let detail = format!("must be in canonical form ({wanted:?})");
                errors.push(Invalid::value(field.as_str(), text, detail));
            }
            Some(_) => {}
        }
        if addresses.iter().take(index).any(|earlier| earlier == text) {
            errors.push(Invalid::duplicate(field, text));
        }
    }
}

/// Validates a new allocation.
fn allocation(errors: &mut Vec<Invalid>, own: &AllocationResult, known: &[DeviceRequest], path: &str) {
    let devices = own.devices.clone().unwrap_or_default();
    let results = devices.results.unwrap_or_default();
    let field = format!("{path}.devices.results");
    limit(errors, &field, results.len(), LIMIT);
    for (index, result) in results.iter().enumerate() {
        let field = format!("{field}[{index}]");
        reference(errors, &result.request, known, &format!("{field}.request"));
        csi_driver(errors, &format!("{field}.driver"), &result.driver);
        pool(errors, &format!("{field}.pool"), &result.pool);
        let name = &result.device;
        each(errors, &format!("{field}.device"), name, names::dns1123_label(name));
    }
    let config = devices.config.unwrap_or_default();
    let field = format!("{path}.devices.config");
    // That of the class and that of the claim.
    limit(errors, &field, config.len(), 2 * LIMIT);
    for (index, own) in config.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let sources = ["FromClaim", "FromClass"];
        one_of(errors, &format!("{field}.source"), Some(&own.source), &sources);
        references(errors, own.requests.as_deref(), known, &format!("{field}.requests"));
        opaque(errors, own.opaque.as_ref(), &field);
    }
    if let Some(selector) = &own.node_selector {
        node_selector(errors, selector, &format!("{path}.nodeSelector"));
    }
}

/// Validates opaque driver configuration.
pub(in crate::kinds) fn opaque(errors: &mut Vec<Invalid>, own: Option<&OpaqueDeviceConfiguration>, path: &str) {
    let path = format!("{path}.opaque");
    match own {
        None => errors.push(Invalid::required(path, "")),
        Some(own) => {
            csi_driver(errors, &format!("{path}.driver"), &own.driver);
            raw(errors, format!("{path}.parameters"), &own.parameters.0);
        }
    }
}

/// Validates an object that only a driver understands.
fn raw(errors: &mut Vec<Invalid>, field: String, own: &Value) {
    if own.to_string().len() > LONGEST {
        errors.push(Invalid::too_long(field, LONGEST));
    } else if own.is_null() {
        errors.push(Invalid::required(field, ""));
    } else if !own.is_object() {
        let detail = "must be a valid JSON object";
        errors.push(Invalid::value(field, "<value omitted>", detail));
    }
}
