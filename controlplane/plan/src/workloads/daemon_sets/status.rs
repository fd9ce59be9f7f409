//! The DaemonSet's status (`updateDaemonSetStatus`).

use serde_json::{Value, json};

use super::View;
use super::placing::Fit;
use crate::pod::is_ready;
use crate::step::Step;

#[derive(Default)]
struct Counts {
    desired: i32,
    current: i32,
    misscheduled: i32,
    ready: i32,
    updated: i32,
    available: i32,
}

impl View<'_> {
    /// Patches the status if it has changed.
    pub(super) fn status(&self) -> Option<Step> {
        let counts = self.count();
        let unavailable = counts.desired.saturating_sub(counts.available);
        let before = self.set.status.clone().unwrap_or_default();
        let was = [
            before.desired_number_scheduled,
            before.current_number_scheduled,
            before.number_misscheduled,
            before.number_ready,
            before.updated_number_scheduled.unwrap_or(0),
            before.number_available.unwrap_or(0),
            before.number_unavailable.unwrap_or(0),
        ];
        let Counts {
            desired,
            current,
            misscheduled,
            ready,
            updated,
            available,
        } = counts;
        let generation = self.set.metadata.generation.unwrap_or(0);
        if was == [desired, current, misscheduled, ready, updated, available, unavailable]
            && before.observed_generation.unwrap_or(0) >= generation
        {
            return None;
        }
        let number = |count: i32| if count == 0 { Value::Null } else { count.into() };
        Some(self.owner.clone().merge_status(json!({
            "metadata": { "uid": self.owner.uid, "resourceVersion": self.set.metadata.resource_version },
            "status": {
                "observedGeneration": generation,
                "desiredNumberScheduled": desired,
                "currentNumberScheduled": current,
                "numberMisscheduled": misscheduled,
                "numberReady": ready,
                "updatedNumberScheduled": number(updated),
                "numberAvailable": number(available),
                "numberUnavailable": number(unavailable),
            },
        })))
    }

    fn count(&self) -> Counts {
        let mut counts = Counts::default();
        let add = |count: &mut i32, holds: bool| *count = count.saturating_add(i32::from(holds));
        for (node, fit) in &self.nodes {
            let first = self.pods.get(node).and_then(|pods| pods.first());
            if *fit != Fit::Runs {
                add(&mut counts.misscheduled, first.is_some());
                continue;
            }
            add(&mut counts.desired, true);
            let Some(pod) = first else { continue };
            add(&mut counts.current, true);
            add(&mut counts.ready, is_ready(pod));
            add(&mut counts.available, self.is_available(pod));
            add(&mut counts.updated, self.placing.is_current(pod, &self.hash));
        }
        counts
    }
}
