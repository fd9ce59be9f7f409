//! Deduplication of parts that many pods share.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Serialize;

use crate::objects::Map;

/// Parts that pods share, held weakly.
#[derive(Debug, Default)]
pub struct Pool {
    pub(super) texts: Shared<str>,
    pub(super) labels: Shared<Map>,
    pub(super) owners: Shared<[OwnerReference]>,
    pub(super) finalizers: Shared<[String]>,
    pub(super) specs: Shared<PodSpec>,
}

/// Values by a checksum of their JSON, since few of them implement `Hash`.
#[derive(Debug)]
pub(super) struct Shared<T: ?Sized> {
    known: BTreeMap<u64, Weak<T>>,
    /// Number of values at which dropped ones are purged.
    full: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            full: 64,
        }
    }
}

impl<T: Serialize + PartialEq + ?Sized> Shared<T> {
    /// Replaces a value by an equal one that is known.
    pub(super) fn share(&mut self, value: &mut Arc<T>) {
        let mut sum = Sum(DefaultHasher::new());
        if serde_json::to_writer(&mut sum, &**value).is_err() {
            return;
        }
        let sum = sum.0.finish();
        match self.known.get(&sum).and_then(Weak::upgrade) {
            Some(known) if *known == **value => *value = known,
            // Two values with the same checksum replace each other; both are valid.
            Some(_) | None => drop(self.known.insert(sum, Arc::downgrade(value))),
        }
        if self.known.len() > self.full {
            self.known.retain(|_, value| value.strong_count() > 0);
            self.full = self.known.len().saturating_mul(2).max(64);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

struct Sum(DefaultHasher);

impl io::Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
