//! Decisions of the controllers and the scheduler, and nothing else: no I/O, no clock, no
//! randomness.
//!
//! A plan reads a snapshot and returns [`step::Plan`]: stages of steps that the driver performs.
//! Time is an argument. A snapshot is never older than the results of the previous plan: the driver
//! waits for those.

pub mod aggregation;
pub mod autoscaling;
pub mod certificates;
pub mod claim;
pub mod cron_job;
pub mod daemon_sets;
mod departure;
pub mod disruption;
pub mod endpoints;
pub mod garbage;
mod history;
pub mod job;
pub mod leftovers;
pub mod load_balancers;
pub mod namespaces;
pub mod node_health;
pub mod objects;
pub mod placement;
pub mod pod;
pub mod pod_template;
pub mod ranges;
pub mod replicas;
pub mod rollout;
pub mod service_ranges;
pub mod stateful_sets;
pub mod step;
pub mod storage;
pub mod ttl;
#[cfg(test)]
mod world;
