//! One object in several versions. An entry is of the version that its manager wrote, so what a write changes is told to
//! each entry in its own.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::compare::{Comparison, compare};
use crate::kinds::Kinds;
use crate::registration::Row;

/// The row of a kind in one of its versions.
pub(super) fn row(kinds: &Kinds, kind: &str, api_version: &str) -> Option<Row> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    kinds.find_kind(group, version, kind)
}

/// Whether an object of one version is served in the other.
pub(super) fn are_one(kinds: &Kinds, kind: &str, one: &str, other: &str) -> bool {
    let storage = |api_version| row(kinds, kind, api_version).map(|row| row.storage);
    one == other || storage(one).is_some_and(|own| storage(other) == Some(own))
}

/// An object of one version in another, both as compact JSON.
fn convert(kinds: &Kinds, kind: &str, from: &str, to: &str, object: &str) -> Option<String> {
    let (from, to) = (row(kinds, kind, from)?, row(kinds, kind, to)?);
    if from.storage != to.storage {
        return None;
    }
    let object = from.decode(object.as_bytes()).ok()?;
    let object = to.decode_stored(&from.encode_stored(&*object)).ok()?;
    String::from_utf8(object.to_json()).ok()
}

/// [`convert`] for values; the same version's is the value itself, which need not be whole.
pub(super) fn converted<'a>(
    kinds: &Kinds,
    kind: &str,
    from: &str,
    to: &str,
    object: &'a Value,
) -> Option<Cow<'a, Value>> {
    if from == to {
        return Some(Cow::Borrowed(object));
    }
    let object = convert(kinds, kind, from, to, &object.to_string())?;
    serde_json::from_str(&object).ok().map(Cow::Owned)
}

/// An object before and after a write, in the version of the write and as compact JSON.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// The table of kinds.
    pub kinds: &'a Kinds,
    /// The kind.
    pub kind: &'a str,
    /// Before; `{}` when there was none.
    pub live: &'a str,
    /// After.
    pub new: &'a str,
}

/// What a write changes, in each version that is asked for.
pub(super) struct Versions<'a> {
    change: Change<'a>,
    api_version: &'a str,
    own: Comparison,
    others: BTreeMap<String, Option<Comparison>>,
}

impl<'a> Versions<'a> {
    /// The comparison is the one in the write's own version.
    pub(super) fn new(change: Change<'a>, api_version: &'a str, own: Comparison) -> Self {
        Self {
            change,
            api_version,
            own,
            others: BTreeMap::new(),
        }
    }

    /// What is changed in a version; nothing when the object is not served in it.
    pub(super) fn of(&mut self, api_version: &str) -> Option<&Comparison> {
        if api_version == self.api_version {
            return Some(&self.own);
        }
        if !self.others.contains_key(api_version) {
            let comparison = self.compare(api_version);
            self.others.insert(api_version.to_owned(), comparison);
        }
        self.others.get(api_version)?.as_ref()
    }

    fn compare(&self, api_version: &str) -> Option<Comparison> {
        let Change { kinds, kind, live, new } = self.change;
        let row = row(kinds, kind, api_version)?;
        let converted = |object| convert(kinds, kind, self.api_version, api_version, object);
        Some(compare(row.types()?, &converted(live)?, &converted(new)?))
    }

    /// What is changed in the write's own version.
    pub(super) fn into_own(self) -> Comparison {
        self.own
    }
}
