//! Decisions of the controllers and the scheduler, and nothing else: no I/O, no clock, no
//! randomness.
//!
//! A plan reads a snapshot and returns [`step::Plan`]: stages of steps that the driver performs.
//! Time is an argument. A snapshot is never older than the results of the previous plan: the driver
//! waits for those.

pub mod aggregation;
pub mod certificates;
pub mod garbage;
pub mod namespaces;
pub mod network;
pub mod node;
pub mod objects;
pub mod placement;
pub mod pod;
pub mod step;
pub mod storage;
pub mod workloads;
#[cfg(test)]
mod world;
