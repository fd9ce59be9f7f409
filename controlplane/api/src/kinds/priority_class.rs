//! `PriorityClass`: a name for a priority.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use crate::kind::{Column, Kind};
use crate::pod::defaults::text;
use crate::table::age_column;

impl Kind for PriorityClass {
    const SHORT_NAMES: &'static [&'static str] = &["pc"];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Value", "The priority.", |class, _| class.value.unwrap_or(0).into()),
        Column::boolean(
            "Global-Default",
            "Whether pods without a class get this one.",
            |class, _| class.global_default.unwrap_or(false).into(),
        ),
        age_column(),
        Column::text("PreemptionPolicy", "Whether pods may push others out.", |class, _| {
            class.preemption_policy.clone().into()
        }),
    ];

    fn set_defaults(&mut self) {
        text(&mut self.preemption_policy, "PreemptLowerPriority");
        self.value.get_or_insert(0);
    }
}
