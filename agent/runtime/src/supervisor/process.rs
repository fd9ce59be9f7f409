//! Processes in a container.
//!
//! * [`exec_calls`], [`exec`]: requests of execs, and the child that runs one
//! * [`program`], [`user`]: the executable, and the user that runs it
//! * [`affinity`]: the processor that a child begins on

pub(super) mod affinity;
pub(super) mod exec;
pub(super) mod exec_calls;
pub(crate) mod program;
pub(crate) mod user;
