//! Validation that several kinds share, with upstream's paths and messages
//! (`k8s.io/kubernetes/pkg/apis/core/validation`).

pub(crate) mod annotations;
pub(crate) mod apparmor;
mod container;
pub(crate) mod counts;
pub(crate) mod internal;
pub mod metadata;
pub mod pod_spec;
pub(crate) mod rbac;
pub(crate) mod resources;
pub(crate) mod selector;
pub(crate) mod storage;
pub mod workload;

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::pod_spec::affinity::{node_selector, unique_tolerations, volume_node_affinity};
pub(crate) use self::pod_spec::volume::{nfs_path, volume_path};
use crate::value::cidr::Cidr;
use crate::value::invalid::Invalid;
use crate::value::names;

/// Upstream's message for an immutable field.
pub const IMMUTABLE: &str = "field is immutable";

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
    alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  \
    or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
    '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

/// Second of Go's zero time.
const NO_TIME: i64 = -62_135_596_800;

/// Errors that the stored object does not have: objects from before a rule was added may still be
/// updated.
pub(crate) fn newly(found: Vec<Invalid>, before: impl FnOnce() -> Vec<Invalid>) -> Vec<Invalid> {
    if found.is_empty() {
        return found;
    }
    let before: BTreeSet<String> = before().iter().map(ToString::to_string).collect();
    let is_new = |error: &Invalid| !before.contains(&error.to_string());
    found.into_iter().filter(is_new).collect()
}

/// Fields that differ, one per line, with `-` before the old value and `+` before the new. Upstream
/// shows a unified diff of its internal types there (`diff.Diff`).
pub(crate) fn difference<T: Serialize>(new: &T, old: &T) -> String {
    let members = |value: &T| match serde_json::to_value(value) {
        Ok(Value::Object(members)) => members,
        Ok(_) | Err(_) => Map::new(),
    };
    let (new, old) = (members(new), members(old));
    let mut lines = Vec::new();
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        let (was, is) = (old.get(name), new.get(name));
        if was != is {
            let shown = |value: Option<&Value>| value.map_or_else(|| "nil".to_owned(), ToString::to_string);
            lines.push(format!("- {name}: {}", shown(was)));
            lines.push(format!("+ {name}: {}", shown(is)));
        }
    }
    lines.join("\n")
}

/// Adds one error for each message about one value.
pub(crate) fn each(errors: &mut Vec<Invalid>, field: &str, value: &str, messages: Vec<String>) {
    errors.extend(
        messages
            .into_iter()
            .map(|message| Invalid::value(field, value, message)),
    );
}

/// Validates a path below a volume's root.
fn local_path(errors: &mut Vec<Invalid>, field: &str, path: &str) {
    if !required(errors, field, Some(path)) {
        return;
    }
    if path.starts_with('/') {
        errors.push(Invalid::value(field, path, "must be a relative path"));
    }
    no_backsteps(errors, field, path);
    if path.starts_with("..") && !path.split('/').any(|part| part == "..") {
        errors.push(Invalid::value(field, path, "must not start with '..'"));
    }
}

fn no_backsteps(errors: &mut Vec<Invalid>, field: &str, path: &str) {
    if path.split('/').any(|part| part == "..") {
        errors.push(Invalid::value(field, path, "must not contain '..'"));
    }
}

/// Number of errors of one list after which validation stops: an object may have a hundred thousand
/// labels.
pub(crate) const ENOUGH: usize = 200;

/// Value that several errors show: a long one only in the first, so that a list is not repeated for
/// each of its items.
pub(crate) struct Shown(String);

impl Shown {
    pub(crate) fn new<T: Serialize + ?Sized>(value: &T) -> Self {
        Self(serde_json::to_string(value).unwrap_or_default())
    }

    pub(crate) fn next(&mut self) -> String {
        const LONG: usize = 4096;
        if self.0.len() > LONG {
            std::mem::take(&mut self.0)
        } else {
            self.0.clone()
        }
    }
}

/// Validates a path that begins with a domain, `acme.io/foo`.
pub fn domain_prefixed_path(field: &str, text: &str) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let parts = text
        .split_once('/')
        .filter(|(host, path)| !host.is_empty() && !path.is_empty());
    let Some((host, path)) = parts else {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![Invalid::value(field, text, detail)];
    };
    each(&mut errors, field, host, names::dns1123_subdomain(host));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !path.bytes().all(fits) {
        let detail = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
        errors.push(Invalid::value(field, path, detail));
    }
    errors
}

