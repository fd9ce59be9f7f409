//! Where a pod goes: filters say where it can, the score says where it should.
//!
//! The [`Board`] counts pods from the moment they are placed, whether or not the server has answered, so that a burst
//! of pods does not stack on one node.

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
