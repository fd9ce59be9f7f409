//! Duplicate owner references: one of them is kept, and the client gets a warning.

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Removes duplicate references; returns the warning.
pub(crate) fn once(metadata: &mut ObjectMeta, of_patch: bool) -> Option<String> {
    let references = metadata.owner_references.as_mut().filter(|all| all.len() > 1)?;
    let mut seen = HashSet::new();
    let is_first: Vec<bool> = references
        .iter()
        .map(|reference| seen.insert(parts(reference)))
        .collect();
    drop(seen);
    let twins = references.iter().zip(&is_first).filter(|(_, is_first)| !**is_first);
    let uids: Vec<&str> = twins.map(|(twin, _)| twin.uid.as_str()).collect();
    if uids.is_empty() {
        return None;
    }
    let when = if of_patch {
        " after mutating admission happens"
    } else {
        ""
    };
    let warning = format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may \
         reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        uids.join(", ")
    );
    let mut is_first = is_first.into_iter();
    references.retain(|_| is_first.next().unwrap_or(true));
    Some(warning)
}

type Parts<'a> = (&'a str, &'a str, &'a str, &'a str, Option<bool>, Option<bool>);

fn parts(own: &OwnerReference) -> Parts<'_> {
    (
        &own.api_version,
        &own.kind,
        &own.name,
        &own.uid,
        own.controller,
        own.block_owner_deletion,
    )
}
