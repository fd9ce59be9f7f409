//! Nodes: health and taints, pod CIDRs, TTLs, and the pods of nodes that are gone.
//!
//! * [`node_health`]: unknown conditions, taints, eviction
//! * [`pod_gc`], `departure`: pod garbage collection, and pods that the control plane disrupts
//! * [`ranges`], [`ttl`]: pod CIDRs, and TTLs of the agents' caches

pub(crate) mod departure;
pub mod node_health;
pub mod pod_gc;
pub mod ranges;
pub mod ttl;
