//! Handlers: one module for each verb and each subresource with rules of its own.

pub(crate) mod access;
pub(crate) mod agent;
pub(crate) mod amend;
pub(crate) mod apply;
pub(crate) mod binding;
pub(crate) mod component_status;
pub(crate) mod connect;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod delete_collection;
pub(crate) mod eviction;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod measures;
pub(crate) mod past;
pub(crate) mod patch;
pub(crate) mod proxy;
pub(crate) mod review;
pub(crate) mod scale;
pub(crate) mod token;
pub(crate) mod update;
pub(crate) mod watch;
