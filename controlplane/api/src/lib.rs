//! controlplane-api
pub mod patch;
pub mod strict;
