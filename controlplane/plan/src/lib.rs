//! Decisions of the controllers and the scheduler, and nothing else: no I/O, no clock, no
//! randomness.
//!
//! A plan reads a snapshot and returns [`step::Plan`]: stages of steps that the driver performs.
//! Time is an argument. A snapshot is never older than the results of the previous plan: the driver
//! waits for those.
//!
//! | Room | Content |
//! |---|---|
//! | [`step`] | the steps of a plan |
//! | [`objects`], [`pod`] | accessors of objects, and a pod with the fields that plans read |
//! | [`workloads`] | workloads, their autoscaler, disruption budgets |
//! | [`placement`] | the scheduler |
//! | [`network`] | endpoints of Services, load balancers, Service CIDRs |
//! | [`storage`] | claims and volumes |
//! | [`node`] | health and taints of nodes, pod CIDRs, TTLs, pod garbage collection |
//! | [`access`] | aggregated cluster roles, certificate signing requests, unused tokens |
//! | [`garbage`], [`namespaces`] | garbage collection, deletion of namespaces |

pub mod access;
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
