//! `PriorityClass`: a named priority.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use crate::kind::Kind;
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;
use crate::workload::validation::{immutable, one_of};

impl Kind for PriorityClass {
    const SHORT_NAMES: &'static [&'static str] = &["pc"];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Value", "scheduling.v1.PriorityClass.value", |class, _| {
            class.value.unwrap_or(0).into()
        }),
        Column::boolean(
            "Global-Default",
            "scheduling.v1.PriorityClass.globalDefault",
            |class, _| class.global_default.unwrap_or(false).into(),
        ),
        age_column(),
        Column::text(
            "PreemptionPolicy",
            "scheduling.v1.PriorityClass.preemptionPolicy",
            |class, _| class.preemption_policy.clone().into(),
        ),
    ];

    fn set_defaults(&mut self) {
        text(&mut self.preemption_policy, "PreemptLowerPriority");
        self.value.get_or_insert(0);
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let value = self.value.unwrap_or(0);
        let system = [
            ("system-cluster-critical", 2_000_000_000),
            ("system-node-critical", 2_000_001_000),
        ];
        if name.starts_with("system-") {
            if !system.contains(&(name, value)) {
                let detail = "priority class names with 'system-' prefix are reserved for system use only";
                errors.push(Invalid::forbidden("metadata.name", detail));
            }
        } else if value > 1_000_000_000 {
            let detail = "maximum allowed value of a user defined priority is 1000000000";
            errors.push(Invalid::forbidden("value", detail));
        }
        let policies = ["PreemptLowerPriority", "Never"];
        one_of(
            &mut errors,
            "preemptionPolicy",
            self.preemption_policy.as_deref(),
            &policies,
        );
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        if self.value != old.value {
            errors.push(Invalid::forbidden("value", "may not be changed in an update."));
        }
        immutable(
            &mut errors,
            "preemptionPolicy",
            &self.preemption_policy,
            &old.preemption_policy,
        );
        errors
    }
}
