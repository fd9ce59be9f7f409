//! Metrics of deprecated use: old APIs, and tokens that never expire.

use api::Registration;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use super::help;
use crate::authn::tokens::Origin;

/// `group`, `version`, `resource`, `subresource` and `removed_release`.
type Deprecated = [(&'static str, &'static str); 5];

#[derive(Default)]
pub(crate) struct Uses {
    deprecated: Family<Deprecated, Gauge>,
    manual: Counter,
    generated: Counter,
    marked: Counter,
}

impl Uses {
    pub(super) fn register(&self, registry: &mut Registry) {
        fn add(registry: &mut Registry, name: &str, metric: impl Metric) {
            registry.register(name, help(name), metric);
        }
        add(registry, "apiserver_requested_deprecated_apis", self.deprecated.clone());
        add(
            registry,
            "serviceaccount_invalid_legacy_auto_token_uses",
            self.marked.clone(),
        );
        add(
            registry,
            "serviceaccount_legacy_auto_token_uses",
            self.generated.clone(),
        );
        add(registry, "serviceaccount_legacy_manual_token_uses", self.manual.clone());
    }

    /// Counts a request for a deprecated kind. None of ours has a removal release yet.
    pub(crate) fn deprecated(&self, row: &Registration) {
        let labels = [
            ("group", row.group),
            ("version", row.version),
            ("resource", row.plural),
            ("subresource", ""),
            ("removed_release", ""),
        ];
        self.deprecated.get_or_create(&labels).set(1);
    }

    /// Counts a use of a Secret-based token.
    pub(crate) fn token(&self, origin: Origin) {
        let counter = match origin {
            Origin::Manual => &self.manual,
            Origin::Generated => &self.generated,
            Origin::Marked => &self.marked,
        };
        counter.inc();
    }
}
