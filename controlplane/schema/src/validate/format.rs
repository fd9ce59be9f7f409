//! Formats of strings (`pkg/apiserver/validation/formats.go`, kube-openapi's
//! `pkg/validation/strfmt`).

mod address;
mod time;

use std::sync::OnceLock;

use regex::Regex;

use crate::pattern;
use crate::structural::{Kind, Node};

type Check = fn(&str) -> bool;

/// Supported formats, by the name without dashes. All other formats are ignored.
const FORMATS: [(&str, Check); 26] = [
    ("bsonobjectid", |text| {
        text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }),
    ("byte", |text| BYTE.matches(text)),
    ("cidr", address::is_cidr),
    ("creditcard", is_credit_card),
    ("date", time::is_date),
    ("datetime", time::is_date_time),
    ("duration", time::is_duration),
    ("email", address::is_email),
    ("hexcolor", |text| HEX_COLOR.matches(text)),
    ("hostname", is_hostname),
    ("ipv4", |text| {
        text.contains('.') && address::parse_sloppy(text).is_some()
    }),
    ("ipv6", |text| text.contains(':') && address::parse(text).is_some()),
    ("isbn", |text| is_isbn10(text) || is_isbn13(text)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("k8slongname", |text| text.len() <= 253 && LONG_NAME.matches(text)),
    ("k8sshortname", |text| text.len() <= 63 && SHORT_NAME.matches(text)),
    ("mac", address::is_mac),
    ("password", |_| true),
    ("rgbcolor", |text| RGB_COLOR.matches(text)),
    ("ssn", |text| text.len() == 11 && SSN.matches(text)),
    ("uri", address::is_uri),
    ("uuid", |text| UUID.matches(text)),
    ("uuid3", |text| UUID3.matches(text)),
    ("uuid4", |text| UUID4.matches(text)),
    ("uuid5", |text| UUID5.matches(text)),
];

static BYTE: Pattern = Pattern::new("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$");
static HEX_COLOR: Pattern = Pattern::new("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
static RGB_COLOR: Pattern = Pattern::new(
    r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])(\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])){2}\s*\)$",
);
static SSN: Pattern = Pattern::new(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$");
static SHORT_NAME: Pattern = Pattern::new("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");
static LONG_NAME: Pattern = Pattern::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$");
static UUID: Pattern = Pattern::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$");
static UUID3: Pattern = Pattern::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$");
static UUID4: Pattern = Pattern::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$");
static UUID5: Pattern = Pattern::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$");
static WORD: Pattern = Pattern::new(r"^[a-zA-Z0-9\p{S}\p{L}]+$");
static LETTERS: Pattern = Pattern::new(r"^[a-zA-Z\p{L}]+$");
static CREDIT_CARD: Pattern = Pattern::new(concat!(
    r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}",
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$",
));

/// Regular expression of a format, compiled on first use.
struct Pattern {
    text: &'static str,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    const fn new(text: &'static str) -> Self {
        Self {
            text,
            compiled: OnceLock::new(),
        }
    }

    fn matches(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| pattern::compile(self.text).ok());
        compiled.as_ref().is_some_and(|compiled| compiled.is_match(text))
    }
}

/// The format of a node if it applies to the node's type; empty otherwise.
pub(crate) fn of(node: &Node) -> &str {
    let format = node.format();
    if format.is_empty() {
        return "";
    }
    let kind = node.kind().filter(|_| !node.is_int_or_string());
    let is_supported = is_format(kind.map_or("", Kind::name), format);
    if is_supported { format } else { "" }
}

/// True if values of a type may have a format; the type is empty where a schema names none.
pub fn is_format(kind: &str, format: &str) -> bool {
    match kind {
        "" | "string" => find(format).is_some(),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Returns true if a string has the format; `None` if the format does not apply to strings.
pub(crate) fn check(format: &str, text: &str) -> Option<bool> {
    find(format).map(|check| check(text))
}

fn find(format: &str) -> Option<Check> {
    let name = format.replace('-', "");
    let found = FORMATS.iter().find(|(own, _)| *own == name);
    found.map(|(_, check)| *check)
}

/// Matches upstream's `HostnamePattern`, which counts code points and would take megabytes as a
/// compiled expression.
fn is_hostname(text: &str) -> bool {
    let length = |part: &str| part.chars().count();
    if text.len() > 255 || text.split('.').any(|part| part.len() > 63) {
        return false;
    }
    let Some((labels, top)) = text.rsplit_once('.') else {
        let first = text.chars().next().map_or(0, char::len_utf8);
        let (first, rest) = text.split_at_checked(first).unwrap_or_default();
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        return WORD.matches(first) && (rest.is_empty() || WORD.matches(rest)) && length(rest) <= 62;
    };
    let is_label = |label: &str| {
        !label.starts_with('-') && !label.ends_with('-') && length(label) <= 63 && WORD.matches(&label.replace('-', ""))
    };
    labels.split('.').all(is_label) && LETTERS.matches(top) && (2..=63).contains(&length(top))
}

/// Checks the prefix and the check digit (Luhn).
fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !CREDIT_CARD.matches(&digits) {
        return false;
    }
    let digits = digits.chars().rev().filter_map(|digit| digit.to_digit(10));
    let doubled = |digit: u32| if digit >= 5 { digit * 2 - 9 } else { digit * 2 };
    let sum: u32 = digits
        .enumerate()
        .map(|(at, digit)| if at % 2 == 1 { doubled(digit) } else { digit })
        .sum();
    sum.is_multiple_of(10)
}

/// Removes the separators between the digits.
fn isbn(text: &str) -> String {
    let is_between = |character: &char| matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0c' | '-');
    text.chars().filter(|character| !is_between(character)).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = isbn(text);
    let Some((digits, last)) = text.split_at_checked(9).filter(|(_, last)| last.len() == 1) else {
        return false;
    };
    let last = if last == "X" { Some(10) } else { last.parse().ok() };
    let digits: Option<Vec<u32>> = digits.chars().map(|digit| digit.to_digit(10)).collect();
    let (Some(digits), Some(last)) = (digits, last) else {
        return false;
    };
    let sum: u32 = (1..).zip(digits).map(|(weight, digit)| weight * digit).sum();
    (sum + 10 * last).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits: Option<Vec<u32>> = isbn(text).chars().map(|digit| digit.to_digit(10)).collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 13) else {
        return false;
    };
    let sum: u32 = digits
        .iter()
        .zip([1, 3].iter().cycle())
        .map(|(digit, weight)| digit * weight)
        .sum();
    sum.is_multiple_of(10)
}
