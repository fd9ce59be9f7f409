//! Current and updated revision (`getStatefulSetRevisions`).

use std::borrow::Cow;

use api::names;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::{Snapshot, View, revision};
use crate::objects::name;
use crate::step::{Step, Target};
use crate::workloads::history::{self, New};

/// Label of a revision with the hash in its name.
const HASH: &str = "controller.kubernetes.io/hash";
/// Longest prefix of a name that leaves room for the hash.
const LONGEST_PREFIX: usize = 223;

/// A revision's name and template.
pub(super) struct Version<'a> {
    pub(super) name: String,
    pub(super) template: Cow<'a, PodTemplateSpec>,
}

/// The revisions of a StatefulSet.
pub(super) struct Revisions<'a> {
    known: Vec<&'a ControllerRevision>,
    pub(super) update: Version<'a>,
    pub(super) current: Version<'a>,
    /// Number of hash collisions so far.
    pub(super) collisions: i32,
    /// Steps that create the newest revision, if it does not exist.
    pub(super) steps: Vec<Step>,
}

impl<'a> Revisions<'a> {
    /// Finds the revisions among `known`, the set's own, oldest first. `None` if there is no free
    /// name.
    pub(super) fn of(
        snapshot: &Snapshot<'a>,
        spec: &'a StatefulSetSpec,
        owner: &Target,
        known: Vec<&'a ControllerRevision>,
    ) -> Option<Self> {
        let status = snapshot.set.status.as_ref();
        let wanted = &spec.template;
        let mut collisions = status.and_then(|status| status.collision_count).unwrap_or(0);
        let mut steps = Vec::new();
        let number = history::next_number(&known);
        let equal = known.iter().rposition(|revision| history::holds(revision, wanted));
        let newest = if let Some((index, found)) = equal.and_then(|index| Some((index, *known.get(index)?))) {
            if index.saturating_add(1) < known.len() {
                steps.push(history::renumber(found, number));
            }
            name(found).to_owned()
        } else {
            let data = history::data(wanted);
            let named = |name: &str| {
                snapshot
                    .revisions
                    .iter()
                    .find(|other| crate::objects::name(**other) == name)
            };
            let mut candidates = (collisions..i32::MAX).map(|collisions| {
                let hash = names::revision_hash(&data, collisions);
                (collisions, format!("{}-{hash}", prefix(&owner.name)), hash)
            });
            let (salt, name, hash) =
                candidates.find(|(_, name, _)| named(name).is_none_or(|other| history::holds(other, wanted)))?;
            collisions = salt;
            if named(&name).is_none() {
                let new = New {
                    name: name.clone(),
                    hash_label: (HASH, hash),
                    template: wanted,
                    annotations: snapshot.set.metadata.annotations.as_ref(),
                    number,
                };
                steps.push(history::create(owner, new));
            }
            name
        };
        let version = |name: &str, template| Version {
            name: name.to_owned(),
            template,
        };
        let current = status.and_then(|status| status.current_revision.as_ref());
        let current = current.filter(|current| **current != newest);
        let current = current.and_then(|current| known.iter().find(|revision| name(**revision) == current));
        let current =
            current.and_then(|current| Some(version(name(*current), Cow::Owned(history::template(current)?))));
        Some(Self {
            current: current.unwrap_or_else(|| version(&newest, Cow::Borrowed(wanted))),
            update: version(&newest, Cow::Borrowed(wanted)),
            known,
            collisions,
            steps,
        })
    }
}

fn prefix(name: &str) -> &str {
    name.get(..LONGEST_PREFIX).unwrap_or(name)
}

impl View<'_> {
    /// Deletes the oldest unused revisions beyond the limit (`truncateHistory`).
    pub(super) fn superfluous_revisions(&self) -> Vec<Step> {
        let Ok(limit) = usize::try_from(self.spec.revision_history_limit.unwrap_or(10)) else {
            return Vec::new();
        };
        let Revisions { update, current, .. } = &self.revisions;
        let pods = || self.replicas.values().chain(self.condemned.values());
        let is_live = |name: &str| {
            name == update.name
                || name == current.name
                || pods().any(|pod| revision(pod).is_some_and(|own| own == name))
        };
        let known = self.revisions.known.iter().copied();
        let old: Vec<_> = known.filter(|revision| !is_live(name(*revision))).collect();
        let excess = old.len().saturating_sub(limit);
        let gone = old.into_iter().take(excess);
        gone.filter(|revision| revision.metadata.deletion_timestamp.is_none())
            .map(history::delete)
            .collect()
    }
}
