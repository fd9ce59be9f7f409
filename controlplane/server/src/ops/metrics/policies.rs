//! Checks of admission policies (`pkg/admission/plugin/policy/{validating,mutating}/metrics/metrics.go`). There are as many
//! series as bindings that policies were asked for.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::help;

/// Upper bounds, in seconds.
const SECONDS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];

type Labels = Vec<(&'static str, String)>;

/// Evaluation of a policy's expression for one binding.
pub(crate) struct Checked<'a> {
    pub(crate) policy: &'a str,
    pub(crate) binding: &'a str,
    /// Reason that the policy failed, or refused.
    pub(crate) error: Option<&'a str>,
    /// `allow`, `deny`, `audit` or `warn`; `None` for a mutation.
    pub(crate) action: Option<&'static str>,
    pub(crate) took: Duration,
}

impl Checked<'_> {
    /// The kind of error (`ErrorType` of `errors.go` beside the metrics).
    fn error_type(&self) -> &'static str {
        match self.error {
            None => "no_error",
            Some(error) if error.starts_with("compilation") => "compile_error",
            Some(error) if error.starts_with("validation failed due to running out of cost budget") => "out_of_budget",
            Some(_) => "invalid_error",
        }
    }
}

/// The checks of one kind of policy.
struct Checks {
    total: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            total: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

impl Checks {
    fn register(&self, registry: &mut Registry, total: &'static str, duration: &'static str) {
        registry.register(total, help(total), self.total.clone());
        registry.register(duration, help(duration), self.durations.clone());
    }
}

#[derive(Default)]
pub(crate) struct Policies {
    validating: Checks,
    mutating: Checks,
}

impl Policies {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.validating.register(
            registry,
            "apiserver_validating_admission_policy_check",
            "apiserver_validating_admission_policy_check_duration_seconds",
        );
        self.mutating.register(
            registry,
            "apiserver_mutating_admission_policy_check",
            "apiserver_mutating_admission_policy_check_duration_seconds",
        );
    }

    pub(crate) fn checked(&self, check: &Checked<'_>) {
        let checks = if check.action.is_some() {
            &self.validating
        } else {
            &self.mutating
        };
        let labels = [
            ("policy", check.policy),
            ("policy_binding", check.binding),
            ("error_type", check.error_type()),
        ];
        let action = check.action.map(|action| ("enforcement_action", action));
        let labels: Labels = labels
            .into_iter()
            .chain(action)
            .map(|(name, value)| (name, value.to_owned()))
            .collect();
        checks.total.get_or_create(&labels).inc();
        checks
            .durations
            .get_or_create(&labels)
            .observe(check.took.as_secs_f64());
    }
}
