//! Wall clock: the only place of the process that reads it.

use k8s_openapi::jiff::Timestamp;

/// Now.
pub fn now() -> Timestamp {
    Timestamp::now()
}
