//! `PriorityLevelConfiguration`: concurrency limit of a priority level.

use k8s_openapi::api::flowcontrol::v1::{
    LimitedPriorityLevelConfiguration, PriorityLevelConfiguration, PriorityLevelConfigurationSpec, QueuingConfiguration,
};
use serde_json::Value;

mod validation;

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::positive;

impl Kind for PriorityLevelConfiguration {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const STATUS_WITH_METADATA: bool = false;
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Type",
            "flowcontrol.v1.PriorityLevelConfigurationSpec.type",
            |level, _| {
                let spec = level.spec.as_ref();
                spec.map(|spec| spec.type_.as_str()).unwrap_or_default().into()
            },
        ),
        Column::text(
            "NominalConcurrencyShares",
            "flowcontrol.v1.LimitedPriorityLevelConfiguration.nominalConcurrencyShares",
            |level, _| shown(limited(level).and_then(|limited| limited.nominal_concurrency_shares)),
        ),
        Column::text("Queues", "flowcontrol.v1.QueuingConfiguration.queues", |level, _| {
            shown(queuing(level).and_then(|queuing| queuing.queues))
        }),
        Column::text(
            "HandSize",
            "flowcontrol.v1.QueuingConfiguration.handSize",
            |level, _| shown(queuing(level).and_then(|queuing| queuing.hand_size)),
        ),
        Column::text(
            "QueueLengthLimit",
            "flowcontrol.v1.QueuingConfiguration.queueLengthLimit",
            |level, _| shown(queuing(level).and_then(|queuing| queuing.queue_length_limit)),
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        set_spec_defaults(self.spec.get_or_insert_default());
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let spec = self.spec.as_ref();
        spec.map(|spec| validation::validate(name, spec)).unwrap_or_default()
    }
}

fn set_spec_defaults(spec: &mut PriorityLevelConfigurationSpec) {
    if spec.type_ == "Exempt" {
        let exempt = spec.exempt.get_or_insert_default();
        exempt.nominal_concurrency_shares.get_or_insert(0);
        exempt.lendable_percent.get_or_insert(0);
    }
    if let Some(limited) = &mut spec.limited {
        limited.nominal_concurrency_shares.get_or_insert(30);
        limited.lendable_percent.get_or_insert(0);
        if let Some(queuing) = limited
            .limit_response
            .as_mut()
            .and_then(|response| response.queuing.as_mut())
        {
            positive(&mut queuing.hand_size, 8);
            positive(&mut queuing.queues, 64);
            positive(&mut queuing.queue_length_limit, 50);
        }
    }
}

fn limited(level: &PriorityLevelConfiguration) -> Option<&LimitedPriorityLevelConfiguration> {
    level.spec.as_ref()?.limited.as_ref()
}

fn queuing(level: &PriorityLevelConfiguration) -> Option<&QueuingConfiguration> {
    limited(level)?.limit_response.as_ref()?.queuing.as_ref()
}

fn shown(number: Option<i32>) -> Value {
    number.map_or_else(|| "<none>".into(), Value::from)
}
