//! Parts of both daemons.
//!
//! - [`log`]: the log on standard error, which keeps no request waiting
//! - [`memory`]: memory given back to the machine when a daemon has come to rest

pub mod log;
pub mod memory;
