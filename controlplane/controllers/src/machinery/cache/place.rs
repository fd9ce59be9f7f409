//! Objects by namespace and name.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use controlplane_plan::objects::Meta as _;

use super::Key;
use crate::machinery::cache::Cached;

/// An object that is its own key, so that no separate key is stored.
pub(super) struct Kept<K>(pub(super) Arc<K>);

/// Namespace and name for lookups of a [`Kept`].
pub(super) trait Place {
    fn place(&self) -> (&str, &str);
}

impl Place for Key {
    fn place(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl<K: Cached> Place for Kept<K> {
    fn place(&self) -> (&str, &str) {
        let metadata = self.0.meta();
        (metadata.namespace(), metadata.name())
    }
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Place + '_ {}

impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl<K: Cached> PartialEq for Kept<K> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<K: Cached> Eq for Kept<K> {}

impl<K: Cached> PartialOrd for Kept<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Cached> Ord for Kept<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl<'a, K: Cached> Borrow<dyn Place + 'a> for Kept<K> {
    fn borrow(&self) -> &(dyn Place + 'a) {
        self
    }
}
