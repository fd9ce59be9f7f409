//! Resources of quality-of-service classes: all pods together get the node's allocatable, Burstable
//! pods their requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::resources;
use runtime::Limits;
use tracing::warn;

use crate::Error;
use crate::client::events::Kind;
use crate::context::Context;

/// Changes within this time are applied together.
const PAUSE: Duration = Duration::from_millis(100);
/// Time until the next attempt after a failure.
const RETRY: Duration = Duration::from_mins(1);

/// Applies the cgroup limits, and again whenever pods are added or removed.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    let mut done: Option<u64> = None;
    loop {
        let wanted = context.burstable_shares();
        let next = if done == Some(wanted) {
            Ok(())
        } else {
            let arranged = context.parts.runtime.arrange(context.together(), wanted);
            context.operations.of_cgroups("update", arranged).await
        };
        match next {
            Ok(()) => {
                if done.replace(wanted).is_none() && context.config.upkeep.enforce {
                    let message = "Updated Node Allocatable limit across pods".to_owned();
                    context.node_event(Kind::Normal, "NodeAllocatableEnforced", message);
                }
                context.pods_changed.notified().await;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                warn!(error = image::chain(&error), "control groups could not be arranged");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

impl Context {
    fn burstable_shares(&self) -> u64 {
        let active = self.active_pods(|_| true);
        let burstable = active
            .iter()
            .filter_map(|pod| pod.spec.as_ref().filter(|spec| api::pod::qos(spec) == "Burstable"));
        resources::shares_together(burstable)
    }

    /// Limits of all pods together.
    fn together(&self) -> Limits {
        if !self.config.upkeep.enforce {
            return Limits::default();
        }
        let given = resources::together(
            &self.machine.capacity(self.config.max_pods),
            &self.config.upkeep.reserved,
        );
        crate::pod::worker::limits(&given)
    }
}
