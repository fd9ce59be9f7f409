//! Calls of admission webhooks (`pkg/admission/metrics/metrics.go`). Administrators choose the
//! names, so there are as many series as webhooks that were called.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::admission::Half;
use super::help;

/// Upper bounds, in seconds.
const SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// The same, for conversions.
const CONVERSION_SECONDS: [f64; 15] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0,
];
/// Codes above are counted as this one.
const LAST_CODE: u16 = 600;

type Labels = Vec<(&'static str, String)>;

/// Call of an admission webhook.
pub(crate) struct Called<'a> {
    pub(crate) webhook: &'a str,
    pub(crate) half: Half,
    pub(crate) operation: &'static str,
    pub(crate) took: Duration,
    pub(crate) rejected: bool,
    /// Kind of error that it ended with.
    pub(crate) error: Option<&'static str>,
    pub(crate) code: u16,
    /// True if the request passed without an answer.
    pub(crate) open: bool,
}

/// Call of a conversion webhook (`pkg/apiserver/conversion/metrics.go` of apiextensions-apiserver).
pub(crate) struct Converted<'a> {
    pub(crate) definition: &'a str,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) took: Duration,
    /// Kind of error that it ended with.
    pub(crate) failure_type: Option<&'static str>,
}

pub(crate) struct Webhooks {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    rejections: Family<Labels, Counter>,
    open: Family<Labels, Counter>,
    requests: Family<Labels, Counter>,
    conversions: Family<Labels, Counter>,
    conversion_durations: Family<Labels, Histogram, fn() -> Histogram>,
    kind_durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            rejections: Family::default(),
            open: Family::default(),
            requests: Family::default(),
            conversions: Family::default(),
            conversion_durations: Family::new_with_constructor(|| Histogram::new(CONVERSION_SECONDS)),
            kind_durations: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))),
        }
    }
}

impl Webhooks {
    pub(super) fn register(&self, registry: &mut Registry) {
        const DURATION: &str = "apiserver_admission_webhook_admission_duration_seconds";
        const REJECTIONS: &str = "apiserver_admission_webhook_rejection_count";
        const OPEN: &str = "apiserver_admission_webhook_fail_open_count";
        const REQUESTS: &str = "apiserver_admission_webhook_request";
        const CONVERSIONS: &str = "apiserver_conversion_webhook_request";
        const CONVERSION: &str = "apiserver_conversion_webhook_duration_seconds";
        const OF_KIND: &str = "apiserver_crd_conversion_webhook_duration_seconds";
        registry.register(DURATION, help(DURATION), self.durations.clone());
        registry.register(REJECTIONS, help(REJECTIONS), self.rejections.clone());
        registry.register(OPEN, help(OPEN), self.open.clone());
        registry.register(REQUESTS, help(REQUESTS), self.requests.clone());
        registry.register(CONVERSIONS, help(CONVERSIONS), self.conversions.clone());
        registry.register(CONVERSION, help(CONVERSION), self.conversion_durations.clone());
        registry.register(OF_KIND, help(OF_KIND), self.kind_durations.clone());
    }

    pub(crate) fn converted(&self, call: &Converted<'_>) {
        let (result, failure) = match call.failure_type {
            None => ("success", ""),
            Some(failure) => ("failure", failure),
        };
        let labels = vec![("result", result.to_owned()), ("failure_type", failure.to_owned())];
        let seconds = call.took.as_secs_f64();
        self.conversions.get_or_create(&labels).inc();
        self.conversion_durations.get_or_create(&labels).observe(seconds);
        let labels = vec![
            ("crd_name", call.definition.to_owned()),
            ("from_version", call.from.clone()),
            ("to_version", call.to.clone()),
            ("succeeded", call.failure_type.is_none().to_string()),
        ];
        self.kind_durations.get_or_create(&labels).observe(seconds);
    }

    pub(crate) fn called(&self, call: &Called<'_>) {
        let kind = match call.half {
            Half::Admit => "admit",
            Half::Validate => "validating",
        };
        let base = || {
            vec![
                ("name", call.webhook.to_owned()),
                ("operation", call.operation.to_owned()),
                ("type", kind.to_owned()),
            ]
        };
        let code = call.code.min(LAST_CODE).to_string();
        let with = |more: [(&'static str, String); 2]| base().into_iter().chain(more).collect::<Labels>();
        let rejected = ("rejected", call.rejected.to_string());
        let mut timed = base();
        timed.push(rejected.clone());
        self.durations.get_or_create(&timed).observe(call.took.as_secs_f64());
        self.requests
            .get_or_create(&with([("code", code.clone()), rejected]))
            .inc();
        if let Some(error) = call.error.filter(|_| call.rejected) {
            let labels = with([("error_type", error.to_owned()), ("rejection_code", code)]);
            self.rejections.get_or_create(&labels).inc();
        }
        if call.open {
            let labels = vec![("name", call.webhook.to_owned()), ("type", kind.to_owned())];
            self.open.get_or_create(&labels).inc();
        }
    }
}
