//! Targets and causes of failures.

use std::borrow::Cow;
use std::collections::BTreeSet;

/// Limits on the number and bytes of reported validation errors.
const CAUSES: usize = 100;
const CAUSES_BYTES: usize = 32 << 10;

/// A resource of a group, as messages name it: `pods`, `deployments.apps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupResource {
    /// API group, empty for core.
    pub group: Cow<'static, str>,
    /// Plural name (or a kind, where upstream puts the kind there).
    pub resource: Cow<'static, str>,
}

impl GroupResource {
    /// Creates one, also from the static names that registrations carry.
    pub fn new(group: impl Into<Cow<'static, str>>, resource: impl Into<Cow<'static, str>>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() {
            formatter.write_str(&self.resource)
        } else {
            write!(formatter, "{}.{}", self.resource, self.group)
        }
    }
}

/// The object that a failure is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its resource.
    pub resource: GroupResource,
    /// Name of the object; may be empty.
    pub name: String,
}

/// Bytes of a value that a cause shows: a value may be a list of a megabyte.
const VALUE: usize = 16 << 10;

/// Cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `NamespaceTerminating` …
    pub reason: Cow<'static, str>,
    /// Path of the field; may be empty.
    pub field: String,
    /// The error without the field's path.
    pub message: String,
    /// The whole error as the object's message lists it.
    pub text: String,
}

impl Cause {
    /// Cuts texts that are longer.
    pub(super) fn cut(&mut self, bytes: usize) {
        for text in [&mut self.field, &mut self.message, &mut self.text] {
            text.truncate(text.floor_char_boundary(bytes));
        }
    }
}

/// A text as a cause shows it: the beginning of one that is longer.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    match text.get(..text.floor_char_boundary(VALUE)) {
        Some(start) if start.len() < text.len() => format!("{start}…").into(),
        _ => text.into(),
    }
}

impl From<&api::Invalid> for Cause {
    fn from(invalid: &api::Invalid) -> Self {
        let long = invalid.value.as_ref().filter(|value| value.len() > VALUE);
        let cut = long.map(|value| api::Invalid {
            value: Some(shown(value).into_owned()),
            ..invalid.clone()
        });
        let invalid = cut.as_ref().unwrap_or(invalid);
        Self {
            reason: invalid.reason().into(),
            field: invalid.field.clone(),
            message: invalid.body(),
            text: invalid.to_string(),
        }
    }
}

/// Their texts as upstream joins them: each once, in brackets where there are several.
pub(super) fn aggregate(causes: &[Cause]) -> String {
    let mut seen = BTreeSet::new();
    let texts = causes.iter().map(|cause| cause.text.as_str());
    let texts: Vec<&str> = texts.filter(|text| seen.insert(*text)).collect();
    match texts.as_slice() {
        [only] => (*only).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Validation errors that are reported, up to the limit. The rest is only counted.
pub(super) fn told(found: &[api::Invalid]) -> Vec<Cause> {
    let mut causes: Vec<Cause> = Vec::new();
    let mut room = CAUSES_BYTES;
    for invalid in found.iter().take(CAUSES) {
        let mut cause = Cause::from(invalid);
        if causes.is_empty() {
            cause.cut(room);
        }
        let Some(left) = room.checked_sub(cause.text.len()) else {
            break;
        };
        room = left;
        causes.push(cause);
    }
    let left = found.len() - causes.len();
    if left > 0 {
        let text = format!("and {left} more errors");
        causes.push(Cause {
            reason: api::InvalidKind::Invalid.reason().into(),
            field: String::new(),
            message: text.clone(),
            text,
        });
    }
    causes
}
