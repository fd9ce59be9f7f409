//! Update of managed fields by a write other than an apply.

use super::entries::{Entry, Managed, Operation};
use super::set::Set;
use super::strip;
use super::typed::compare::Comparison;
use super::versions::{Change, Versions};

/// Maximum number of update entries; older ones are merged into one.
pub const MAX_UPDATERS: usize = 10;

/// Manager name for the merged entries of updaters beyond [`MAX_UPDATERS`].
const ANCIENT: &str = "ancient-changes";

/// Manager that writes, with the subresource and the time.
#[derive(Clone, Debug)]
pub struct Writer {
    /// The manager's name.
    pub manager: String,
    /// The version that is written.
    pub api_version: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// Now, as RFC 3339 without fractions.
    pub time: String,
}

impl Writer {
    /// An entry of the writer.
    pub(super) fn entry(&self, operation: Operation, fields: Set) -> Entry {
        Entry::new(&self.manager, operation, &self.api_version, &self.subresource, fields)
    }
}

/// Assigns the changed fields to the writer and removes deleted fields from all managers.
///
/// `comparison` is that of the change. Entries of versions in which the object is not served cannot
/// be updated and are removed.
pub fn update(managed: &mut Managed, change: Change<'_>, comparison: Comparison, writer: &Writer) {
    if comparison.is_empty() {
        return;
    }
    let mut versions = Versions::new(change, &writer.api_version, comparison);
    managed.entries.retain_mut(|entry| {
        let Some(Comparison { changed, removed }) = versions.of(&entry.api_version) else {
            return false;
        };
        entry.fields.subtract(changed);
        entry.fields.subtract(removed);
        !entry.fields.is_empty()
    });
    take(managed, versions.into_own().changed, writer);
    cap(managed);
    managed.tidy();
}

/// Adds fields to the writer's own entry.
pub(super) fn take(managed: &mut Managed, mut fields: Set, writer: &Writer) {
    strip(&mut fields);
    if fields.is_empty() {
        return;
    }
    let mut entry = writer.entry(Operation::Update, fields);
    entry.time = Some(writer.time.clone());
    if let Some(own) = managed.place(&entry).and_then(|place| managed.entries.get_mut(place)) {
        own.fields.union(entry.fields);
        own.time = entry.time;
    } else {
        managed.entries.push(entry);
    }
}

/// Merges the oldest update entries of a version until there are few enough.
fn cap(managed: &mut Managed) {
    let mut updaters: Vec<Entry> = Vec::new();
    let is_update = |entry: &Entry| entry.operation == Operation::Update;
    let count = managed.entries.iter().filter(|entry| is_update(entry)).count();
    if count <= MAX_UPDATERS {
        return;
    }
    managed.entries.retain(|entry| {
        let update = is_update(entry);
        if update {
            updaters.push(entry.clone());
        }
        !update
    });
    updaters.sort_by(|left, right| {
        left.time
            .cmp(&right.time)
            .then_with(|| left.manager.cmp(&right.manager))
    });
    let mut left = count;
    let mut kept: Vec<Entry> = Vec::with_capacity(MAX_UPDATERS);
    for entry in updaters {
        // The first entry of a version becomes the bucket when a second is merged into it.
        let first = kept.iter_mut().find(|own| own.api_version == entry.api_version);
        match first {
            Some(bucket) if left > MAX_UPDATERS => {
                ANCIENT.clone_into(&mut bucket.manager);
                bucket.subresource.clear();
                bucket.fields.union(entry.fields);
                bucket.time = entry.time;
                left -= 1;
            }
            Some(_) | None => kept.push(entry),
        }
    }
    managed.entries.append(&mut kept);
}
