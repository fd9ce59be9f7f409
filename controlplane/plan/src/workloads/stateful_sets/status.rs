//! The StatefulSet's status.

use serde_json::{Value, json};

use super::{View, revision};
use crate::objects::Meta as _;
use crate::pod::{Pod, is_ready, phase};
use crate::step::Step;

impl View<'_> {
    /// Patches the status if it has changed (`inconsistentStatus`). `outdated` is the number of
    /// pods that this plan deletes because of their revision.
    pub(super) fn status(&self, outdated: i32) -> Option<Step> {
        let set = self.snapshot.set;
        let count = |counts: &dyn Fn(&Pod) -> bool| {
            let pods = self.replicas.values().chain(self.condemned.values());
            i32::try_from(pods.filter(|pod| counts(pod)).count()).unwrap_or(i32::MAX)
        };
        let of = |pod: &Pod, name: &String| !pod.metadata.is_deleting() && revision(pod) == Some(name);
        let runs = |pod: &Pod| phase(pod) == "Running" && is_ready(pod);
        let replicas = count(&|_| true);
        let ready = count(&runs);
        let available = count(&|pod| runs(pod) && self.available_in(pod).is_some_and(|delay| delay.is_zero()));
        let updated = count(&|pod| of(pod, &self.revisions.update.name));
        let mut current = count(&|pod| of(pod, &self.revisions.current.name))
            .saturating_sub(outdated)
            .max(0);
        let mut current_revision = &self.revisions.current.name;
        let wanted = self.spec.replicas.unwrap_or(1);
        if [updated, ready, replicas].iter().all(|count| *count == wanted) {
            current = updated;
            current_revision = &self.revisions.update.name;
        }
        let generation = set.metadata.generation.unwrap_or(0);
        let before = set.status.clone().unwrap_or_default();
        let counts = [replicas, ready, available, current, updated];
        let was = [
            before.replicas,
            before.ready_replicas.unwrap_or(0),
            before.available_replicas.unwrap_or(0),
            before.current_replicas.unwrap_or(0),
            before.updated_replicas.unwrap_or(0),
        ];
        let revisions =
            [&before.current_revision, &before.update_revision].map(|name| name.as_deref().unwrap_or_default());
        if was == counts
            && revisions == [current_revision, &self.revisions.update.name]
            && before.observed_generation.unwrap_or(0) >= generation
        {
            return None;
        }
        let number = |count: i32| if count == 0 { Value::Null } else { count.into() };
        Some(self.owner.clone().merge_status(json!({
            "metadata": { "uid": self.owner.uid, "resourceVersion": set.metadata.resource_version },
            "status": {
                "observedGeneration": generation,
                "replicas": replicas,
                "readyReplicas": number(ready),
                "availableReplicas": available,
                "currentReplicas": number(current),
                "updatedReplicas": number(updated),
                "currentRevision": current_revision,
                "updateRevision": self.revisions.update.name,
                "collisionCount": self.revisions.collisions,
            },
        })))
    }
}
