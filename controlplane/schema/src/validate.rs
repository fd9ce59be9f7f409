//! Validation of values against their schema, with the messages of kube-openapi
//! (`pkg/validation/{validate,errors}`) in the form of `pkg/apiserver/validation/validation.go`,
//! and ratcheting (`ratcheting.go` beside it).

pub(crate) mod format;
mod issue;
pub(crate) mod list_type;
mod number;
mod ratchet;

use serde_json::{Map, Value};

use self::issue::{Issue, Outcome, shown};
pub(crate) use self::ratchet::Old;
use crate::Invalid;
use crate::path::Path;
use crate::structural::{Additional, Kind, Node, Values};

/// Validates a value. With `old`, errors in values that have not changed are ignored.
pub(crate) fn check(node: &Node, value: &Value, old: Option<&Value>, base: &Path<'_>) -> Vec<Invalid> {
    let old = old.map(|old| Old::new(node, old, value));
    let check = Check {
        has_int_or_string: true,
    };
    invalid(check.ratcheted(node, value, &Path::ROOT, old.as_ref()), base)
}

/// Validates a default; upstream's schema does not restrict int-or-string there.
pub(crate) fn check_default(node: &Node, value: &Value, base: &Path<'_>) -> Vec<Invalid> {
    let check = Check {
        has_int_or_string: false,
    };
    invalid(check.node(node, value, &Path::ROOT, None), base)
}

fn invalid(outcome: Outcome, base: &Path<'_>) -> Vec<Invalid> {
    outcome.issues.into_iter().map(|issue| issue.invalid(base)).collect()
}

struct Check {
    /// True if the type of int-or-string values is checked.
    has_int_or_string: bool,
}

/// Type of a value, as Go decodes it.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    Null,
    Boolean,
    Integer(i64),
    Number(f64),
    String,
    Array,
    Object,
}

impl Given {
    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(number) => match number.as_i64() {
                Some(integer) => Self::Integer(integer),
                None => Self::Number(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(_) => Self::String,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    /// Type and format by upstream's names.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Null => ("null", ""),
            Self::Boolean => ("boolean", ""),
            Self::Integer(_) => ("integer", "int64"),
            Self::Number(_) => ("number", "float64"),
            Self::String => ("string", ""),
            Self::Array => ("array", ""),
            Self::Object => ("object", ""),
        }
    }
}

impl Check {
    /// Like [`Self::node`], but accepts unchanged values.
    fn ratcheted(&self, node: &Node, value: &Value, at: &Path<'_>, old: Option<&Old<'_>>) -> Outcome {
        let mut outcome = self.node(node, value, at, old);
        if !outcome.is_valid() && old.is_some_and(Old::is_unchanged) {
            outcome.issues.clear();
        }
        outcome
    }

    fn node(&self, node: &Node, value: &Value, at: &Path<'_>, old: Option<&Old<'_>>) -> Outcome {
        let given = Given::of(value);
        let mut outcome = Outcome::default();
        if given == Given::Null {
            outcome.merge(self.kind(node, given, at));
            if let Some(values) = node.values() {
                outcome.merge(enumeration(values, value, at));
            }
            return outcome;
        }
        if !self.kinds(node).is_empty() || !format::of(node).is_empty() {
            outcome.step(self.kind(node, given, at));
        }
        outcome.step(match node.values() {
            Some(values) => self.branches(values, value, at),
            None => Outcome::matched(1),
        });
        match value {
            Value::String(text) => {
                outcome.step(string(node, text, at));
                if let Some(is_valid) = format::check(format::of(node), text) {
                    outcome.step(Outcome::of(
                        (!is_valid).then(|| Issue::mistyped(at, format::of(node), Some(text))),
                    ));
                }
            }
            Value::Number(_) => outcome.step(number::check(node, given, at)),
            Value::Array(items) => outcome.step(self.items(node, items, at, old)),
            Value::Null | Value::Bool(_) | Value::Object(_) => {}
        }
        outcome.step(match node.values() {
            Some(values) => enumeration(values, value, at),
            None => Outcome::default(),
        });
        if let Value::Object(members) = value {
            outcome.step(self.members(node, members, at, old));
        }
        outcome.matched += 1;
        outcome
    }

