//! `HorizontalPodAutoscaler`: scales replicas by load.

mod metrics;
mod v1;
mod validation;

use std::borrow::Cow;

use k8s_openapi::api::autoscaling::v1 as old;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget,
    ResourceMetricSource,
};

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;

/// Autoscaler of either version, in the newest form.
trait Versioned: Kind {
    fn newest(&self) -> Cow<'_, HorizontalPodAutoscaler>;
}

impl Versioned for HorizontalPodAutoscaler {
    fn newest(&self) -> Cow<'_, HorizontalPodAutoscaler> {
        Cow::Borrowed(self)
    }
}

impl Versioned for old::HorizontalPodAutoscaler {
    fn newest(&self) -> Cow<'_, HorizontalPodAutoscaler> {
        Cow::Owned(v1::to_v2(self))
    }
}

/// Columns of either version.
const fn columns<S: Versioned>() -> [Column<S>; 6] {
    [
        Column::text(
            "Reference",
            "autoscaling.v2.HorizontalPodAutoscalerSpec.scaleTargetRef",
            |scaler, _| {
                let scaler = scaler.newest();
                let target = &scaler.spec.scale_target_ref;
                format!("{}/{}", target.kind, target.name).into()
            },
        ),
        Column::text(
            "Targets",
            "autoscaling.v2.HorizontalPodAutoscalerSpec.metrics",
            |scaler, _| metrics::shown(&scaler.newest()).into(),
        ),
        Column::text(
            "MinPods",
            "autoscaling.v2.HorizontalPodAutoscalerSpec.minReplicas",
            |scaler, _| {
                let fewest = scaler.newest().spec.min_replicas.map(|count| count.to_string());
                fewest.unwrap_or_else(|| "<unset>".to_owned()).into()
            },
        ),
        Column::text(
            "MaxPods",
            "autoscaling.v2.HorizontalPodAutoscalerSpec.maxReplicas",
            |scaler, _| scaler.newest().spec.max_replicas.into(),
        ),
        Column::text(
            "Replicas",
            "autoscaling.v2.HorizontalPodAutoscalerStatus.currentReplicas",
            |scaler, _| {
                let scaler = scaler.newest();
                let status = scaler.status.as_ref();
                status.and_then(|status| status.current_replicas).unwrap_or(0).into()
            },
        ),
        age_column(),
    ]
}

impl Kind for HorizontalPodAutoscaler {
    const SHORT_NAMES: &'static [&'static str] = &["hpa"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &columns();

    fn set_defaults(&mut self) {
        set_spec_defaults(&mut self.spec);
    }

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        validation::validate(&self.spec)
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let status = self.status.clone().unwrap_or_default();
        validation::validate_status(status.current_replicas.unwrap_or(0), status.desired_replicas)
    }
}

fn set_spec_defaults(spec: &mut HorizontalPodAutoscalerSpec) {
    spec.min_replicas.get_or_insert(1);
    if spec.metrics.as_ref().is_none_or(Vec::is_empty) {
        spec.metrics = Some(vec![MetricSpec {
            type_: "Resource".to_owned(),
            resource: Some(ResourceMetricSource {
                name: "cpu".to_owned(),
                target: MetricTarget {
                    type_: "Utilization".to_owned(),
                    average_utilization: Some(80),
                    ..MetricTarget::default()
                },
            }),
            ..MetricSpec::default()
        }]);
    }
    let Some(behavior) = &mut spec.behavior else { return };
    let up = behavior.scale_up.get_or_insert_default();
    up.stabilization_window_seconds.get_or_insert(0);
    set_rule_defaults(up, &[("Pods", 4), ("Percent", 100)]);
    set_rule_defaults(behavior.scale_down.get_or_insert_default(), &[("Percent", 100)]);
}

fn set_rule_defaults(rules: &mut HPAScalingRules, policies: &[(&str, i32)]) {
    rules.select_policy.get_or_insert_with(|| "Max".to_owned());
    if rules.policies.is_none() {
        let policies = policies.iter().map(|(kind, value)| HPAScalingPolicy {
            type_: (*kind).to_owned(),
            value: *value,
            period_seconds: 15,
        });
        rules.policies = Some(policies.collect());
    }
}
