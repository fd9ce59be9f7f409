//! `/metrics/slis`: only the health checks, for frequent scrapes.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::help;
use super::labels::{Checked, Health};

pub(crate) struct Slis {
    pub(super) registry: Registry,
    pub(super) checks: Family<Health, Gauge>,
    checked: Family<Checked, Counter>,
}

impl Slis {
    pub(super) fn new() -> Self {
        let (checks, checked) = (
            Family::<Health, Gauge>::default(),
            Family::<Checked, Counter>::default(),
        );
        let mut registry = Registry::default();
        registry.register("kubernetes_healthcheck", help("kubernetes_healthcheck"), checks.clone());
        registry.register(
            "kubernetes_healthchecks",
            help("kubernetes_healthchecks"),
            checked.clone(),
        );
        Self {
            registry,
            checks,
            checked,
        }
    }

    /// A check was asked for.
    pub(crate) fn checked(&self, endpoint: &'static str, name: &'static str, passed: bool) {
        let status = if passed { "success" } else { "error" };
        self.checked
            .get_or_create(&[("name", name), ("type", endpoint), ("status", status)])
            .inc();
    }

    pub(super) fn all_checked(&self) -> Family<Checked, Counter> {
        self.checked.clone()
    }
}
