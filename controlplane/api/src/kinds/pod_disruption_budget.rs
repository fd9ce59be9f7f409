//! `PodDisruptionBudget`: limit on voluntary evictions of pods.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Kind, Subresource, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::validation::selector::label_selector;
use crate::workload::validation::workload::number_or_percent;
use crate::workload::validation::{internal, non_negative, one_of_or_none, status_conditions};

impl Kind for PodDisruptionBudget {
    const UPDATES: Updates = Updates::CONDITIONAL;
    const SHORT_NAMES: &'static [&'static str] = &["pdb"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Min Available",
            "The minimum number of pods that must be available.",
            |budget, _| number(budget, |spec| spec.min_available.as_ref()).into(),
        ),
        Column::text(
            "Max Unavailable",
            "The maximum number of pods that may be unavailable.",
            |budget, _| number(budget, |spec| spec.max_unavailable.as_ref()).into(),
        ),
        Column::integer(
            "Allowed Disruptions",
            "Calculated number of pods that may be disrupted at this time.",
            |budget, _| {
                let status = budget.status.as_ref();
                status.and_then(|status| status.disruptions_allowed).unwrap_or(0).into()
            },
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
        set_status_defaults(self.status.get_or_insert_default());
    }

    fn prepare_create(&mut self) {
        let mut status = PodDisruptionBudgetStatus::default();
        set_status_defaults(&mut status);
        self.status = Some(status);
    }

    crate::kept_apart!();

    crate::spec_alone!();

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let status = self.status.clone().unwrap_or_default();
        let conditions = status.conditions.as_deref().unwrap_or_default();
        status_conditions(&mut errors, conditions, "status.conditions");
        for (name, number) in [
            ("disruptionsAllowed", status.disruptions_allowed),
            ("currentHealthy", status.current_healthy),
            ("desiredHealthy", status.desired_healthy),
            ("expectedPods", status.expected_pods),
        ] {
            non_negative(&mut errors, &format!("status.{name}"), number.unwrap_or(0).into());
        }
        errors
    }

    fn validate(&self) -> Vec<Invalid> {
        let Some(spec) = &self.spec else {
            return vec![Invalid::required("spec", "")];
        };
        let mut errors = Vec::new();
        if spec.min_available.is_some() && spec.max_unavailable.is_some() {
            let value = internal::disruption_budget(spec);
            let detail = "minAvailable and maxUnavailable cannot be both set";
            errors.push(Invalid::rendered("spec", value, detail));
        }
        let numbers = [
            ("spec.minAvailable", &spec.min_available),
            ("spec.maxUnavailable", &spec.max_unavailable),
        ];
        for (field, number) in numbers {
            let Some(number) = number else { continue };
            let percent = number_or_percent(&mut errors, field, number);
            if matches!(number, IntOrString::String(_)) && percent.is_some_and(|percent| percent > 100) {
                let value = serde_json::to_string(number).unwrap_or_default();
                errors.push(Invalid::rendered(field, value, "must not be greater than 100%"));
            }
        }
        if let Some(selector) = &spec.selector {
            label_selector(&mut errors, selector, "spec.selector");
        }
        let policies = ["AlwaysAllow", "IfHealthyBudget"];
        let policy = spec.unhealthy_pod_eviction_policy.as_deref();
        one_of_or_none(&mut errors, "spec.unhealthyPodEvictionPolicy", policy, &policies);
        errors
    }
}

/// Sets the numbers that upstream always writes.
fn set_status_defaults(status: &mut PodDisruptionBudgetStatus) {
    let numbers = [
        &mut status.current_healthy,
        &mut status.desired_healthy,
        &mut status.disruptions_allowed,
        &mut status.expected_pods,
    ];
    for number in numbers {
        number.get_or_insert(0);
    }
}

fn number(budget: &PodDisruptionBudget, of: fn(&PodDisruptionBudgetSpec) -> Option<&IntOrString>) -> String {
    match budget.spec.as_ref().and_then(of) {
        Some(IntOrString::Int(number)) => number.to_string(),
        Some(IntOrString::String(text)) => text.clone(),
        None => "N/A".to_owned(),
    }
}
