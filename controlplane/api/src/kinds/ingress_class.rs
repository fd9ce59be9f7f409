//! `IngressClass`: who serves Ingresses.

use k8s_openapi::api::networking::v1::IngressClass;

use crate::kind::{Column, Kind};
use crate::pod::defaults::text;
use crate::table::age_column;

impl Kind for IngressClass {
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Controller", "Who serves it.", |class, _| {
            let spec = class.spec.as_ref();
            let controller = spec.and_then(|spec| spec.controller.as_deref());
            controller.unwrap_or_default().into()
        }),
        Column::text("Parameters", "More settings.", |class, _| parameters(class).into()),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(parameters) = &mut spec.parameters {
            text(&mut parameters.scope, "Cluster");
        }
    }

    crate::spec_alone!();
}

/// `Kind.group/name`
fn parameters(class: &IngressClass) -> String {
    let Some(parameters) = class.spec.as_ref().and_then(|spec| spec.parameters.as_ref()) else {
        return "<none>".to_owned();
    };
    match &parameters.api_group {
        Some(group) => format!("{}.{group}/{}", parameters.kind, parameters.name),
        None => format!("{}/{}", parameters.kind, parameters.name),
    }
}
