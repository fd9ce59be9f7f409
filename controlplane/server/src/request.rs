//! A request and what is parsed of it.

pub(crate) mod context;
pub mod failure;
pub mod info;
pub(crate) mod object;
pub(crate) mod options;
pub mod path;
pub mod query;
pub(crate) mod selection;
pub(crate) mod subresource;
