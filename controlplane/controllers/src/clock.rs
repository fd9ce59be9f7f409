//! The one place of this crate where the wall clock is read.

use k8s_openapi::jiff::Timestamp;

/// The machine's wall clock.
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}