    /// Types that a value may have.
    fn kinds(&self, node: &Node) -> Vec<&'static str> {
        if node.is_int_or_string() && self.has_int_or_string {
            return vec!["integer", "string"];
        }
        node.kind().map(Kind::name).into_iter().collect()
    }

    fn kind(&self, node: &Node, given: Given, at: &Path<'_>) -> Outcome {
        let kinds = self.kinds(node);
        let (own, own_format) = given.names();
        if given == Given::Null {
            let is_wrong = !kinds.is_empty() && !node.is_nullable();
            let issue = is_wrong.then(|| Issue::mistyped(at, &kinds.join(","), Some("null")));
            return Outcome::of(issue).and_matched(1);
        }
        let format = format::of(node);
        let is_whole = matches!(given, Given::Number(number) if number::is_whole(number)) && kinds.contains(&"integer");
        let is_number = matches!(given, Given::Integer(_)) && kinds.contains(&"number");
        let fits = kinds.contains(&own) || is_whole || is_number;
        let is_listed = matches!(given, Given::String | Given::Array);
        let issue = if !is_listed && !format.is_empty() && !fits && own_format != format {
            Some(Issue::mistyped(at, format, Some(own_format)))
        } else if is_listed && !format.is_empty() && !kinds.iter().any(|kind| ["number", "integer"].contains(kind)) {
            None
        } else {
            (!fits).then(|| Issue::mistyped(at, &kinds.join(","), Some(own)))
        };
        Outcome::of(issue).and_matched(1)
    }

    /// `anyOf`, `oneOf`, `allOf`, `not`, whose errors are not ratcheted.
    fn branches(&self, values: &Values, value: &Value, at: &Path<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        if !values.any_of.is_empty() {
            let mut best: Option<Outcome> = None;
            for branch in &values.any_of {
                let result = self.node(branch, value, at, None);
                let is_valid = result.is_valid();
                if is_valid || best.as_ref().is_none_or(|best| result.matched > best.matched) {
                    best = Some(result);
                }
                if is_valid {
                    break;
                }
            }
            if !best.as_ref().is_some_and(Outcome::is_valid) {
                outcome.add(Issue::plain(format!(
                    "{} must validate at least one schema (anyOf)",
                    shown(at)
                )));
            }
            outcome.merge(best.unwrap_or_default());
        }
        self.one_of(values, value, at, &mut outcome);
        if !values.all_of.is_empty() {
            let mut valid = 0;
            for branch in &values.all_of {
                let result = self.node(branch, value, at, None);
                valid += usize::from(result.is_valid());
                outcome.merge(result);
            }
            if valid < values.all_of.len() {
                let more = if valid == 0 { ". None validated" } else { "" };
                let text = format!("{} must validate all the schemas (allOf){more}", shown(at));
                outcome.add(Issue::plain(text));
            }
        }
        if values
            .not
            .as_ref()
            .is_some_and(|not| self.node(not, value, at, None).is_valid())
        {
            outcome.add(Issue::plain(format!(
                "{} must not validate the schema (not)",
                shown(at)
            )));
        }
        outcome.and_matched(1)
    }

    fn one_of(&self, values: &Values, value: &Value, at: &Path<'_>, outcome: &mut Outcome) {
        if values.one_of.is_empty() {
            return;
        }
        let (mut valid, mut success, mut best) = (0, None, None::<Outcome>);
        for branch in &values.one_of {
            let result = self.node(branch, value, at, None);
            if result.is_valid() {
                valid += 1;
                best = None;
                success.get_or_insert(result);
            } else if valid == 0 && best.as_ref().is_none_or(|best| result.matched > best.matched) {
                best = Some(result);
            }
        }
        if valid == 1 {
            outcome.merge(success.unwrap_or_default());
            return;
        }
        let found = match valid {
            0 => "Found none valid".to_owned(),
            several => format!("Found {several} valid alternatives"),
        };
        let text = format!("{} must validate one and only one schema (oneOf). {found}", shown(at));
        outcome.add(Issue::plain(text));
        outcome.merge(best.unwrap_or_default());
    }

    fn items(&self, node: &Node, items: &[Value], at: &Path<'_>, old: Option<&Old<'_>>) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(below) = node.items() {
            let olds = old.and_then(Old::keyed);
            for (index, item) in items.iter().enumerate() {
                let old = olds.as_ref().and_then(|olds| olds.item(item));
                outcome.merge(self.ratcheted(below, item, &at.index(index), old.as_ref()));
            }
        }
        if let Some(values) = node.values() {
            let size = length(items.len());
            if let Some(least) = values.min_items.filter(|least| size < *least) {
                let text = format!("{at} in body should have at least {least} items");
                outcome.add(Issue::invalid_value(at, size.to_string(), text));
            }
            if let Some(most) = values.max_items.filter(|most| size > *most) {
                outcome.add(Issue::too_many(at, size, most, "items"));
            }
        }
        outcome.and_matched(1)
    }

    fn members(&self, node: &Node, members: &Map<String, Value>, at: &Path<'_>, old: Option<&Old<'_>>) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(values) = node.values() {
            let size = length(members.len());
            if let Some(least) = values.min_properties.filter(|least| size < *least) {
                let text = format!("{at} in body should have at least {least} properties");
                outcome.add(Issue::invalid_value(at, size.to_string(), text));
            }
            if let Some(most) = values.max_properties.filter(|most| size > *most) {
                outcome.add(Issue::too_many(at, size, most, "properties"));
            }
        }
        let old_member = |name: &str| {
            let is_type = at.is_root() && matches!(name, "apiVersion" | "kind");
            old.filter(|_| !is_type).and_then(|old| old.member(name))
        };
        for (name, value) in members {
            if node.property(name).is_some() {
                continue;
            }
            match node.additional() {
                Some(Additional::Schema(below)) => {
                    outcome.merge(self.ratcheted(below, value, &at.dotted(name), old_member(name).as_ref()));
                }
                Some(Additional::Any(false)) => {
                    let text = format!("{at}.{name} in body is a forbidden property");
                    outcome.add(Issue::invalid_text(at, name, text));
                }
                Some(Additional::Any(true)) | None => {}
            }
        }
        for (name, below) in node.properties() {
            if let Some(value) = members.get(name) {
                outcome.merge(self.ratcheted(below, value, &at.child(name), old_member(name).as_ref()));
            }
        }
        for name in node.required() {
            if !members.contains_key(name) {
                outcome.add(Issue::required(&at.dotted(name)));
            }
        }
        outcome
    }
}

