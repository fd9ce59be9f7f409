//! Metrics of flow control, under upstream's names
//! (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol/metrics/metrics.go`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Upper bounds of waits, in seconds.
const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// Reason for which a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejection {
    QueueFull,
    ConcurrencyLimit,
    TimeOut,
}

const REASONS: [(Rejection, &str); 3] = [
    (Rejection::QueueFull, "queue-full"),
    (Rejection::ConcurrencyLimit, "concurrency-limit"),
    (Rejection::TimeOut, "time-out"),
];

/// Seats of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Nominal seats, by the level's shares.
    pub(super) nominal: usize,
    /// Seats that the level does not lend.
    pub(super) lower: usize,
    /// Seats including those that the level may borrow.
    pub(super) upper: usize,
}

/// Metrics of one schema in one level.
#[derive(Debug)]
pub(super) struct OfSchema {
    pub(super) level: Box<str>,
    pub(super) schema: Arc<str>,
    dispatched: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
    rejected: [AtomicU64; REASONS.len()],
    /// Wait times of rejected and of executed requests.
    waits: [Waits; 2],
}

#[derive(Debug, Default)]
struct Waits {
    counts: [AtomicU64; SECONDS.len() + 1],
    nanoseconds: AtomicU64,
}

/// All series, as many as there are schemas.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    shown: Mutex<Shown>,
    /// Executing reads, and writes.
    in_flight: Arc<[AtomicUsize; 2]>,
}

#[derive(Debug, Default)]
struct Shown {
    schemas: Vec<Arc<OfSchema>>,
    limits: Vec<(String, Limits)>,
}

/// A request is counted as one that is answered until this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    of: Arc<OfSchema>,
    in_flight: Arc<[AtomicUsize; 2]>,
    reads: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.of.running.fetch_sub(1, Ordering::Relaxed);
        counter(&self.in_flight, self.reads).fetch_sub(1, Ordering::Relaxed);
    }
}

fn counter([reads, others]: &[AtomicUsize; 2], is_read: bool) -> &AtomicUsize {
    if is_read { reads } else { others }
}

