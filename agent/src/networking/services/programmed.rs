//! Counts of changes of the kernel's tables, and of questions for the service proxy's health.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent_plan::Timestamp;

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
    /// Number of transactions.
    pub(crate) syncs: AtomicU64,
    /// Total duration of the transactions in microseconds.
    pub(crate) micros: AtomicU64,
    /// Number of failed transactions.
    pub(crate) failures: AtomicU64,
}

impl Programmed {
    /// Counts a transaction.
    pub(crate) fn note(&self, took: Duration, succeeded: bool) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(!succeeded), Ordering::Relaxed);
    }
}
