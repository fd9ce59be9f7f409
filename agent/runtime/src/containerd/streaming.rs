//! Execs and attached clients.
//!
//! * [`exec`], [`streams`]: execs with collected output, and with streams
//! * [`process`]: pipes, calls and exit of an exec
//! * [`attach`]: clients attached to a container
//! * [`writer`]: input from a client to a pipe

pub(super) mod attach;
pub(super) mod exec;
pub(super) mod process;
pub(super) mod streams;
pub(super) mod writer;
