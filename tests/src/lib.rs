//! What the tests that need a whole machine share: a cluster of real daemons in a network namespace of its own, and the
//! check that it left nothing behind.

pub mod http;
pub mod leaks;
pub mod machine;
pub mod process;
