//! Shared parts of the tests that need a whole machine: a cluster of real daemons in a network
//! namespace of its own, and the check that it left nothing behind.

pub mod accounts;
pub mod cluster;
pub mod etcd;
pub mod http;
pub mod images;
pub mod leaks;
pub mod machine;
pub mod parts;
pub mod process;
pub mod server;

/// Prints the test harness's own log, once per process.
pub fn logging() {
    // A second test of the same process finds it set up.
    drop(tracing_subscriber::fmt().with_test_writer().try_init());
}
