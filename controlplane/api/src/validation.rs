//! Rules that several kinds share, with upstream's paths and texts (`k8s.io/kubernetes/pkg/apis/core/validation`).

mod affinity;
mod container;
pub(crate) mod cron;
mod ephemeral;
pub mod metadata;
pub mod pod_spec;
mod probe;
pub(crate) mod rbac;
mod resources;
mod restart;
mod volume;
pub mod workload;

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::invalid::Invalid;
use crate::names;

/// Upstream's text for a field that may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// One error for each message about one value.
pub(crate) fn each(errors: &mut Vec<Invalid>, field: &str, value: &str, messages: Vec<String>) {
    errors.extend(
        messages
            .into_iter()
            .map(|message| Invalid::value(field, value, message)),
    );
}

/// An error when a number is negative.
pub(crate) fn non_negative(errors: &mut Vec<Invalid>, field: &str, value: i64) {
    if value < 0 {
        errors.push(Invalid::value(field, value, "must be greater than or equal to 0"));
    }
}

/// An error when a field changed; the value is shown as JSON.
pub(crate) fn immutable<T: PartialEq + serde::Serialize>(errors: &mut Vec<Invalid>, field: &str, new: &T, old: &T) {
    if new != old {
        let value = serde_json::to_string(new).unwrap_or_default();
        errors.push(Invalid::rendered(field, value, IMMUTABLE));
    }
}

/// An error when a number is not a port.
pub(crate) fn port(errors: &mut Vec<Invalid>, field: &str, number: i32) {
    if !(1..=65535).contains(&number) {
        errors.push(Invalid::value(field, number, "must be between 1 and 65535, inclusive"));
    }
}

/// An error when a user or group id is out of range.
pub(crate) fn id(errors: &mut Vec<Invalid>, field: &str, id: Option<i64>) {
    if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        errors.push(Invalid::value(field, id, "must be between 0 and 2147483647, inclusive"));
    }
}

/// An error when a text is missing, or not one of a set.
pub(crate) fn one_of(errors: &mut Vec<Invalid>, field: &str, value: Option<&str>, supported: &[&str]) {
    match value.unwrap_or_default() {
        "" => errors.push(Invalid::required(field, "")),
        value if supported.contains(&value) => {}
        value => errors.push(Invalid::not_supported(field, value, supported)),
    }
}

/// Like [`one_of`], for texts that may be missing.
pub(crate) fn one_of_or_none(errors: &mut Vec<Invalid>, field: &str, value: Option<&str>, supported: &[&str]) {
    if let Some(value) = value.filter(|value| !supported.contains(value)) {
        errors.push(Invalid::not_supported(field, value, supported));
    }
}

/// An error when a text is missing or empty; says whether it is there.
pub(crate) fn required(errors: &mut Vec<Invalid>, field: &str, value: Option<&str>) -> bool {
    let there = value.is_some_and(|value| !value.is_empty());
    if !there {
        errors.push(Invalid::required(field, ""));
    }
    there
}

/// A number or the name of a port.
pub(crate) fn port_or_name(errors: &mut Vec<Invalid>, field: &str, value: &IntOrString) {
    match value {
        IntOrString::Int(number) => port(errors, field, *number),
        IntOrString::String(name) => each(errors, field, name, names::port_name(name)),
    }
}

/// Whether a text is an address and a prefix length.
pub(crate) fn is_range(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let (Ok(address), Ok(length)) = (address.parse::<IpAddr>(), length.parse::<u8>()) else {
        return false;
    };
    length <= if address.is_ipv4() { 32 } else { 128 }
}
