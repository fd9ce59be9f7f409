//! Named formats (`k8s.io/apiserver/pkg/cel/library/format.go`).

use api::names;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::standard::one;
use super::{Context, Function};
use crate::value::opaque::{NamedFormat, Url};
use crate::value::time::Timestamp;
use crate::value::{Error, Value};

const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                          alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', \
                          regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

static FORMATS: &[NamedFormat] = &[
    NamedFormat {
        name: "dns1123Label",
        pattern: 30,
        check: names::dns1123_label,
    },
    NamedFormat {
        name: "dns1123Subdomain",
        pattern: 60,
        check: names::dns1123_subdomain,
    },
    NamedFormat {
        name: "dns1035Label",
        pattern: 30,
        check: dns1035_label,
    },
    NamedFormat {
        name: "qualifiedName",
        pattern: 60,
        check: names::qualified_name,
    },
    NamedFormat {
        name: "dns1123LabelPrefix",
        pattern: 30,
        check: |text| names::Rule::Label.check(text, true),
    },
    NamedFormat {
        name: "dns1123SubdomainPrefix",
        pattern: 60,
        check: |text| names::Rule::Subdomain.check(text, true),
    },
    NamedFormat {
        name: "dns1035LabelPrefix",
        pattern: 30,
        check: |text| match text.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => dns1035_label(&format!("{rest}a")),
            _ => dns1035_label(text),
        },
    },
    NamedFormat {
        name: "labelValue",
        pattern: 40,
        check: names::label_value,
    },
    NamedFormat {
        name: "uri",
        pattern: 1103,
        check: |text| Url::parse(text).err().into_iter().collect(),
    },
    NamedFormat {
        name: "uuid",
        pattern: 70,
        check: |text| wrong(!is_uuid(text), "does not match the UUID format"),
    },
    NamedFormat {
        name: "byte",
        pattern: 84,
        check: |text| wrong(text.is_empty() || STANDARD.decode(text).is_err(), "invalid base64"),
    },
    NamedFormat {
        name: "date",
        pattern: 71,
        check: |text| wrong(Timestamp::parse(&format!("{text}T00:00:00Z")).is_none(), "invalid date"),
    },
    NamedFormat {
        name: "datetime",
        pattern: 71,
        check: |text| {
            wrong(
                Timestamp::parse(&text.to_ascii_uppercase()).is_none(),
                "invalid datetime",
            )
        },
    },
];

fn wrong(is: bool, text: &str) -> Vec<String> {
    if is { vec![text.to_owned()] } else { Vec::new() }
}

fn dns1035_label(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if text.len() > 63 {
        found.push("must be no more than 63 bytes".to_owned());
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) || text.ends_with('-') || !text.chars().all(allowed) {
        found.push(LABEL_1035.to_owned());
    }
    found
}

/// `strfmt.UUIDPattern`
fn is_uuid(text: &str) -> bool {
    let mut rest = text;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, tail)) = rest.split_at_checked(length) else {
            return false;
        };
        if !part.chars().all(|c| c.is_ascii_hexdigit()) {
            return false;
        }
        rest = tail;
    }
    rest.is_empty()
}

fn named(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

/// The names of all formats.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "format.named" => |_, args| {
            one(args, |value| {
                let name = value.as_str().ok_or_else(Error::overload)?;
                Ok(named(name).map_or(Value::Optional(None), |format| Value::some(Value::Format(format))))
            })
        },
        "validate" => validate,
        _ => return constant(name),
    })
}

/// Functions without arguments that return a format.
fn constant(name: &str) -> Option<Function> {
    Some(match name.strip_prefix("format.")? {
        "dns1123Label" => |_, _| known("dns1123Label"),
        "dns1123Subdomain" => |_, _| known("dns1123Subdomain"),
        "dns1035Label" => |_, _| known("dns1035Label"),
        "qualifiedName" => |_, _| known("qualifiedName"),
        "dns1123LabelPrefix" => |_, _| known("dns1123LabelPrefix"),
        "dns1123SubdomainPrefix" => |_, _| known("dns1123SubdomainPrefix"),
        "dns1035LabelPrefix" => |_, _| known("dns1035LabelPrefix"),
        "labelValue" => |_, _| known("labelValue"),
        "uri" => |_, _| known("uri"),
        "uuid" => |_, _| known("uuid"),
        "byte" => |_, _| known("byte"),
        "date" => |_, _| known("date"),
        "datetime" => |_, _| known("datetime"),
        _ => return None,
    })
}

fn known<'a>(name: &str) -> Result<Value<'a>, Error> {
    named(name).map(Value::Format).ok_or_else(Error::overload)
}

fn validate<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::Format(format), Value::String(text)] = args else {
        return Err(Error::overload());
    };
    let found = (format.check)(text);
    if found.is_empty() {
        return Ok(Value::Optional(None));
    }
    context.allocate(found.iter().map(String::len).sum())?;
    Ok(Value::some(Value::from(
        found.into_iter().map(Value::from).collect::<Vec<_>>(),
    )))
}
