//! `FlowSchema`: assigns requests to flows.

use k8s_openapi::api::flowcontrol::v1::FlowSchema;

mod validation;

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;

impl Kind for FlowSchema {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const STATUS_WITH_METADATA: bool = false;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "PriorityLevel",
            "flowcontrol.v1.PriorityLevelConfigurationReference.name",
            |schema, _| {
                let spec = schema.spec.as_ref();
                spec.map(|spec| spec.priority_level_configuration.name.as_str())
                    .unwrap_or_default()
                    .into()
            },
        ),
        Column::text(
            "MatchingPrecedence",
            "flowcontrol.v1.FlowSchemaSpec.matchingPrecedence",
            |schema, _| {
                let spec = schema.spec.as_ref();
                spec.and_then(|spec| spec.matching_precedence).unwrap_or(0).into()
            },
        ),
        Column::text(
            "DistinguisherMethod",
            "flowcontrol.v1.FlowSchemaSpec.distinguisherMethod",
            |schema, _| {
                let method = schema.spec.as_ref().and_then(|spec| spec.distinguisher_method.as_ref());
                method.map_or("<none>", |method| method.type_.as_str()).into()
            },
        ),
        age_column(),
        Column::text(
            "MissingPL",
            "references a broken or non-existent PriorityLevelConfiguration",
            |schema, _| {
                let conditions = schema.status.iter().filter_map(|status| status.conditions.as_ref());
                let mut conditions = conditions.flatten();
                let dangling = conditions.find(|condition| condition.type_.as_deref() == Some("Dangling"));
                dangling
                    .and_then(|condition| condition.status.as_deref())
                    .unwrap_or("?")
                    .into()
            },
        ),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if spec.matching_precedence.unwrap_or(0) == 0 {
            spec.matching_precedence = Some(1000);
        }
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let spec = self.spec.as_ref();
        spec.map(|spec| validation::validate(name, spec)).unwrap_or_default()
    }
}
