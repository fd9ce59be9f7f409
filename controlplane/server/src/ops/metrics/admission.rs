//! Latency of admission steps. They are many and short, so the counters are plain atomics in a
//! fixed array: a step costs one read of the clock and three additions.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tokio::time::Instant;

/// Upper bounds, in seconds.
const SECONDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

/// Upstream's names of the steps; the first one is all of them together.
const PLUGINS: [&str; 18] = [
    "",
    "CertificateApproval",
    "DefaultIngressClass",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "LimitRanger",
    "NamespaceLifecycle",
    "NodeRestriction",
    "PersistentVolumeClaimResize",
    "PodSecurity",
    "PodTopologyLabels",
    "Priority",
    "ResourceQuota",
    "RuntimeClass",
    "ServiceAccount",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
    // Checks that upstream makes outside admission.
    "Skiff",
];

/// Half of admission to which a step belongs: mutating or validating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Admit,
    Validate,
}

/// Histogram of one series.
#[derive(Debug, Default)]
struct Cell {
    counts: [AtomicU64; SECONDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Cell {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let place = SECONDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// Histograms by half, creation or update, admitted or rejected.
type Cells = [Cell; 8];

/// Histograms of all plugins. Cloned registries share them.
#[derive(Debug)]
pub(crate) struct Admission([Cells; PLUGINS.len()]);

impl Admission {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Cells::default()))
    }

    fn observe(&self, plugin: &str, place: Place, took: Duration) {
        let cells = PLUGINS.iter().position(|own| *own == plugin);
        let cell = cells.and_then(|at| self.0.get(at)?.get(place.index()));
        if let Some(cell) = cell {
            cell.observe(took);
        }
    }

    fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        named: bool,
    ) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (plugin, cells) in PLUGINS.iter().zip(&self.0).filter(|(name, _)| name.is_empty() != named) {
            for place in Place::all() {
                let Some(cell) = cells.get(place.index()) else { continue };
                let counts = cell.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
                let total: u64 = counts.iter().sum();
                if total == 0 {
                    continue;
                }
                let bounds = SECONDS.into_iter().chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
                let took = Duration::from_nanos(cell.nanoseconds.load(Ordering::Relaxed));
                let plugin = named.then_some(*plugin);
                family
                    .encode_family(&place.labels(plugin))?
                    .encode_histogram::<NoLabelSet>(took.as_secs_f64(), total, &buckets, None)?;
            }
        }
        Ok(())
    }
}

impl Collector for Admission {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let controllers = (
            "apiserver_admission_controller_admission_duration_seconds",
            "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each \
             operation and API resource and type (validate or admit).",
        );
        self.write(&mut encoder, controllers, true)?;
        let steps = (
            "apiserver_admission_step_admission_duration_seconds",
            "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and \
             step type (validate or admit).",
        );
        self.write(&mut encoder, steps, false)
    }
}

#[derive(Debug, Clone, Copy)]
struct Place {
    half: Half,
    creates: bool,
    rejected: bool,
}

impl Place {
    fn all() -> impl Iterator<Item = Self> {
        [Half::Admit, Half::Validate].into_iter().flat_map(|half| {
            [true, false].into_iter().flat_map(move |creates| {
                [true, false].into_iter().map(move |rejected| Self {
                    half,
                    creates,
                    rejected,
                })
            })
        })
    }

    fn index(self) -> usize {
        usize::from(self.half == Half::Validate) * 4 + usize::from(self.creates) * 2 + usize::from(self.rejected)
    }

    fn labels(self, name: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
        let operation = if self.creates { "CREATE" } else { "UPDATE" };
        let half = match self.half {
            Half::Admit => "admit",
            Half::Validate => "validate",
        };
        let rejected = if self.rejected { "true" } else { "false" };
        let name = name.map(|name| ("name", name));
        let rest = [("operation", operation), ("rejected", rejected), ("type", half)];
        name.into_iter().chain(rest).collect()
    }
}

/// Timer of one half.
pub(crate) struct Watch<'a> {
    admission: &'a Admission,
    half: Half,
    creates: bool,
    began: Instant,
    last: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(admission: &'a Admission, half: Half, creates: bool) -> Self {
        let now = Instant::now();
        Self {
            admission,
            half,
            creates,
            began: now,
            last: now,
        }
    }

    /// A step has ended.
    pub(crate) fn lap(&mut self, plugin: &str, rejected: bool) {
        let now = Instant::now();
        let place = self.place(rejected);
        self.admission
            .observe(plugin, place, now.saturating_duration_since(self.last));
        self.last = now;
    }

    /// Records the end of all steps, or that one has rejected the request.
    pub(crate) fn stop(self, rejected: bool) {
        let place = self.place(rejected);
        self.admission
            .observe("", place, self.last.saturating_duration_since(self.began));
    }

    fn place(&self, rejected: bool) -> Place {
        Place {
            half: self.half,
            creates: self.creates,
            rejected,
        }
    }
}
