//! The network: Services, DNS, network policies, and routes to other nodes.
//!
//! * [`proxy`]: Services as elements of the kernel's maps
//! * [`dns`]: names of Services and pods
//! * [`network_policy`]: allowed traffic of pods
//! * [`node_routes`]: routes to the pods of other nodes
//! * [`addresses`], [`bandwidth`]: addresses to report, and limits of traffic

pub mod addresses;
pub mod bandwidth;
pub mod dns;
pub mod network_policy;
pub mod node_routes;
pub mod proxy;
