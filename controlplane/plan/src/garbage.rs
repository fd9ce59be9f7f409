//! Garbage collection: deletes objects whose owners are gone, and orders foreground deletion and
//! orphaning.
//!
//! The [`Graph`] holds the owners of every object. An owner that is missing from the graph is
//! looked up before a dependent is deleted on its account; uids are never reused, so a proven
//! absence stays true.

mod item;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;

pub use self::item::Item;
use crate::step::{Note, Plan, Propagation, Resource, Severity, Step, Target};

/// Finalizer that keeps an object until its dependents are orphaned.
pub const ORPHAN: &str = "orphan";
/// Finalizer that keeps an object until its blocking dependents are gone.
pub const FOREGROUND: &str = "foregroundDeletion";

/// Number of absent owners that are remembered.
const REMEMBERED: usize = 500;
/// Seconds for which an owner that was looked up counts as present before the graph shows it.
const BELIEVED: i64 = 10;

/// State of one owner.
enum Owner {
    Solid,
    /// The owner goes when its dependents have gone.
    Waiting,
    Absent,
    /// Not looked up yet.
    Unknown(Target),
    /// Cannot be determined, so its possible dependents are left alone.
    Unresolvable,
}

/// Owners and dependents of all objects.
#[derive(Debug, Default)]
pub struct Graph {
    items: BTreeSet<Item>,
    dependents: BTreeMap<String, BTreeSet<Item>>,
    absent: BTreeSet<String>,
    order: VecDeque<String>,
    believed: BTreeMap<String, i64>,
    /// Owners in another namespace that an event was already recorded for, by uid of the dependent:
    /// each is reported once.
    told: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// Adds or updates an object; returns the uids that must be examined.
    pub fn observe(&mut self, item: Item) -> Vec<String> {
        self.believed.remove(item.uid());
        let mut concerned = Vec::new();
        if let Some(old) = self.items.take(item.uid()) {
            concerned.extend(self.unlink(&old));
        }
        for owner in item.owners() {
            let siblings = self.dependents.entry(owner.uid.clone()).or_default();
            siblings.insert(item.clone());
        }
        if item.waits() || (item.is_deleting() && item.holds(ORPHAN)) {
            concerned.extend(self.uids_of_dependents(item.uid()));
        }
        if item.is_deleting() || !item.owners().is_empty() {
            concerned.push(item.uid().to_owned());
        }
        self.items.insert(item);
        concerned
    }

    /// Removes an object; returns the uids that must be examined.
    pub fn forget(&mut self, uid: &str) -> Vec<String> {
        self.believed.remove(uid);
        self.told.remove(uid);
        let mut concerned: Vec<String> = self.uids_of_dependents(uid).collect();
        if let Some(old) = self.items.take(uid) {
            concerned.extend(self.unlink(&old));
        }
        concerned
    }

    /// Returns the resource by which an object is known.
    pub fn resource(&self, uid: &str) -> Option<Resource> {
        self.items.get(uid).map(|item| *item.resource)
    }

    /// Returns the uids of objects with owners of this kind.
    pub fn owned_by_kind(&self, group: &str, kind: &str) -> Vec<String> {
        let is_meant = |owner: &OwnerReference| {
            let of_group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
            (of_group, owner.kind.as_str()) == (group, kind)
        };
        let owned = self.items.iter().filter(|item| item.owners().iter().any(is_meant));
        owned.map(|item| item.uid().to_owned()).collect()
    }

    fn uids_of_dependents(&self, uid: &str) -> impl Iterator<Item = String> {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        dependents.map(|item| item.uid().to_owned())
    }

