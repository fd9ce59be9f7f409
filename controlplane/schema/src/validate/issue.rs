//! Validation errors, as kube-openapi collects them and the API server shows them.

use serde_json::Value;

use crate::path::Path;
use crate::render;
use crate::{Invalid, InvalidKind};

/// Most errors about one value.
const MAX_ISSUES: usize = 200;

/// A validation error.
#[derive(Debug)]
pub(super) struct Issue {
    /// Path relative to the value; `None` for errors that upstream shows without a path.
    name: Option<String>,
    kind: InvalidKind,
    /// The value as it is shown.
    value: Option<String>,
    /// The detail after the value.
    detail: String,
    /// Upstream's own text, used to deduplicate errors.
    text: String,
}

/// The path in quotes.
pub(super) fn shown(at: &Path<'_>) -> String {
    render::quoted(&at.to_string())
}

impl Issue {
    fn at(at: &Path<'_>, kind: InvalidKind, value: Option<String>, detail: String) -> Self {
        let name = at.to_string();
        let text = format!("{name} {kind:?} {detail}");
        Self {
            name: Some(name),
            kind,
            value,
            detail,
            text,
        }
    }

    /// An error about several schemas.
    pub(super) fn plain(text: String) -> Self {
        Self {
            name: None,
            kind: InvalidKind::Invalid,
            value: Some("\"\"".to_owned()),
            detail: text.clone(),
            text,
        }
    }

    /// `must be of type`
    pub(super) fn mistyped(at: &Path<'_>, wanted: &str, given: Option<&str>) -> Self {
        let mut text = format!("{at} in body must be of type {wanted}");
        if let Some(given) = given {
            text.push_str(": ");
            text.push_str(&render::quoted(given));
        }
        let value = render::quoted(given.unwrap_or_default());
        Self::at(at, InvalidKind::TypeInvalid, Some(value), text)
    }

    pub(super) fn required(at: &Path<'_>) -> Self {
        Self::at(at, InvalidKind::Required, None, String::new())
    }

    pub(super) fn unsupported(at: &Path<'_>, value: &Value, allowed: &[Value]) -> Self {
        let quoted = |one: &Value| {
            one.as_str()
                .map_or_else(|| render::quoted(&render::json(one)), render::quoted)
        };
        let allowed = allowed.iter().map(quoted);
        let allowed: Vec<String> = allowed.collect();
        let detail = format!("supported values: {}", allowed.join(", "));
        Self::at(at, InvalidKind::NotSupported, Some(render::value(value)), detail)
    }

    pub(super) fn too_long(at: &Path<'_>, most: i64) -> Self {
        let detail = format!("may not be more than {most} bytes");
        Self::at(at, InvalidKind::TooLong, None, detail)
    }

    pub(super) fn too_many(at: &Path<'_>, size: i64, most: i64, what: &str) -> Self {
        let detail = format!("must have at most {most} items");
        let mut issue = Self::at(at, InvalidKind::TooMany, Some(size.to_string()), detail);
        issue.text.push_str(what);
        issue
    }

    /// Takes a value that is already formatted.
    pub(super) fn invalid_value(at: &Path<'_>, value: String, text: String) -> Self {
        Self::at(at, InvalidKind::Invalid, Some(value), text)
    }

    pub(super) fn invalid_text(at: &Path<'_>, value: &str, text: String) -> Self {
        Self::at(at, InvalidKind::Invalid, Some(render::quoted(value)), text)
    }

    /// The error of a field below `base`.
    pub(super) fn invalid(self, base: &Path<'_>) -> Invalid {
        let name = self.name.as_deref().map(|name| name.strip_prefix('.').unwrap_or(name));
        let field = match name.filter(|name| !name.is_empty()) {
            None => base.field(),
            Some(name) => base.child(name).to_string(),
        };
        Invalid {
            field,
            kind: self.kind,
            value: self.value,
            detail: self.detail,
        }
    }
}

/// Errors of a validation, and the number of matching parts: of several schemas, the one with the
/// most matches is reported.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) issues: Vec<Issue>,
    pub(super) matched: usize,
}

impl Outcome {
    pub(super) fn of(issue: Option<Issue>) -> Self {
        Self {
            issues: issue.into_iter().collect(),
            matched: 0,
        }
    }

    pub(super) fn matched(matched: usize) -> Self {
        Self {
            issues: Vec::new(),
            matched,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.issues.is_empty()
    }

    /// Counts more matches.
    pub(super) fn and_matched(mut self, more: usize) -> Self {
        self.matched += more;
        self
    }

    /// Adds an error unless it is a duplicate.
    pub(super) fn add(&mut self, issue: Issue) {
        if self.issues.len() < MAX_ISSUES && !self.issues.iter().any(|other| other.text == issue.text) {
            self.issues.push(issue);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.matched = self.matched.saturating_add(other.matched);
        if self.issues.is_empty() {
            self.issues = other.issues;
        } else {
            other.issues.into_iter().for_each(|issue| self.add(issue));
        }
    }

    /// Adds the result of a single check.
    pub(super) fn step(&mut self, other: Self) {
        self.merge(other);
        self.matched += 1;
    }
}
