//! Access: aggregated cluster roles, and certificate signing requests.

pub mod aggregation;
pub mod certificates;