/// A request is counted as one that waits until this is dropped.
#[derive(Debug)]
pub(super) struct Queued<'a>(&'a OfSchema);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OfSchema {
    pub(super) fn queue(&self) -> Queued<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Queued(self)
    }

    pub(super) fn reject(&self, why: Rejection) {
        for (count, (reason, _)) in self.rejected.iter().zip(REASONS) {
            if reason == why {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A request has got its seat, or has waited in vain.
    pub(super) fn waited(&self, seated: bool, took: Duration) {
        let [refused, served] = &self.waits;
        let waits = if seated { served } else { refused };
        let seconds = took.as_secs_f64();
        let place = SECONDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = waits.counts.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        waits.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn labels(&self) -> [(&'static str, &str); 2] {
        [("flow_schema", &*self.schema), ("priority_level", &*self.level)]
    }
}

impl Numbers {
    /// The series of a schema in a level: those that there are, or new ones.
    pub(super) fn of(&self, level: &str, schema: &str) -> Arc<OfSchema> {
        let is_own = |own: &&Arc<OfSchema>| &*own.level == level && &*own.schema == schema;
        let shown = self.shown();
        let known = shown.schemas.iter().find(is_own);
        known.cloned().unwrap_or_else(|| {
            Arc::new(OfSchema {
                level: level.into(),
                schema: schema.into(),
                dispatched: AtomicU64::default(),
                running: AtomicU64::default(),
                waiting: AtomicU64::default(),
                rejected: Default::default(),
                waits: Default::default(),
            })
        })
    }

    /// Keeps only the series of these schemas.
    pub(super) fn keep(&self, schemas: Vec<Arc<OfSchema>>) {
        self.shown().schemas = schemas;
    }

    /// Shows the limits of these levels.
    pub(super) fn limit(&self, limits: Vec<(String, Limits)>) {
        self.shown().limits = limits;
    }

    pub(super) fn run(&self, of: &Arc<OfSchema>, reads: bool) -> Running {
        of.dispatched.fetch_add(1, Ordering::Relaxed);
        of.running.fetch_add(1, Ordering::Relaxed);
        counter(&self.in_flight, reads).fetch_add(1, Ordering::Relaxed);
        Running {
            of: Arc::clone(of),
            in_flight: Arc::clone(&self.in_flight),
            reads,
        }
    }

    /// Requests of each level: waiting, executing, dispatched, rejected, and those of them that
    /// waited for too long.
    pub(super) fn sums(&self) -> BTreeMap<String, [u64; 5]> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let shown = self.shown();
        let levels = shown.limits.iter().map(|(level, _)| (level.clone(), [0; 5]));
        let mut sums: BTreeMap<String, [u64; 5]> = levels.collect();
        for own in &shown.schemas {
            let [full, limit, late] = own.rejected.each_ref().map(load);
            let [waiting, running, dispatched] = [&own.waiting, &own.running, &own.dispatched].map(load);
            let counts = [waiting, running, dispatched, full + limit + late, late];
            for (sum, count) in sums.entry(own.level.to_string()).or_default().iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums
    }

    /// Number of executing requests: reads, and writes.
    pub(super) fn in_flight(&self) -> [usize; 2] {
        self.in_flight.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Name of a gauge, help, and its value.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> u64);

const OF_SCHEMAS: [Gauge<OfSchema>; 3] = [
    (
        "apiserver_flowcontrol_current_executing_requests",
        "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and \
         Fairness subsystem.",
        |own| own.running.load(Ordering::Relaxed),
    ),
    (
        "apiserver_flowcontrol_current_executing_seats",
        "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage \
         otherwise) requests in the API Priority and Fairness subsystem.",
        |own| own.running.load(Ordering::Relaxed),
    ),
    (
        "apiserver_flowcontrol_current_inqueue_requests",
        "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem.",
        |own| own.waiting.load(Ordering::Relaxed),
    ),
];

const OF_LEVELS: [Gauge<Limits>; 3] = [
    (
        "apiserver_flowcontrol_lower_limit_seats",
        "[ALPHA] Configured lower bound on number of execution seats available to each priority level.",
        |limits| u64::try_from(limits.lower).unwrap_or(u64::MAX),
    ),
    (
        "apiserver_flowcontrol_nominal_limit_seats",
        "[BETA] Nominal number of execution seats configured for each priority level.",
        |limits| u64::try_from(limits.nominal).unwrap_or(u64::MAX),
    ),
    (
        "apiserver_flowcontrol_upper_limit_seats",
        "[ALPHA] Configured upper bound on number of execution seats available to each priority level.",
        |limits| u64::try_from(limits.upper).unwrap_or(u64::MAX),
    ),
];

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shown = self.shown();
        for (name, help, value) in OF_SCHEMAS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for own in &shown.schemas {
                ConstGauge::new(value(own)).encode(family.encode_family(&own.labels())?)?;
            }
        }
        for (name, help, value) in OF_LEVELS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (level, limits) in &shown.limits {
                let labels = [("priority_level", level.as_str())];
                ConstGauge::new(value(limits)).encode(family.encode_family(&labels)?)?;
            }
        }
        shown.count(&mut encoder)?;
        shown.waits(&mut encoder)
    }
}

impl Shown {
    fn count(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) = (
            "apiserver_flowcontrol_dispatched_requests",
            "[BETA] Number of requests executed by API Priority and Fairness subsystem.",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for own in &self.schemas {
            let count = own.dispatched.load(Ordering::Relaxed);
            ConstCounter::new(count).encode(family.encode_family(&own.labels())?)?;
        }
        let (name, help) = (
            "apiserver_flowcontrol_rejected_requests",
            "[BETA] Number of requests rejected by API Priority and Fairness subsystem.",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for own in &self.schemas {
            for (count, (_, reason)) in own.rejected.iter().zip(REASONS) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let [schema, level] = own.labels();
                    let labels = [schema, level, ("reason", reason)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    fn waits(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) = (
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "[BETA] Length of time a request spent waiting in its queue.",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for own in &self.schemas {
            for (execute, waits) in ["false", "true"].into_iter().zip(&own.waits) {
                let counts = waits.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
                let total: u64 = counts.iter().sum();
                if total == 0 {
                    continue;
                }
                let bounds = SECONDS.into_iter().chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
                let took = Duration::from_nanos(waits.nanoseconds.load(Ordering::Relaxed));
                let [schema, level] = own.labels();
                let labels = [("execute", execute), schema, level];
                family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    took.as_secs_f64(),
                    total,
                    &buckets,
                    None,
                )?;
            }
        }
        Ok(())
    }
}