    /// Removes an item's edges; returns the owners that wait for their dependents' deletion.
    fn unlink(&mut self, item: &Item) -> Vec<String> {
        for owner in item.owners() {
            if let Some(siblings) = self.dependents.get_mut(&owner.uid) {
                siblings.remove(item);
                if siblings.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        let waiting = item.owners().iter().filter(|owner| {
            let owner = self.items.get(owner.uid.as_str());
            owner.is_some_and(Item::is_deleting)
        });
        waiting.map(|owner| owner.uid.clone()).collect()
    }

    /// Records the result of a lookup: whether the owner exists.
    pub fn learn(&mut self, uid: &str, exists: bool, now: Timestamp) {
        if exists {
            self.believed.insert(uid.to_owned(), now.as_second());
        } else {
            self.bury(uid);
        }
    }

    /// Records that a known owner is gone.
    pub fn bury(&mut self, uid: &str) {
        if self.absent.insert(uid.to_owned()) {
            self.order.push_back(uid.to_owned());
        }
        // An object may have more owners than `REMEMBERED`: evicting some while others are looked
        // up would never end.
        while self.order.len() > REMEMBERED.max(self.dependents.len()) {
            if let Some(oldest) = self.order.pop_front() {
                self.absent.remove(&oldest);
            }
        }
    }

    /// Returns the steps for an object. `resolve` maps an `apiVersion` and a kind to a resource.
    pub fn plan(&mut self, uid: &str, resolve: impl Fn(&str, &str) -> Option<Resource>, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(item) = self.items.get(uid).cloned() else {
            return plan;
        };
        plan.stage(self.complain(&item));
        if item.is_deleting() {
            self.release(&item, &mut plan);
        } else if !item.owners().is_empty() {
            self.judge(&item, resolve, now, &mut plan);
        }
        plan
    }

    /// Records events about owners in a namespace from which they cannot own this object.
    fn complain(&mut self, item: &Item) -> Vec<Step> {
        let mut steps = Vec::new();
        for owner in item.owners() {
            let Some(found) = self.items.get(owner.uid.as_str()) else {
                continue;
            };
            let namespace = found.meta().namespace();
            if namespace.is_empty() || namespace == item.meta().namespace() {
                continue;
            }
            let told = self.told.entry(item.uid().to_owned()).or_default();
            if told.insert(owner.uid.clone()) {
                steps.push(Step::Event(misplaced(item, owner)));
            }
        }
        steps
    }

    fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Item> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Processes an object with a finalizer: orphans its dependents or waits for their deletion,
    /// then removes the finalizer.
    fn release(&self, item: &Item, plan: &mut Plan) {
        let uid = item.uid();
        if item.holds(ORPHAN) {
            let gone = BTreeSet::from([uid]);
            let steps: Vec<Step> = self
                .dependents_of(uid)
                .map(|dependent| dependent.without_owners(&gone))
                .collect();
            plan.stage(if steps.is_empty() {
                vec![item.without_finalizer(ORPHAN)]
            } else {
                steps
            });
        } else if item.holds(FOREGROUND) {
            let blocks = |dependent: &&Item| {
                dependent
                    .owners()
                    .iter()
                    .any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
            };
            if !self.dependents_of(uid).any(|dependent| blocks(&dependent)) {
                plan.stage(vec![item.without_finalizer(FOREGROUND)]);
            }
        }
    }

    fn judge(&self, item: &Item, resolve: impl Fn(&str, &str) -> Option<Resource>, now: Timestamp, plan: &mut Plan) {
        let mut gone: BTreeSet<&str> = BTreeSet::new();
        let (mut solid, mut waiting) = (false, false);
        let mut unknown = Vec::new();
        for owner in item.owners() {
            match self.classify(item, owner, &resolve, now) {
                Owner::Solid => solid = true,
                Owner::Waiting => {
                    waiting = true;
                    gone.insert(&owner.uid);
                }
                Owner::Absent => drop(gone.insert(&owner.uid)),
                Owner::Unknown(target) => unknown.push(Step::Look(target)),
                Owner::Unresolvable => return,
            }
            if self.believed.contains_key(&owner.uid) {
                plan.again(Duration::from_secs(
                    u64::try_from(BELIEVED).unwrap_or(0).saturating_add(1),
                ));
            }
        }
        if !unknown.is_empty() {
            plan.stage(unknown);
        } else if solid {
            if !gone.is_empty() {
                plan.stage(vec![item.without_owners(&gone)]);
            }
        } else if waiting && self.dependents_of(item.uid()).next().is_some() {
            // A dependent that is waiting already may wait for this object's owner: a cycle that
            // would block deletion forever.
            let circle = self.dependents_of(item.uid()).any(Item::waits);
            let blocks = item
                .owners()
                .iter()
                .any(|owner| owner.block_owner_deletion == Some(true));
            plan.stage(vec![if circle && blocks {
                item.unblocking()
            } else {
                item.delete(Propagation::Foreground)
            }]);
        } else if item.holds(ORPHAN) {
            plan.stage(vec![item.delete(Propagation::Orphan)]);
        } else if item.holds(FOREGROUND) {
            plan.stage(vec![item.delete(Propagation::Foreground)]);
        } else {
            plan.stage(vec![item.delete(Propagation::Background)]);
        }
    }

    fn classify(
        &self,
        item: &Item,
        owner: &OwnerReference,
        resolve: &impl Fn(&str, &str) -> Option<Resource>,
        now: Timestamp,
    ) -> Owner {
        // Holds even if its kind is no longer served: an owner that was gone does not come back.
        if self.absent.contains(&owner.uid) {
            return Owner::Absent;
        }
        let Some(resource) = resolve(&owner.api_version, &owner.kind) else {
            return Owner::Unresolvable;
        };
        if resource.namespaced && item.meta().namespace().is_empty() {
            return Owner::Unresolvable;
        }
        // No object has such a name, and a path with it would be another one.
        if matches!(&*owner.name, "." | "..") || owner.name.contains(['/', '%']) {
            return Owner::Unresolvable;
        }
        let namespace = if resource.namespaced {
            item.meta().namespace()
        } else {
            ""
        };
        if let Some(found) = self.items.get(owner.uid.as_str()) {
            // Aggregated servers show objects by the uids of those of other groups that they stand
            // for; upstream asks for them by their path, and finds them.
            if found.resource.group != resource.group {
                return Owner::Unresolvable;
            }
            // The reference must match the object exactly: an owner in another namespace does not
            // count.
            if found.meta().namespace() != namespace || found.resource.kind != owner.kind {
                return Owner::Absent;
            }
            return if found.waits() { Owner::Waiting } else { Owner::Solid };
        }
        if self
            .believed
            .get(&owner.uid)
            .is_some_and(|since| now.as_second().saturating_sub(*since) <= BELIEVED)
        {
            return Owner::Solid;
        }
        Owner::Unknown(Target {
            resource,
            namespace: namespace.to_owned(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        })
    }
}

fn misplaced(item: &Item, owner: &OwnerReference) -> Note {
    let namespace = item.meta().namespace();
    Note {
        about: item.target().reference(),
        severity: Severity::Warning,
        reason: "OwnerRefInvalidNamespace",
        message: format!(
            "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace \"{namespace}\"",
            owner.api_version, owner.kind, owner.name, owner.uid
        ),
    }
}

#[cfg(test)]
mod tests;
