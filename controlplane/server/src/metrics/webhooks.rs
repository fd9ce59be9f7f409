//! Calls of admission webhooks (`pkg/admission/metrics/metrics.go`). Their names are chosen by who configures them, so there are
//! as many series as webhooks that were called.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::admission::Half;
use super::help;

/// Upper bounds, in seconds.
const SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Codes above are counted as this one.
const LAST_CODE: u16 = 600;

type Labels = Vec<(&'static str, String)>;

/// One call.
pub(crate) struct Called<'a> {
    pub(crate) webhook: &'a str,
    pub(crate) half: Half,
    pub(crate) operation: &'static str,
    pub(crate) took: Duration,
    pub(crate) rejected: bool,
    /// Kind of error that it ended with.
    pub(crate) error: Option<&'static str>,
    pub(crate) code: u16,
    /// Tells whether the request went on without an answer.
    pub(crate) open: bool,
}

pub(crate) struct Webhooks {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    rejections: Family<Labels, Counter>,
    open: Family<Labels, Counter>,
    requests: Family<Labels, Counter>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            rejections: Family::default(),
            open: Family::default(),
            requests: Family::default(),
        }
    }
}

impl Webhooks {
    pub(super) fn register(&self, registry: &mut Registry) {
        const DURATION: &str = "apiserver_admission_webhook_admission_duration_seconds";
        const REJECTIONS: &str = "apiserver_admission_webhook_rejection_count";
        const OPEN: &str = "apiserver_admission_webhook_fail_open_count";
        const REQUESTS: &str = "apiserver_admission_webhook_request";
        registry.register(DURATION, help(DURATION), self.durations.clone());
        registry.register(REJECTIONS, help(REJECTIONS), self.rejections.clone());
        registry.register(OPEN, help(OPEN), self.open.clone());
        registry.register(REQUESTS, help(REQUESTS), self.requests.clone());
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
