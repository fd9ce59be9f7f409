//! Validation of names, in upstream's words (`k8s.io/apimachinery/pkg/util/validation`), and
//! generated names.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// Upstream's message for an invalid IP address.
const ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// Reserved words of CEL besides its literals and `in` (`cel-go/parser/parser.go`).
const RESERVED: &str =
    "as break const continue else for function if import let loop package namespace return var void while";

/// True for a reserved word of CEL other than its literals and `in`.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.split(' ').any(|word| word == name)
}

/// The rule that a kind's `metadata.name` follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rule {
    /// RFC 1123 subdomain, up to 253 bytes.
    Subdomain,
    /// RFC 1123 label, up to 63 bytes.
    Label,
    /// Valid as a path segment of a URL.
    PathSegment,
    /// IP address in canonical form.
    Address,
}

impl Rule {
    /// Validates a name; `prefix` means that more will be appended, as with `generateName`.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        // A trailing dash is valid in a prefix: upstream masks it with a letter.
        let masked = if prefix && name.len() > 1 {
            mask_trailing_dash(name)
        } else {
            name.to_owned()
        };
        match self {
            Self::Subdomain => dns1123_subdomain(&masked),
            Self::Label => dns1123_label(&masked),
            Self::PathSegment => path_segment(name, prefix),
            Self::Address => address(name),
        }
    }
}

fn address(name: &str) -> Vec<String> {
    let plain = name.parse::<IpAddr>().map(|address| address.to_string());
    let detail = match (ambiguity(name), plain) {
        (Some(detail), _) => detail.to_owned(),
        (None, Ok(plain)) if plain != name => format!("must be in canonical form ({plain:?})"),
        (None, _) => return Vec::new(),
    };
    vec![detail]
}

/// Error of a text that is not an IP address, or is ambiguous (`parseIP` of
/// `apimachinery/pkg/util/validation/ip.go`).
pub(crate) fn ambiguity(text: &str) -> Option<&'static str> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        Ok(_) => None,
        Err(_) if without_zeros(text).is_some() => Some("must not have leading 0s"),
        Err(_) => Some(ADDRESS),
    }
}

/// Parses an IPv4 address, or an IPv6 address that ends with one, after stripping leading zeros.
pub(crate) fn without_zeros(text: &str) -> Option<IpAddr> {
    let (head, numbers) = text.rsplit_once(':').map_or(("", text), |(head, rest)| (head, rest));
    let colon = if text.contains(':') { ":" } else { "" };
    let numbers: Vec<&str> = numbers.split('.').collect();
    let short = numbers.iter().map(|number| match number.trim_start_matches('0') {
        "" if !number.is_empty() => "0",
        rest => rest,
    });
    let short = short.collect::<Vec<_>>().join(".");
    format!("{head}{colon}{short}")
        .parse()
        .ok()
        .filter(|_| numbers.len() == 4)
}

fn mask_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(rest) => format!("{rest}a"),
        None => name.to_owned(),
    }
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
'[a-z]([-a-z0-9]*[a-z0-9])?')";
const WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex \
used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Validates an RFC 1035 label, which begins with a letter.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63));
    }
    if !is_label(text) || !text.starts_with(|first: char| first.is_ascii_lowercase()) {
        errors.push(DNS1035.to_owned());
    }
    errors
}

/// Validates an RFC 1123 label.
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63));
    }
    if !is_label(text) {
        // Upstream returns the subdomain's message if dots are the only problem.
        errors.push(if is_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            LABEL.to_owned()
        });
    }
    errors
}

/// Validates a wildcard subdomain: the first label is `*`.
pub fn wildcard_subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    if !text.strip_prefix("*.").is_some_and(is_subdomain) {
        errors.push(WILDCARD.to_owned());
    }
    errors
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// Name of an event about an object: the object's with a number, or its UID where that would be
/// invalid (`GenerateEventName` of `staging/src/k8s.io/client-go/tools/record/util/util.go`).
pub fn of_event(name: &str, uid: &str, number: i128) -> String {
    let own = format!("{name}.{number:x}");
    if dns1123_subdomain(&own).is_empty() {
        own
    } else {
        format!("{uid}.{number:x}")
    }
}

/// Validates an RFC 1123 subdomain.
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    if !is_subdomain(text) {
        errors.push(SUBDOMAIN.to_owned());
    }
    errors
}

const LOOSE_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' \
or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
'_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";

