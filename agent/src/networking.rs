//! Network of the pods on this node, as the API describes it. The kernel's side is in the `network` crate.
//!
//! * [`announcing`]: announcement of load balancers' addresses on the links
//! * [`dns`], [`resolver`]: the cluster's name server, and the name servers that it forwards to
//! * [`policies`]: network policies, and the tables that enforce them
//! * [`routes`]: routes to the pods of other nodes
//! * [`services`]: Services and EndpointSlices
//! * [`repair`]: repair after changes by other programs

pub(crate) mod announcing;
pub(crate) mod dns;
pub(crate) mod policies;
pub(crate) mod repair;
pub(crate) mod resolver;
pub(crate) mod routes;
pub(crate) mod services;
