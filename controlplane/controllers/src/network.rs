//! Controllers of Services: endpoints, addresses and the cluster's DNS.

pub(crate) mod cluster_dns;
pub(crate) mod endpoints;
pub(crate) mod load_balancers;
pub(crate) mod service_ranges;
