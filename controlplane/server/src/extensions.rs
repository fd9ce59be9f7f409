//! APIs that come at run time: custom resources and aggregated servers.

pub(crate) mod aggregation;
pub(crate) mod definitions;
