//! Machinery of every controller: caches of watched objects, queues of keys, the one loop that plans
//! and performs, requests, events and metrics.

pub(crate) mod cache;
pub(crate) mod clock;
pub(crate) mod driver;
pub(crate) mod elsewhere;
pub(crate) mod events;
pub(crate) mod kinds;
pub(crate) mod metrics;
pub(crate) mod queue;
pub(crate) mod reflector;
pub(crate) mod request;
