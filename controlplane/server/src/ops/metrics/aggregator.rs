//! Availability of `APIServices` (`staging/src/k8s.io/kube-aggregator/pkg/controllers/status/metrics/metrics.go`).

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::help;

const UNAVAILABLE: &str = "aggregator_unavailable_apiservice";

type Labels = Vec<(&'static str, String)>;

/// Gauges of all `APIServices`, and counters of those that became unavailable.
#[derive(Default)]
pub(crate) struct Aggregator {
    unavailable: Family<Labels, Gauge>,
    marked: Family<Labels, Counter>,
    /// Names that have a gauge.
    known: Mutex<BTreeSet<String>>,
}

impl Aggregator {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(UNAVAILABLE, help(UNAVAILABLE), self.unavailable.clone());
        // Counters get the suffix `_total`.
        let total = help("aggregator_unavailable_apiservice_total");
        registry.register(UNAVAILABLE, total, self.marked.clone());
    }

    /// Sets the gauges to what is available now.
    pub(super) fn look(&self, services: Vec<(String, bool)>) {
        let labels = |name: &str| vec![("name", name.to_owned())];
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = known.extract_if(.., |name| !services.iter().any(|(own, _)| own == name));
        for name in gone {
            self.unavailable.remove(&labels(&name));
        }
        for (name, is_available) in services {
            let gauge = self.unavailable.get_or_create(&labels(&name)).clone();
            gauge.set(i64::from(!is_available));
            known.insert(name);
        }
    }

    /// Counts one that was available until now.
    pub(crate) fn lost(&self, name: &str, reason: &str) {
        let labels = vec![("name", name.to_owned()), ("reason", reason.to_owned())];
        self.marked.get_or_create(&labels).inc();
    }
}