/// Reports a negative number.
pub(crate) fn non_negative(errors: &mut Vec<Invalid>, field: &str, value: i64) {
    if value < 0 {
        errors.push(Invalid::value(field, value, "must be greater than or equal to 0"));
    }
}

/// Reports a changed field; the value is shown as JSON.
pub(crate) fn immutable<T: PartialEq + Serialize>(errors: &mut Vec<Invalid>, field: &str, new: &T, old: &T) {
    let json = |new: &T| serde_json::to_string(new).unwrap_or_default();
    immutable_shown(errors, field, (new, old), json);
}

/// Like [`immutable`], with the value formatted by `show`.
pub(crate) fn immutable_shown<T: PartialEq>(
    errors: &mut Vec<Invalid>,
    field: &str,
    (new, old): (&T, &T),
    show: impl FnOnce(&T) -> String,
) {
    if new != old {
        errors.push(Invalid::rendered(field, show(new), IMMUTABLE));
    }
}

/// Reports a number that is not a port.
pub(crate) fn port(errors: &mut Vec<Invalid>, field: &str, number: i32) {
    if !(1..=65535).contains(&number) {
        errors.push(Invalid::value(field, number, "must be between 1 and 65535, inclusive"));
    }
}

/// Reports a user or group ID that is out of range.
pub(crate) fn id(errors: &mut Vec<Invalid>, field: &str, id: Option<i64>) {
    if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        errors.push(Invalid::value(field, id, "must be between 0 and 2147483647, inclusive"));
    }
}

/// Reports a text that is missing or not supported.
pub(crate) fn one_of(errors: &mut Vec<Invalid>, field: &str, value: Option<&str>, supported: &[&str]) {
    match value.unwrap_or_default() {
        "" => errors.push(Invalid::required(field, "")),
        value if supported.contains(&value) => {}
        value => errors.push(Invalid::not_supported(field, value, supported)),
    }
}

/// Like [`one_of`], for optional texts.
pub(crate) fn one_of_or_none(errors: &mut Vec<Invalid>, field: &str, value: Option<&str>, supported: &[&str]) {
    if let Some(value) = value.filter(|value| !supported.contains(value)) {
        errors.push(Invalid::not_supported(field, value, supported));
    }
}

/// Reports a text that is missing or empty; true if it is present.
pub(crate) fn required(errors: &mut Vec<Invalid>, field: &str, value: Option<&str>) -> bool {
    let there = value.is_some_and(|value| !value.is_empty());
    if !there {
        errors.push(Invalid::required(field, ""));
    }
    there
}

/// Text, unless it is missing or empty.
pub(crate) fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Validates a port number or name.
pub(crate) fn port_or_name(errors: &mut Vec<Invalid>, field: &str, value: &IntOrString) {
    match value {
        IntOrString::Int(number) => port(errors, field, *number),
        IntOrString::String(name) => each(errors, field, name, names::port_name(name)),
    }
}

/// Effects of taints on pods that do not tolerate them.
pub(crate) const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The protocols that ports may have.
pub(crate) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Upstream's message for an invalid CIDR.
pub(crate) const RANGE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Reports a text that is not a CIDR in canonical form: its first address, as short as possible.
pub(crate) fn canonical_range(errors: &mut Vec<Invalid>, field: &str, text: &str) {
    let Ok(range) = text.parse::<Cidr>() else {
        return errors.push(Invalid::value(field, text, RANGE));
    };
    let wanted = range.to_string();
    if range.network() != range.address {
        let detail = "must not have bits set beyond the prefix length";
        errors.push(Invalid::value(field, text, detail));
    } else if wanted != text {
        errors.push(Invalid::value(
            field,
            text,
            format!("must be in canonical form ({wanted:?})"),
        ));
    }
}

/// Reports a text that is not an IP address, or is ambiguous.
pub(crate) fn address(errors: &mut Vec<Invalid>, field: &str, text: &str) {
    errors.extend(names::ambiguity(text).map(|detail| Invalid::value(field, text, detail)));
}

