//! A number that equal values have in common: among many values, only those that share it are compared.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::json::shown;
use crate::value::Value;

/// The largest whole number to which each smaller one has a floating-point number of its own.
const EXACT: i64 = 1 << 53;

impl Value<'_> {
    /// The number; parts that seldom differ where the rest does not, and the order of lists, do not count.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Bool(value) => value.hash(&mut hasher),
            Self::Int(value) => exact(*value).hash(&mut hasher),
            Self::Uint(value) => i64::try_from(*value).ok().and_then(exact).hash(&mut hasher),
            Self::Double(value) => crate::value::whole(*value).and_then(exact).hash(&mut hasher),
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

/// Whole numbers that are told apart whatever type they have.
fn exact(value: i64) -> Option<i64> {
    (-EXACT..=EXACT).contains(&value).then_some(value)
}

pub(crate) fn pair(key: &str, digest: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, digest).hash(&mut hasher);
    hasher.finish()
}

/// Places of items by their numbers.
#[derive(Default)]
pub(crate) struct Places(BTreeMap<u64, Vec<usize>>);

impl Places {
    pub(crate) fn add(&mut self, digest: u64, place: usize) {
        self.0.entry(digest).or_default().push(place);
    }

    /// The places at which an equal item may be.
    pub(crate) fn at(&self, digest: u64) -> impl Iterator<Item = usize> + '_ {
        self.0.get(&digest).into_iter().flatten().copied()
    }
}
