//! Streams of a container: its log, and clients that are attached to it.
//!
//! * [`log`]: the container's log in CRI format
//! * [`stdio`]: the ends of its pipes, or its terminal
//! * [`attach_calls`], [`attach`], [`sink`]: requests of attached clients, and the clients
//! * [`terminal`]: terminals of execs
//! * [`libcontainer_log`]: what libcontainer logs while it creates a container

pub(super) mod attach;
mod attach_calls;
pub(super) mod libcontainer_log;
pub(crate) mod log;
pub(crate) mod sink;
pub(super) mod stdio;
pub(super) mod terminal;