/// A length in the type of the schema's limits.
fn length(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The first string validation that fails.
fn string(node: &Node, text: &str, at: &Path<'_>) -> Outcome {
    let Some(values) = node.values() else {
        return Outcome::default();
    };
    let size = length(text.chars().count());
    let issue = if let Some(most) = values.max_length.filter(|most| size > *most) {
        Some(Issue::too_long(at, most))
    } else if let Some(least) = values.min_length.filter(|least| size < *least) {
        let words = format!("{at} in body should be at least {least} chars long");
        Some(Issue::invalid_text(at, text, words))
    } else {
        let pattern = values.pattern().filter(|_| !values.matches(text));
        pattern.map(|pattern| Issue::invalid_text(at, text, format!("{at} in body should match '{pattern}'")))
    };
    Outcome::of(issue)
}

fn enumeration(values: &Values, value: &Value, at: &Path<'_>) -> Outcome {
    if values.enumeration.is_empty() || values.enumeration.iter().any(|one| is_one(value, one)) {
        return Outcome::default();
    }
    Outcome::of(Some(Issue::unsupported(at, value, &values.enumeration)))
}

/// True if a value equals one of an `enum`, after Go's conversion to its type.
fn is_one(value: &Value, one: &Value) -> bool {
    match (Given::of(value), Given::of(one)) {
        (Given::Null, _) | (_, Given::Null) => false,
        (Given::Integer(_), Given::Number(one)) => value.as_f64() == Some(one),
        (Given::Number(value), Given::Integer(_)) => one.as_f64() == Some(value.trunc()),
        _ => value == one,
    }
}
