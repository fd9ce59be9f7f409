//! Hash for equality: among many values, only those with the same one are compared.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Value, shown};

/// Largest integer up to which all integers have exact floating-point representations.
const EXACT: i64 = 1 << 53;

impl Value<'_> {
    /// Returns the hash; parts that rarely differ alone, and the order of lists, are left out.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Bool(value) => value.hash(&mut hasher),
            Self::Int(value) => exact(*value).hash(&mut hasher),
            Self::Uint(value) => i64::try_from(*value).ok().and_then(exact).hash(&mut hasher),
            Self::Double(value) => super::whole(*value).and_then(exact).hash(&mut hasher),
            Self::String(text) | Self::Type(text) => (**text).hash(&mut hasher),
            Self::Duration(value) => value.hash(&mut hasher),
            Self::List(list) => {
                let items = list.iter().filter_map(Result::ok);
                items
                    .map(|item| item.digest())
                    .fold(0, u64::wrapping_add)
                    .hash(&mut hasher);
            }
            Self::Map(map) => {
                let entries = map.keys().into_iter().filter_map(|key| {
                    let value = map.get(&key)?.ok()?;
                    Some(pair(&shown(&key), value.digest()))
                });
                entries.fold(0, u64::wrapping_add).hash(&mut hasher);
            }
            _ => {}
        }
        hasher.finish()
    }
}

/// Integers that are compared exactly across numeric types.
fn exact(value: i64) -> Option<i64> {
    (-EXACT..=EXACT).contains(&value).then_some(value)
}

pub(crate) fn pair(key: &str, digest: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, digest).hash(&mut hasher);
    hasher.finish()
}

/// Positions of items by their hashes.
#[derive(Default)]
pub(crate) struct Places(BTreeMap<u64, Vec<usize>>);

impl Places {
    pub(crate) fn add(&mut self, digest: u64, place: usize) {
        self.0.entry(digest).or_default().push(place);
    }

    /// Positions of items that may be equal.
    pub(crate) fn at(&self, digest: u64) -> impl Iterator<Item = usize> + '_ {
        self.0.get(&digest).into_iter().flatten().copied()
    }
}
