//! The claims of a StatefulSet's pods, and their owners (`persistentVolumeClaimRetentionPolicy`).

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::pods::Verb;
use super::{View, Work, range};
use crate::objects::{controlled_by, name};
use crate::step::{CLAIMS, Note, Outcome, Severity, Step, Target};
use crate::workloads::claim::owners_patch;

/// The retention policy: when claims are deleted.
#[derive(Clone, Copy)]
struct Retention {
    with_set: bool,
    with_replica: bool,
}

impl View<'_> {
    pub(super) fn claim_name(&self, template: &str, ordinal: i32) -> String {
        format!("{template}-{}-{ordinal}", self.owner.name)
    }

    fn claims(&self, ordinal: i32) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        let names = self.templates.keys();
        names.filter_map(move |template| (self.snapshot.claims)(&self.claim_name(template, ordinal)))
    }

    fn retention(&self) -> Retention {
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let deletes = |policy: Option<&String>| policy.is_some_and(|policy| policy == "Delete");
        Retention {
            with_set: deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
            with_replica: deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        }
    }

    /// True if a claim still belongs to a former pod of the name: it is deleted with that one
    /// (`PodClaimIsStale`).
    pub(super) fn has_stale_claim(&self, ordinal: i32, pod: &Target) -> bool {
        self.retention().with_replica && self.claims(ordinal).any(|claim| is_stale(owners(&claim), pod))
    }

    /// Creates the missing claims of a pod, and sets the owners of the others. The error is the
    /// name of a claim that is being deleted.
    pub(super) fn make_claims(&self, ordinal: i32, pod: &Target, work: &mut Work) -> Result<(), String> {
        let going = self
            .claims(ordinal)
            .find(|claim| claim.metadata.deletion_timestamp.is_some());
        for (template, claim) in &self.templates {
            let claim_name = self.claim_name(template, ordinal);
            if (self.snapshot.claims)(&claim_name).is_none() {
                work.claims.push(self.make_claim(claim, claim_name, pod));
            }
        }
        if let Some(going) = going {
            return Err(name(&*going).to_owned());
        }
        work.claims.extend(self.owners_of_claims(ordinal, pod));
        Ok(())
    }

    fn make_claim(&self, template: &PersistentVolumeClaim, claim_name: String, pod: &Target) -> Step {
        let mut claim = template.clone();
        let selected = self.spec.selector.match_labels.clone().unwrap_or_default();
        claim.metadata.labels.get_or_insert_default().extend(selected);
        claim.metadata.namespace = Some(self.owner.namespace.clone());
        if self.retention().with_set {
            claim
                .metadata
                .owner_references
                .get_or_insert_default()
                .push(controlled_by(&self.owner));
        }
        let (set, pod_name) = (&self.owner.name, &pod.name);
        let done = format!("Create Claim {claim_name} Pod {pod_name} in StatefulSet {set} success");
        let failed = format!("Create Claim {claim_name} for Pod {pod_name} in StatefulSet {set} failed error: {{}}");
        let mut failed = vec![self.owner.note(Severity::Warning, "FailedCreate", failed)];
        // A pod that does not exist yet cannot be created either (`CreateStatefulPod`).
        if pod.uid.is_empty() {
            let error = format!("failed to create PVC {claim_name}: {{}}");
            failed.push(self.failure(Verb::Create, pod_name, &error));
        }
        claim.metadata.name = Some(claim_name);
        Step::Create {
            resource: CLAIMS,
            namespace: self.owner.namespace.clone(),
            body: Box::new(json!(claim)),
            outcome: Outcome {
                done: Some(self.owner.note(Severity::Normal, "SuccessfulCreate", done)),
                failed,
            },
        }
    }

    /// Patches the owners of a pod's claims if they do not follow the policy.
    pub(super) fn owners_of_claims(&self, ordinal: i32, pod: &Target) -> Vec<Step> {
        let condemned = !range(self.spec).contains(&ordinal);
        let steps = self.claims(ordinal).filter_map(|claim| {
            let conflict = self.has_other_controller(owners(&claim), pod);
            let told = conflict.then(|| self.conflict(name(&*claim)));
            let Some(wanted) = self.owners(owners(&claim), pod, condemned, conflict) else {
                // Nothing to write, but the creation of the pod is an occasion to tell.
                return told.filter(|_| pod.uid.is_empty()).map(Step::Event);
            };
            let mut step = owners_patch(CLAIMS, &*claim, &json!(wanted), None);
            if let Step::Patch { outcome, .. } = &mut step {
                outcome.done = told;
            }
            Some(step)
        });
        steps.collect()
    }

    /// The event about a claim of another controller (`UpdatePodClaimForRetentionPolicy`).
    fn conflict(&self, claim: &str) -> Note {
        let message = format!(
            "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging controller, \
             the retention policy is ignored for this claim"
        );
        self.owner.note(Severity::Warning, "ConflictingController", message)
    }

    fn has_other_controller(&self, owners: &[OwnerReference], pod: &Target) -> bool {
        let Retention { with_set, with_replica } = self.retention();
        let ours = |owner: &OwnerReference| names(owner, &self.owner) || names(owner, pod);
        let others = || owners.iter().filter(|owner| !ours(owner));
        (with_set || with_replica) && others().any(|owner| owner.controller == Some(true))
    }

    /// The new owners of a claim; `None` if they are right, or if the claim is left alone
    /// (`isClaimOwnerUpToDate`, `updateClaimOwnerRefForSetAndPod`).
    fn owners(
        &self,
        owners: &[OwnerReference],
        pod: &Target,
        condemned: bool,
        conflict: bool,
    ) -> Option<Vec<OwnerReference>> {
        let set = &self.owner;
        if is_stale(owners, set) || is_stale(owners, pod) {
            return None;
        }
        let Retention { with_set, with_replica } = self.retention();
        let to_set = with_set && !(with_replica && condemned) && !conflict;
        let to_pod = with_replica && condemned && !conflict;
        let has = |one: &Target| owners.iter().any(|owner| owner.uid == one.uid);
        let mut ours = owners
            .iter()
            .filter(|owner| owner.uid == set.uid || owner.uid == pod.uid);
        let controlled = ours.all(|owner| owner.controller == Some(true));
        if has(set) == to_set && has(pod) == to_pod && controlled {
            return None;
        }
        let others = owners.iter().filter(|owner| !names(owner, set) && !names(owner, pod));
        let mut wanted: Vec<OwnerReference> = others.cloned().collect();
        wanted.extend(to_set.then(|| controlled_by(set)));
        wanted.extend(to_pod.then(|| controlled_by(pod)));
        Some(wanted)
    }
}

fn owners(claim: &PersistentVolumeClaim) -> &[OwnerReference] {
    claim.metadata.owner_references.as_deref().unwrap_or_default()
}

/// True if a reference has this kind and name.
fn names(owner: &OwnerReference, object: &Target) -> bool {
    owner.kind == object.resource.kind
        && owner.api_version == object.resource.api_version()
        && owner.name == object.name
}

/// True if a claim belongs to a former object of the name.
fn is_stale(owners: &[OwnerReference], object: &Target) -> bool {
    let named = owners.iter().find(|owner| names(owner, object));
    named.is_some_and(|owner| owner.uid != object.uid)
}
