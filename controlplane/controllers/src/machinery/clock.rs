//! The only place in this crate that reads the wall clock.

use k8s_openapi::jiff::Timestamp;

/// The machine's wall clock.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}
