//! Code that both daemons share.
//!
//! - [`files`]: the limit of open files
//! - [`flags`]: the flags that a command line, the environment or a file has set
//! - [`log`]: non-blocking log on standard error
//! - [`memory`]: returns memory to the kernel while a daemon is idle
//! - [`notify`]: notifications to the service manager
//! - [`shares`]: fair shares of a limited number of slots per client
//! - [`task`]: tasks whose futures are boxed

pub mod files;
pub mod flags;
pub mod log;
pub mod memory;
pub mod notify;
pub mod shares;
pub mod task;
