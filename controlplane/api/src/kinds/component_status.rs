//! `ComponentStatus`: health of a control plane component. Generated on request, never stored.

use k8s_openapi::api::core::v1::{ComponentCondition, ComponentStatus};

use crate::kind::{Kind, Verbs};
use crate::table::Column;

impl Kind for ComponentStatus {
    const DEPRECATED: Option<&'static str> = Some("v1 ComponentStatus is deprecated in v1.19+");
    const SHORT_NAMES: &'static [&'static str] = &["cs"];
    const VERBS: Verbs = Verbs::ReadOnly;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "Status of the component conditions", |component, _| {
            match healthy(component).map(|condition| condition.status.as_str()) {
                Some("True") => "Healthy",
                Some(_) => "Unhealthy",
                None => "Unknown",
            }
            .into()
        }),
        Column::text("Message", "Message of the component conditions", |component, _| {
            let message = healthy(component).and_then(|condition| condition.message.as_deref());
            message.unwrap_or_default().into()
        }),
        Column::text("Error", "Error of the component conditions", |component, _| {
            let error = healthy(component).and_then(|condition| condition.error.as_deref());
            error.unwrap_or_default().into()
        }),
    ];
}

fn healthy(component: &ComponentStatus) -> Option<&ComponentCondition> {
    let mut conditions = component.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "Healthy")
}
