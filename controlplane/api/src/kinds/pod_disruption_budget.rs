//! `PodDisruptionBudget`: how many pods may be evicted at a time.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Column, Kind, Subresource, Updates};
use crate::table::age_column;

impl Kind for PodDisruptionBudget {
    const UPDATES: Updates = Updates::CONDITIONAL;
    const SHORT_NAMES: &'static [&'static str] = &["pdb"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Min Available", "Pods that must stay.", |budget, _| {
            number(budget, |spec| spec.min_available.as_ref()).into()
        }),
        Column::text("Max Unavailable", "Pods that may go.", |budget, _| {
            number(budget, |spec| spec.max_unavailable.as_ref()).into()
        }),
        Column::integer("Allowed Disruptions", "Pods that may go now.", |budget, _| {
            let status = budget.status.as_ref();
            status.and_then(|status| status.disruptions_allowed).unwrap_or(0).into()
        }),
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

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    crate::spec_alone!();
}

/// Upstream always writes these numbers.
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
