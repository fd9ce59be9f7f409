//! The network: endpoints of Services, addresses of load balancers, Service CIDRs.

pub mod endpoints;
pub mod load_balancers;
pub mod service_ranges;
