//! Deduplication of attributes: the pods of one template have the same labels, and most fields of a
//! kind have few values.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Weak};

use super::Write;
use crate::backend::Record;
use crate::object::entry::{Attributes, Entry, Fields, Labels};
use crate::options::Options;

/// Parts that objects share, held weakly.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    labels: Shared<Labels>,
    fields: Shared<Fields>,
    texts: Shared<str>,
}

impl Pool {
    /// Deduplicates the attributes of a write.
    pub(crate) fn share_write(&mut self, write: &mut Write) {
        match write {
            Write::Create { attributes, .. } | Write::Update { attributes, .. } => self.share(attributes),
            Write::Delete { .. } => {}
        }
    }

    /// Makes the entry of a row that holds an object.
    pub(crate) fn entry(&mut self, options: &Options, record: Record) -> Entry {
        let mut attributes = (options.index)(&record.key, &record.bytes);
        self.share(&mut attributes);
        Entry::new(record.key, record.revision, record.bytes, attributes)
    }

    /// Deduplicates attributes.
    fn share(&mut self, attributes: &mut Attributes) {
        self.labels.share(&mut attributes.labels);
        if self.fields.share(&mut attributes.fields) {
            return;
        }
        // Most values of a new set are known.
        let shared = attributes.fields.iter().map(|(name, value)| {
            let mut value = Arc::clone(value);
            self.texts.share(&mut value);
            (*name, value)
        });
        attributes.fields = shared.collect();
        self.fields.put(&attributes.fields);
    }
}

/// Values by their hashes.
#[derive(Debug)]
struct Shared<T: ?Sized> {
    known: HashMap<u64, Weak<T>>,
    /// Number of values at which dropped ones are purged.
    full: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            full: 64,
        }
    }
}

impl<T: Hash + Eq + ?Sized> Shared<T> {
    /// Replaces a value by an equal known one; otherwise adds it and returns `false`.
    fn share(&mut self, value: &mut Arc<T>) -> bool {
        if let Some(known) = self.known.get(&hash(&**value)).and_then(Weak::upgrade)
            && *known == **value
        {
            *value = known;
            return true;
        }
        self.put(value);
        false
    }

    /// Two values with the same hash replace each other; both are valid.
    fn put(&mut self, value: &Arc<T>) {
        self.known.insert(hash(&**value), Arc::downgrade(value));
        if self.known.len() > self.full {
            self.known.retain(|_, value| value.strong_count() > 0);
            self.full = self.known.len().saturating_mul(2).max(64);
        }
    }
}

fn hash<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(app: &str, node: &str) -> Attributes {
        Attributes {
            labels: Arc::new([("app".to_owned(), app.to_owned())].into()),
            fields: [("spec.nodeName", node.into()), ("status.phase", "Running".into())].into(),
        }
    }

    #[test]
    fn equal_parts_are_one_and_others_stay_as_they_are() {
        let mut pool = Pool::default();
        let mut all =
            [("web", "n1"), ("web", "n1"), ("web", "n2"), ("db", "n1")].map(|(app, node)| attributes(app, node));
        let before = all.clone();
        for attributes in &mut all {
            pool.share(attributes);
        }
        assert_eq!(all, before);
        let [first, same, moved, other] = &all;
        assert!(Arc::ptr_eq(&first.labels, &same.labels) && Arc::ptr_eq(&first.fields, &same.fields));
        assert!(Arc::ptr_eq(&first.labels, &moved.labels) && !Arc::ptr_eq(&first.labels, &other.labels));
        assert!(Arc::ptr_eq(&first.fields, &other.fields));
        let phase = |attributes: &Attributes| Arc::clone(&attributes.fields[1].1);
        assert!(Arc::ptr_eq(&phase(first), &phase(moved)));
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let mut pool = Pool::default();
        for number in 0..1000 {
            pool.share(&mut attributes(&number.to_string(), &number.to_string()));
        }
        for known in [pool.labels.known.len(), pool.fields.known.len(), pool.texts.known.len()] {
            assert!(known < 200, "{known} of nobody");
        }
    }
}
