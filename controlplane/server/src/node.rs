//! Endpoints that the agents of nodes serve: logs, commands, forwarded ports and proxies.

pub(crate) mod agent;
pub mod agents;
pub mod client;
pub(crate) mod connect;
pub(crate) mod log;
pub(crate) mod proxy;
pub mod reverse;
