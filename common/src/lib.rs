//! Parts of both daemons.
//!
//! - [`log`]: the log on standard error, which keeps no request waiting
//! - [`memory`]: memory given back to the machine when a daemon has come to rest
//! - [`notify`]: words to the service manager
//! - [`shares`]: places that clients share

pub mod log;
pub mod memory;
pub mod notify;
pub mod shares;
