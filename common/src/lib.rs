//! Parts of both daemons.
//!
//! - [`log`]: the log on standard error, which keeps no request waiting
//! - [`memory`]: memory given back to the machine when a daemon has come to rest
//! - [`shares`]: places that clients share

pub mod log;
pub mod memory;
pub mod shares;