/// Reports a text that is not a CIDR, or is ambiguous.
pub(crate) fn plain_range(errors: &mut Vec<Invalid>, field: &str, text: &str) {
    let parts = text.split_once('/').and_then(|(address, length)| {
        let read = address.parse().ok().or_else(|| names::without_zeros(address))?;
        let is_short = length.len() == 1 || !length.starts_with('0');
        let digits = length.bytes().all(|byte| byte.is_ascii_digit());
        let length = length.parse::<u8>().ok().filter(|_| digits)?;
        let is_plain = is_short && address.parse::<IpAddr>().is_ok();
        Some((Cidr::new(read, length)?, is_plain))
    });
    let detail = match parts {
        None => RANGE,
        Some((_, false)) => "must not have leading 0s in IP or prefix length",
        Some((range, _)) if matches!(range.address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) => {
            "must not have an IPv4-mapped IPv6 address"
        }
        Some((range, _)) if range.network() != range.address => "must not have bits set beyond the prefix length",
        Some(_) => return,
    };
    errors.push(Invalid::value(field, text, detail));
}

/// Reports addresses that an endpoint of a Service must not have.
pub(crate) fn endpoint_address(errors: &mut Vec<Invalid>, field: &str, text: &str) {
    let Ok(address) = text.parse::<IpAddr>() else { return };
    let (link_local, multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), matches!(address.octets(), [224, 0, 0, _])),
        IpAddr::V6(address) => {
            let first = address.segments().into_iter().next().unwrap_or_default();
            (address.is_unicast_link_local(), first & 0xff0f == 0xff02)
        }
    };
    let mut wrong = |detail: String| errors.push(Invalid::value(field, text, detail));
    if address.is_unspecified() {
        wrong(format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        wrong("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned());
    }
    if link_local {
        wrong("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned());
    }
    if multicast {
        wrong("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned());
    }
}

/// Validates a reference to an object of any kind in the same namespace.
pub(crate) fn reference(errors: &mut Vec<Invalid>, path: &str, group: Option<&str>, kind: &str, name: &str) {
    if let Some(group) = group {
        each(
            errors,
            &format!("{path}.apiGroup"),
            group,
            names::dns1123_subdomain(group),
        );
    }
    for (field, text) in [("kind", kind), ("name", name)] {
        let field = format!("{path}.{field}");
        if required(errors, &field, Some(text)) {
            each(errors, &field, text, names::Rule::PathSegment.check(text, false));
        }
    }
}

/// Validates the conditions of a status (`ValidateConditions` of
/// `k8s.io/apimachinery/pkg/apis/meta/v1/validation`).
pub(crate) fn status_conditions(errors: &mut Vec<Invalid>, conditions: &[Condition], path: &str) {
    let mut known = BTreeSet::new();
    for (index, own) in conditions.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if !known.insert(&own.type_) {
            errors.push(Invalid::duplicate(format!("{path}.type"), &own.type_));
        }
        each(
            errors,
            &format!("{path}.type"),
            &own.type_,
            names::qualified_name(&own.type_),
        );
        let statuses = ["False", "True", "Unknown"];
        one_of_or_none(errors, &format!("{path}.status"), Some(&own.status), &statuses);
        if let Some(generation) = own.observed_generation.filter(|generation| *generation < 0) {
            let detail = "must be greater than or equal to zero";
            errors.push(Invalid::value(format!("{path}.observedGeneration"), generation, detail));
        }
        if own.last_transition_time.0.as_second() == NO_TIME {
            errors.push(Invalid::required(format!("{path}.lastTransitionTime"), ""));
        }
        let field = format!("{path}.reason");
        if required(errors, &field, Some(&own.reason)) {
            if !is_reason(&own.reason) {
                errors.push(Invalid::value(field.as_str(), &own.reason, REASON));
            }
            if own.reason.len() > 1024 {
                errors.push(Invalid::too_long(field, 1024));
            }
        }
        if own.message.len() > 32 * 1024 {
            errors.push(Invalid::too_long(format!("{path}.message"), 32 * 1024));
        }
    }
}

fn is_reason(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte);
    let ends = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic) && bytes.last().is_some_and(ends) && text.bytes().all(is_inner)
}
