//! Lifetimes of the certificates of this process, and failures to renew them, for the metrics.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Certificate by which the API server knows the agent.
pub static CLIENT: Certificate = Certificate::new();
/// Certificate of the agent's server.
pub static SERVING: Certificate = Certificate::new();

/// A certificate that is renewed.
#[derive(Debug)]
pub struct Certificate {
    /// In seconds since 1970; 0 if there is none.
    until: AtomicI64,
    failures: AtomicU64,
}

impl Certificate {
    const fn new() -> Self {
        Self {
            until: AtomicI64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Notes when the certificate in use expires, in seconds since 1970; 0 if there is none.
    pub fn expires(&self, until: i64) {
        self.until.store(until, Ordering::Relaxed);
    }

    /// Counts a failed renewal.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the seconds that are left at a time, negative once it has expired.
    pub(crate) fn left(&self, now: i64) -> Option<i64> {
        let until = self.until.load(Ordering::Relaxed);
        (until != 0).then(|| until.saturating_sub(now))
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Certificate;

    #[test]
    fn what_is_left_is_negative_once_it_has_expired() {
        let certificate = Certificate::new();
        assert_eq!(certificate.left(100), None);
        certificate.expires(130);
        assert_eq!((certificate.left(100), certificate.left(140)), (Some(30), Some(-10)));
    }
}