/// Validates an RFC 1123 subdomain whose labels may have underscores, as in search domains of
/// resolvers.
pub(crate) fn loose_subdomain(text: &str) -> Vec<String> {
    let is_label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        !label.starts_with('_') && !label.ends_with('_') && is_label(&label.replace('_', "-"))
    };
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    if !text.split('.').all(is_label) {
        errors.push(LOOSE_SUBDOMAIN.to_owned());
    }
    errors
}

/// Validates a name that is used as a path segment.
pub(crate) fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|bad| name.contains(bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

fn is_qualified_part(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    edge(text.bytes().next())
        && edge(text.bytes().last())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Validates a qualified name, such as a label's key: `[subdomain/]name`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    dns1123_subdomain(prefix)
                        .into_iter()
                        .map(|error| format!("prefix part {error}")),
                );
            }
            *name
        }
        _ => {
            return vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", too_long(63)));
    }
    if !is_qualified_part(name) {
        errors.push(format!("name part {QUALIFIED}"));
    }
    errors
}

/// Validates a label's value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}

/// Validates a key of a `ConfigMap` or Secret.
pub fn config_key(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    if text.is_empty()
        || !text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        errors.push(CONFIG_KEY.to_owned());
    }
    if text == "." || text == ".." {
        errors.push(format!("must not be '{text}'"));
    } else if text.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

/// Validates the name of an HTTP header.
pub(crate) fn http_header(text: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !text.is_empty() && text.bytes().all(fits) {
        return Vec::new();
    }
    let rule = "a valid HTTP header must consist of alphanumeric characters or '-'";
    let example = "(e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
    vec![format!("{rule} {example}")]
}

/// Validates the name of an environment variable.
pub fn environment_name(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// Validates the name of a port.
pub fn port_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push(too_long(15));
    }
    if !text
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// Alphabet without vowels, as in upstream's `rand.String` and `rand.SafeEncodeString`.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

fn letter(number: u64) -> char {
    let index = usize::try_from(number % 27).unwrap_or_default();
    ALPHABET.get(index).map_or('b', |byte| char::from(*byte))
}

/// Name from `generateName`: the prefix, cut to 58 bytes, and five characters derived from
/// `random`.
pub fn generate(prefix: &str, random: u64) -> String {
    let mut end = prefix.len().min(58);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = prefix.get(..end).unwrap_or_default().to_owned();
    let mut rest = random;
    for _ in 0..5 {
        name.push(letter(rest));
        rest /= 27;
    }
    name
}

/// Hash of a pod template in the name of a `ReplicaSet`: up to ten characters. It depends only on
/// content, not on the order of fields or on fields that this version does not know, so that a
/// template's hash never changes. The label `pod-template-hash` itself does not count.
pub fn pod_template_hash(template: &PodTemplateSpec, collision: Option<i32>) -> String {
    let mut value = serde_json::to_value(template).unwrap_or_default();
    if let Some(labels) = value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("pod-template-hash");
    }
    let mut hash = Fnv::default();
    hash_value(&value, &mut hash);
    if let Some(collision) = collision {
        hash.write(collision.to_string().as_bytes());
    }
    hash.sum()
        .to_string()
        .bytes()
        .map(|digit| letter(u64::from(digit)))
        .collect()
}

/// The hash in the name of a StatefulSet's revision: FNV-1 of 32 bits over its data
/// (`HashControllerRevision` in `pkg/controller/history/controller_history.go`).
pub fn revision_hash(data: &Value, collisions: i32) -> String {
    let text = format!("{data}{collisions}");
    let sum = text.bytes().fold(0x811c_9dc5_u32, |sum, byte| {
        sum.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    });
    let digits = sum.to_string();
    digits.bytes().map(|digit| letter(u64::from(digit))).collect()
}

/// FNV-1a of 64 bits, folded to 32 as its authors advise, so that the decimal text has ten digits
/// at most.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    const fn sum(&self) -> u64 {
        (self.0 >> 32) ^ (self.0 & 0xffff_ffff)
    }
}

/// Hashes canonical JSON: members sorted by name, null and empty ones left out.
fn hash_value(value: &Value, hash: &mut Fnv) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().filter(|(_, member)| !is_empty(member)).collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            hash.write(b"{");
            for (name, member) in sorted {
                hash.write(Value::from(name.as_str()).to_string().as_bytes());
                hash.write(b":");
                hash_value(member, hash);
                hash.write(b",");
            }
            hash.write(b"}");
        }
        Value::Array(items) => {
            hash.write(b"[");
            for item in items {
                hash_value(item, hash);
                hash.write(b",");
            }
            hash.write(b"]");
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => hash.write(value.to_string().as_bytes()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => false,
    }
}
