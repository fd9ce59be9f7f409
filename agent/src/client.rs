//! Client of the API server: its connection, and what the agent reads and writes there.
//!
//! * [`connection`], [`requests`]: the connection, and requests with timeouts
//! * [`certificates`]: their lifetimes
//! * [`events`]: Events of pods and of the node
//! * [`objects`], [`sources`]: ConfigMaps and Secrets that pods refer to
//! * [`reverse`]: connections over which API servers reach this node behind NAT
//! * [`tokens`]: service account tokens of pods

pub mod certificates;
pub mod connection;
pub mod events;
pub(crate) mod objects;
pub mod requests;
pub mod reverse;
pub(crate) mod sources;
pub(crate) mod tokens;
