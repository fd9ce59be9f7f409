//! Access: aggregated cluster roles, certificate signing requests, and unused tokens.

pub mod aggregation;
pub mod certificates;
pub mod legacy_tokens;
