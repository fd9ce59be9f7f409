//! Client of the API server, independent of kinds.

pub(crate) mod api;
pub(crate) mod pods;
pub(crate) mod resource;
