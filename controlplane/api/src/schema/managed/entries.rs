//! The entries of `metadata.managedFields`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::set::Set;

/// Type of write by which a manager got its fields.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Every other write.
    Update,
}

/// Entry of `managedFields`: the fields of one manager.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Name of the manager.
    #[serde(default)]
    pub manager: String,
    /// Type of the write.
    pub operation: Operation,
    /// API version of the fields.
    pub api_version: String,
    /// Time of the last change of the fields, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    fields_type: FieldsType,
    /// The fields.
    #[serde(rename = "fieldsV1", default)]
    pub fields: Set,
    /// Subresource of the write.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum FieldsType {
    FieldsV1,
}

impl Entry {
    pub(super) fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str, fields: Set) -> Self {
        Self {
            api_version: api_version.to_owned(),
            fields_type: FieldsType::FieldsV1,
            fields,
            manager: if manager.is_empty() { "unknown" } else { manager }.to_owned(),
            operation,
            subresource: subresource.to_owned(),
            time: None,
        }
    }

    /// True if both entries belong to the same manager. An applier has one entry, whatever version
    /// it applies.
    pub(super) fn is_same_manager(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Identity of an entry's manager.
    fn identity(&self) -> (String, Operation, String, String) {
        let version = match self.operation {
            Operation::Apply => String::new(),
            Operation::Update => self.api_version.clone(),
        };
        (self.manager.clone(), self.operation, self.subresource.clone(), version)
    }

    /// True if the entries are equal except for their times.
    fn equals_without_time(&self, other: &Self) -> bool {
        self.is_same_manager(other) && self.api_version == other.api_version && self.fields == other.fields
    }
}

/// All entries of an object.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Managed {
    pub(super) entries: Vec<Entry>,
}

impl Managed {
    /// Parses the list from JSON; an empty text is an empty list.
    ///
    /// # Errors
    /// An entry lacks its operation, version or fields type, or has an unknown one.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let mut managed = Self::default();
        if json.is_empty() {
            return Ok(managed);
        }
        let entries: Vec<Entry> = serde_json::from_str(json)?;
        let mut places = BTreeMap::new();
        for entry in entries {
            if entry.api_version.is_empty() {
                return Err(serde::de::Error::custom("apiVersion must not be empty"));
            }
            // The last entry of a manager wins, at the position of the first.
            let next = managed.entries.len();
            let place = *places.entry(entry.identity()).or_insert(next);
            match managed.entries.get_mut(place) {
                Some(own) => *own = entry,
                None => managed.entries.push(entry),
            }
        }
        Ok(managed)
    }

    /// The entries, in the order in which they are stored.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn place(&self, like: &Entry) -> Option<usize> {
        self.entries.iter().position(|entry| entry.is_same_manager(like))
    }

    /// Adds an entry, or replaces its manager's.
    pub(super) fn put(&mut self, entry: Entry) {
        match self.place(&entry).and_then(|place| self.entries.get_mut(place)) {
            Some(own) => *own = entry,
            None => self.entries.push(entry),
        }
    }

    /// Drops entries without fields and sorts the others in upstream's order.
    pub(super) fn tidy(&mut self) {
        self.entries.retain(|entry| !entry.fields.is_empty());
        let order = |left: &Entry, right: &Entry| {
            let key = |entry: &Entry| (entry.operation, entry.time.clone());
            key(left)
                .cmp(&key(right))
                .then_with(|| left.manager.cmp(&right.manager))
                .then_with(|| left.api_version.cmp(&right.api_version))
                .then_with(|| left.subresource.cmp(&right.subresource))
        };
        self.entries.sort_by(order);
    }

    /// True if both have the same entries, except for their times.
    pub fn equals_without_times(&self, other: &Self) -> bool {
        let theirs: BTreeMap<_, _> = other.entries.iter().map(|entry| (entry.identity(), entry)).collect();
        let known = |entry: &Entry| {
            let theirs = theirs.get(&entry.identity());
            theirs.is_some_and(|theirs| entry.equals_without_time(theirs))
        };
        self.entries.len() == other.entries.len() && self.entries.iter().all(known)
    }

    /// The list as JSON; empty when there is no entry.
    pub fn to_json(&self) -> String {
        if self.entries.is_empty() {
            return String::new();
        }
        // Texts and maps with text keys always encode.
        serde_json::to_string(&self.entries).unwrap_or_default()
    }
}
