//! Moves names between images.

use crate::content::digest::Digest;
use crate::reference::{self, Reference};
use crate::store::index::Record;

/// Adds an image. Its names are removed from the images that had them.
pub(crate) fn add(records: &mut Vec<Record>, new: Record) {
    for record in records.iter_mut().filter(|record| record.id != new.id) {
        record.names.retain(|name| !new.names.contains(name));
        if record.names.is_empty() {
            // Only digests of the moved tag are left; they do not keep the image.
            let repositories: Vec<&str> = new
                .names
                .iter()
                .filter_map(|name| name.rsplit_once(':'))
                .map(|(repository, _)| repository)
                .collect();
            record.digests.retain(|digest| {
                !repositories
                    .iter()
                    .any(|repository| digest.starts_with(&format!("{repository}@")))
            });
        }
    }
    match records.iter_mut().find(|record| record.id == new.id) {
        Some(record) => {
            merge(&mut record.names, new.names);
            merge(&mut record.digests, new.digests);
            record.pinned |= new.pinned;
            record.target = new.target.or(record.target.take());
        }
        None => records.push(new),
    }
    records.sort_by(|left, right| left.id.cmp(&right.id));
}

/// Removes a name from its image, or all names by id. Returns whether it existed.
pub(crate) fn remove(records: &mut [Record], name: &str) -> Result<bool, reference::Invalid> {
    let by_id = Digest::parse(name).ok();
    let reference = match &by_id {
        Some(_) => None,
        None => Some(Reference::parse(name)?),
    };
    let mut found = false;
    for record in records {
        if by_id.as_ref().is_some_and(|id| id.as_str() == record.id) {
            found = true;
            record.names.clear();
            record.digests.clear();
        }
        if let Some(reference) = &reference {
            let digest = reference
                .digest()
                .map(|digest| format!("{}@{digest}", reference.repository()));
            let before = record.names.len() + record.digests.len();
            record.names.retain(|name| Some(name) != reference.name().as_ref());
            record.digests.retain(|name| Some(name) != digest.as_ref());
            let taken = record.names.len() + record.digests.len() < before;
            found |= taken;
            if record.names.is_empty() && reference.name().is_some() && taken {
                record
                    .digests
                    .retain(|digest| !digest.starts_with(&format!("{}@", reference.repository())));
            }
        }
    }
    Ok(found)
}

fn merge(into: &mut Vec<String>, from: Vec<String>) {
    into.extend(from);
    into.sort();
    into.dedup();
}
