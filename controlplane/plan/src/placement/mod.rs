//! Placement of pods: filters find the feasible nodes, scores rank them.
//!
//! The [`Board`] counts a pod on its node as soon as it is placed, before the server has answered,
//! so that a burst of pods does not pile up on one node.

mod board;
pub mod claims;
pub mod filters;
mod needs;
mod neighbours;
mod preemption;
mod score;
mod spread;
#[cfg(test)]
mod tests;
mod verdict;

pub use api::pod::affinity;

pub use self::{
    board::{Board, Place, Placed},
    claims::{Bond, Claim, Claims},
    needs::{HostPort, Needs},
    preemption::{Displacement, priority},
    score::Score,
    verdict::{Misfit, Preemption, Unplaceable},
};
