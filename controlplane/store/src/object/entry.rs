//! Entries, events and lists for readers and watchers.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use crate::Key;

/// Labels by their keys.
pub type Labels = BTreeMap<String, String>;
/// Selectable fields and their values, such as `("spec.nodeName", "n1")`. A missing field is empty.
pub type Fields = [(&'static str, Arc<str>)];

/// Labels and fields that lists and watches select by, so that they need not decode the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// The object's labels.
    pub labels: Arc<Labels>,
    /// The object's selectable fields.
    pub fields: Arc<Fields>,
}

impl Attributes {
    /// Value of a field of the object with this key.
    pub fn field<'a>(&'a self, key: &'a Key, field: &str) -> Option<&'a str> {
        match field {
            "metadata.name" => Some(key.name()),
            "metadata.namespace" => Some(key.namespace()),
            _ => {
                let mut fields = self.fields.iter();
                fields.find(|(own, _)| *own == field).map(|(_, value)| &**value)
            }
        }
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            labels: Arc::default(),
            fields: Arc::from([]),
        }
    }
}

/// A version of an object. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Entry(Arc<Version>);

/// The parts of an [`Entry`], which dereferences to it.
#[derive(Debug)]
pub struct Version {
    /// The object's name.
    pub key: Key,
    /// The revision that stored this version; the same as in the bytes.
    pub revision: u64,
    /// The complete JSON.
    pub bytes: Bytes,
    /// Labels and fields for selectors.
    pub attributes: Attributes,
}

impl Entry {
    pub(crate) fn new(key: Key, revision: u64, bytes: Bytes, attributes: Attributes) -> Self {
        Self(Arc::new(Version {
            key,
            revision,
            bytes,
            attributes,
        }))
    }
}

impl Deref for Entry {
    type Target = Version;

    fn deref(&self) -> &Version {
        &self.0
    }
}

/// A change, as every watcher of the resource sees it.
#[derive(Debug)]
pub struct Event {
    /// The revision of the change.
    pub revision: u64,
    /// Kind of the change, with the previous version.
    pub kind: EventKind,
    /// The new version; after a delete the object's final bytes, at the revision of the delete.
    pub entry: Entry,
}

/// Kind of a change, with the previous version: watches with selectors need both.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// Created (no previous version) or updated.
    Put {
        /// The previous version.
        prev: Option<Entry>,
    },
    /// Deleted.
    Delete {
        /// The previous version.
        prev: Option<Entry>,
    },
}

impl Event {
    /// Returns the previous version.
    pub fn prev(&self) -> Option<&Entry> {
        match &self.kind {
            EventKind::Put { prev } | EventKind::Delete { prev } => prev.as_ref(),
        }
    }
}

/// A page of a LIST.
#[derive(Debug, Clone)]
pub struct List {
    /// Objects in the order of their keys.
    pub entries: Vec<Entry>,
    /// The revision that the whole list is a snapshot of.
    pub revision: u64,
    /// Number of objects that follow after this page.
    pub remaining: usize,
}
