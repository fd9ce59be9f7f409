//! Placement of pods: filters find the feasible nodes, scores rank them.
//!
//! The [`SchedulerCache`] counts a pod on its node as soon as it is placed, before the server has answered,
//! so that a burst of pods does not pile up on one node.

mod cache;
pub mod claims;
pub mod filters;
mod inter_pod_affinity;
mod preemption;
mod requests;
mod schedule;
mod score;
mod spread;
#[cfg(test)]
mod tests;
mod unschedulable;

pub use api::pod::affinity;

pub use self::cache::{Place, Placed, SchedulerCache, priority};
pub use self::claims::{Bond, Claim, Claims, Limit};
pub use self::inter_pod_affinity::follows_pods;
pub use self::preemption::Displacement;
pub use self::requests::{HostPort, PodRequests, Resources};
pub use self::score::Score;
pub use self::unschedulable::{Misfit, Preemption, Unplaceable};
