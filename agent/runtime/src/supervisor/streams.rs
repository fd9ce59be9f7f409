//! Streams of a container: its log, and clients that are attached to it.
//!
//! * [`log`]: the container's log in CRI format
//! * [`attach`], [`sink`]: attached clients
//! * [`terminal`]: terminals of execs
//! * [`libcontainer_log`]: what libcontainer logs while it creates a container

pub(super) mod attach;
pub(super) mod libcontainer_log;
pub(crate) mod log;
pub(crate) mod sink;
pub(super) mod terminal;
