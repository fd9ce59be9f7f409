//! Conversion of managed fields between versions. An entry belongs to the version that its manager
//! wrote, so a change is converted to the version of each entry.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::typed::compare::{Comparison, compare};
use crate::kinds::Kinds;
use crate::registration::Row;

/// Conversion of one object.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Conversion {
    /// `example.com/v1`
    pub from: String,
    /// `example.com/v2`
    pub to: String,
    /// JSON of the object.
    pub object: String,
}

/// Cache of webhook conversions. Callers do not block: a missing conversion is recorded, and the
/// caller retries once it is there.
#[derive(Debug, Default)]
pub struct Conversions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<Conversion, Option<String>>,
    missing: BTreeSet<Conversion>,
}

impl Conversions {
    /// Result of a conversion. A missing one is recorded, and counts as not served until it is
    /// there.
    fn ask(&self, conversion: Conversion) -> Option<String> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.known.get(&conversion).cloned();
        known.unwrap_or_else(|| {
            state.missing.insert(conversion);
            None
        })
    }

    /// Conversions that were missing since the last call. If there are any, the results so far are
    /// invalid.
    pub fn take_missing(&self) -> Vec<Conversion> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.missing).into_iter().collect()
    }

    /// Adds the result of a conversion: the object's compact JSON.
    pub fn add(&self, conversion: Conversion, object: String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.insert(conversion, Some(object));
    }
}

/// Table of kinds with conversions between versions.
#[derive(Clone, Copy)]
pub struct Versioning<'a> {
    kinds: &'a Kinds,
    conversions: Option<&'a Conversions>,
}

impl<'a> Versioning<'a> {
    /// With cached webhook conversions.
    pub fn new(kinds: &'a Kinds, conversions: &'a Conversions) -> Self {
        Self {
            kinds,
            conversions: Some(conversions),
        }
    }
}

impl<'a> From<&'a Kinds> for Versioning<'a> {
    /// Without webhook conversions.
    fn from(kinds: &'a Kinds) -> Self {
        Self {
            kinds,
            conversions: None,
        }
    }
}

/// The row of a kind in one of its versions.
pub(super) fn row(Versioning { kinds, .. }: Versioning<'_>, kind: &str, api_version: &str) -> Option<Row> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    kinds.find_kind(group, version, kind)
}

/// True if an object of one version is also served in the other.
pub(super) fn are_one(kinds: Versioning<'_>, kind: &str, one: &str, other: &str) -> bool {
    let storage = |api_version| row(kinds, kind, api_version).map(|row| row.storage);
    one == other || storage(one).is_some_and(|own| storage(other) == Some(own))
}

/// Converts an object to another version, both as compact JSON.
fn convert(kinds: Versioning<'_>, kind: &str, from: &str, to: &str, object: &str) -> Option<String> {
    let (from, to) = (row(kinds, kind, from)?, row(kinds, kind, to)?);
    if from.storage != to.storage {
        return None;
    }
    if from.asks && from.version != to.version {
        return kinds.conversions?.ask(Conversion {
            from: from.api_version(),
            to: to.api_version(),
            object: object.to_owned(),
        });
    }
    let object = from.decode(object.as_bytes()).ok()?;
    let object = to.decode_stored(&from.encode_stored(&*object)).ok()?;
    String::from_utf8(object.to_json()).ok()
}

/// [`convert`] for values; the same version returns the value unchanged, which may be partial.
pub(super) fn converted<'a>(
    kinds: Versioning<'_>,
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
    pub kinds: Versioning<'a>,
    /// The kind.
    pub kind: &'a str,
    /// Object before the write; `{}` if there was none.
    pub live: &'a str,
    /// Object after the write.
    pub new: &'a str,
}

/// Comparison of a write, in each version that is asked for.
pub(super) struct Versions<'a> {
    change: Change<'a>,
    api_version: &'a str,
    own: Comparison,
    others: BTreeMap<String, Option<Comparison>>,
}

impl<'a> Versions<'a> {
    /// The comparison is in the write's own version.
    pub(super) fn new(change: Change<'a>, api_version: &'a str, own: Comparison) -> Self {
        Self {
            change,
            api_version,
            own,
            others: BTreeMap::new(),
        }
    }

    /// Comparison in a version; none if the object is not served in it.
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

    /// Comparison in the write's own version.
    pub(super) fn into_own(self) -> Comparison {
        self.own
    }
}
