//! A container's specification: environment, files, user, and the OCI runtime specification.
//!
//! * [`environment`], [`services`]: environment and arguments, and the variables of Services
//! * [`files`]: `/etc/hosts` and `/etc/resolv.conf`
//! * [`user`], [`user_ids`]: the user that it runs as, and the ids of a user namespace
//! * [`oci`]: the OCI runtime specification
//! * [`log`]: lines of its log

pub mod environment;
pub mod files;
pub mod log;
pub mod oci;
pub mod services;
pub mod user;
pub mod user_ids;
