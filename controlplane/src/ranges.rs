//! Ranges of addresses that the cluster hands out.

pub mod pods;
pub mod services;
