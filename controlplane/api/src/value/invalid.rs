//! Field errors, in upstream's words (`k8s.io/apimachinery/pkg/util/validation/field`).

use std::borrow::Cow;
use std::fmt;

/// Type of a field error; its `reason` goes into `Status.details.causes[].reason`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InvalidKind {
    /// A field that must be set is not.
    Required,
    /// A value breaks a rule.
    Invalid,
    /// A value is not one of a fixed set.
    NotSupported,
    /// A field may not be set, or not be changed, here.
    Forbidden,
    /// A value that must be unique is not.
    Duplicate,
    /// A text is too long.
    TooLong,
    /// A list has too many items.
    TooMany,
    /// An object that the field refers to does not exist.
    NotFound,
    /// The check itself failed.
    Internal,
    /// A value has the wrong type.
    TypeInvalid,
}

impl InvalidKind {
    /// The machine-readable reason, such as `FieldValueRequired`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// Value in Go's `%q` notation: unprintable characters have other escapes there.
pub fn quoted(value: &impl fmt::Debug) -> String {
    let shown = format!("{value:?}");
    if !shown.contains("\\u{") && !shown.contains("\\0") {
        return shown;
    }
    let mut text = String::with_capacity(shown.len());
    let mut rest = shown.as_str();
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let code = after.strip_prefix("u{").and_then(|after| after.split_once('}'));
        let code = code.and_then(|(digits, after)| Some((u32::from_str_radix(digits, 16).ok()?, after)));
        let code = code.or_else(|| Some((0, after.strip_prefix('0')?)));
        if let Some((code, after)) = code {
            text.push_str(&escape(code));
            rest = after;
        } else {
            let mut characters = after.chars();
            text.push('\\');
            text.extend(characters.next());
            rest = characters.as_str();
        }
    }
    text + rest
}

fn escape(code: u32) -> String {
    // Marks are printable: `Debug` escapes them, but `str::escape_debug` only at the beginning.
    let is_mark = |mark: &char| format!("_{mark}").escape_debug().nth(1) == Some(*mark);
    if let Some(mark) = char::from_u32(code).filter(is_mark) {
        return mark.to_string();
    }
    match code {
        0x07 => "\\a".to_owned(),
        0x08 => "\\b".to_owned(),
        0x0b => "\\v".to_owned(),
        0x0c => "\\f".to_owned(),
        0..0x80 => format!("\\x{code:02x}"),
        0x80..0x1_0000 => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Field error. `Display` is upstream's text:
/// `spec.replicas: Invalid value: -1: must be greater than or equal to 0`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Invalid {
    /// Path of the field, such as `spec.containers[0].image`.
    pub field: String,
    /// Type of the error.
    pub kind: InvalidKind,
    /// The bad value as upstream renders it (texts in quotes, numbers bare); none for the kinds
    /// that show none.
    pub value: Option<String>,
    /// The rule that was broken; may be empty.
    pub detail: String,
}

impl Invalid {
    fn of(kind: InvalidKind, field: impl Into<String>, value: Option<String>, detail: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            kind,
            value,
            detail: detail.into(),
        }
    }

    /// `field: Required value[: detail]`
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::of(InvalidKind::Required, field, None, detail)
    }

    /// `field: Invalid value: value: detail`; the value is rendered with `Debug`, which quotes
    /// texts as upstream does.
    pub fn value(field: impl Into<String>, value: impl fmt::Debug, detail: impl Into<String>) -> Self {
        Self::of(InvalidKind::Invalid, field, Some(quoted(&value)), detail)
    }

    /// Like [`Invalid::value`], for a value that is already rendered: structures as JSON.
    pub fn rendered(field: impl Into<String>, value: String, detail: impl Into<String>) -> Self {
        Self::of(InvalidKind::Invalid, field, Some(value), detail)
    }

    /// `field: Unsupported value: "x": supported values: "a", "b"`, in the given order: upstream
    /// sorts only its sets.
    pub fn not_supported(field: impl Into<String>, value: impl fmt::Debug, supported: &[&str]) -> Self {
        Self::not_supported_rendered(field, quoted(&value), supported)
    }

    /// Like [`Invalid::not_supported`], for a value that is already rendered.
    pub fn not_supported_rendered(field: impl Into<String>, value: String, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(quoted).collect();
        let detail = if supported.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", supported.join(", "))
        };
        Self::of(InvalidKind::NotSupported, field, Some(value), detail)
    }

    /// `field: Forbidden: detail`
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::of(InvalidKind::Forbidden, field, None, detail)
    }

    /// `field: Duplicate value: "x"`
    pub fn duplicate(field: impl Into<String>, value: impl fmt::Debug) -> Self {
        Self::of(InvalidKind::Duplicate, field, Some(quoted(&value)), "")
    }

    /// `field: Not found: "x"`
    pub fn not_found(field: impl Into<String>, value: impl fmt::Debug) -> Self {
        Self::of(InvalidKind::NotFound, field, Some(quoted(&value)), "")
    }

    /// `field: Too long: may not be more than N bytes`
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        Self::of(
            InvalidKind::TooLong,
            field,
            None,
            format!("may not be more than {limit} bytes"),
        )
    }

    /// `field: Too many: N: must have at most M items`
    pub fn too_many(field: impl Into<String>, actual: usize, limit: usize) -> Self {
        let detail = format!("must have at most {limit} items");
        Self::of(InvalidKind::TooMany, field, Some(actual.to_string()), detail)
    }

    /// `field: Internal error: detail`
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::of(InvalidKind::Internal, field, None, detail)
    }

    /// The machine-readable reason, such as `FieldValueRequired`.
    pub const fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    /// JSON with the characters escaped that Go's `json.Marshal` escapes.
    pub fn marshaled(json: &str) -> String {
        let special = [
            ('<', r"\u003c"),
            ('>', r"\u003e"),
            ('&', r"\u0026"),
            ('\u{2028}', r"\u2028"),
            ('\u{2029}', r"\u2029"),
        ];
        let escaped = |text: String, (from, to): (char, &str)| text.replace(from, to);
        special.into_iter().fold(json.to_owned(), escaped)
    }

    /// Text without the field, for `Status.details.causes[].message`.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        let value = self.value.as_deref().map(|value| match value.as_bytes() {
            [b'{' | b'[', ..] => Cow::Owned(Self::marshaled(value)),
            _ => Cow::Borrowed(value),
        });
        for part in [value.as_deref(), Some(self.detail.as_str())].into_iter().flatten() {
            if !part.is_empty() {
                text.push_str(": ");
                text.push_str(part);
            }
        }
        text
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.body())
    }
}
