//! Counts of changes of the kernel's tables, and of questions for the service proxy's health.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agent_plan::Timestamp;

use crate::serve::metrics::prometheus::Histogram;

/// Upper bounds of the durations of transactions in seconds (`pkg/proxy/metrics/metrics.go`).
pub(crate) const BOUNDS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// Times and health checks of the service proxy, for the metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProxyCounts {
    /// Time of the latest change.
    pub(crate) queued: Option<Timestamp>,
    /// Time at which the kernel had all changes.
    pub(crate) updated: Option<Timestamp>,
    /// Number of answers by path and status.
    pub(crate) checks: BTreeMap<(&'static str, u16), u64>,
}

/// Number of changes of the tables, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Programmed {
    /// Durations of the transactions.
    pub(crate) took: Mutex<Histogram<{ BOUNDS.len() }>>,
    /// Number of failed transactions.
    pub(crate) failures: AtomicU64,
}

impl Programmed {
    /// Counts a transaction.
    pub(crate) fn note(&self, took: Duration, succeeded: bool) {
        let mut all = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        all.observe(&BOUNDS, took);
        self.failures.fetch_add(u64::from(!succeeded), Ordering::Relaxed);
    }
}
