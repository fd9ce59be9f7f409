//! Containers: created by forked children of the supervisor, started, removed.
//!
//! 1. [`create_calls`] forks a child for a request, in its [`environment`]
//! 2. [`create`] is the child: libcontainer, configured by [`spec`], [`cgroup`] and [`seccomp`]
//! 3. [`start`] starts the program, [`remove`] removes the container
//!
//! [`precreate`], [`sync_pipe`] and [`depth`] create a container ahead of its request.

pub(super) mod cgroup;
pub(super) mod create;
mod create_calls;
mod depth;
pub(super) mod environment;
pub(super) mod precreate;
mod remove;
mod seccomp;
pub(crate) mod spec;
pub(super) mod start;
mod sync_pipe;
