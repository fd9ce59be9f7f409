//! `DaemonSet`: one pod on each node.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus, DaemonSetUpdateStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column, containers, labels, selector};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::{set_template_defaults, text};
use crate::workload::validation::workload::{number_or_percent, selector_and_template};
use crate::workload::validation::{counts, internal, non_negative};
use crate::workload::warnings;

impl Kind for DaemonSet {
    const SHORT_NAMES: &'static [&'static str] = &["ds"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Desired", "apps.v1.DaemonSetStatus.desiredNumberScheduled", |set, _| {
            count(set, |status| Some(status.desired_number_scheduled))
        }),
        Column::integer("Current", "apps.v1.DaemonSetStatus.currentNumberScheduled", |set, _| {
            count(set, |status| Some(status.current_number_scheduled))
        }),
        Column::integer("Ready", "apps.v1.DaemonSetStatus.numberReady", |set, _| {
            count(set, |status| Some(status.number_ready))
        }),
        Column::integer(
            "Up-to-date",
            "apps.v1.DaemonSetStatus.updatedNumberScheduled",
            |set, _| count(set, |status| status.updated_number_scheduled),
        ),
        Column::integer("Available", "apps.v1.DaemonSetStatus.numberAvailable", |set, _| {
            count(set, |status| status.number_available)
        }),
        Column::text("Node Selector", "core.v1.PodSpec.nodeSelector", |set, _| {
            let template = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            labels(template.and_then(|spec| spec.node_selector.as_ref())).into()
        }),
        age_column(),
        Column::wide("Containers", "Names of each container in the template.", |set, _| {
            containers(set.spec.as_ref().map(|spec| &spec.template)).0.into()
        }),
        Column::wide(
            "Images",
            "Images referenced by each container in the template.",
            |set, _| containers(set.spec.as_ref().map(|spec| &spec.template)).1.into(),
        ),
        Column::wide("Selector", "apps.v1.DaemonSetSpec.selector", |set, _| {
            let spec = set.spec.as_ref();
            spec.map(|spec| selector(&spec.selector)).unwrap_or_default().into()
        }),
    ];

    crate::fixed_selector!();

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.revision_history_limit.get_or_insert(10);
        spec.min_ready_seconds = spec.min_ready_seconds.filter(|seconds| *seconds != 0);
        let strategy = spec.update_strategy.get_or_insert_default();
        text(&mut strategy.type_, "RollingUpdate");
        if strategy.type_.as_deref() == Some("RollingUpdate") {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            rolling.max_surge.get_or_insert(IntOrString::Int(0));
        }
        set_template_defaults(&mut spec.template);
        // Every object of version 1 has the annotation, which is so its creator's
        // (`pkg/apis/apps/v1/conversion.go`).
        let templates = generation(self).unwrap_or(0);
        set_generation(self, templates);
    }

    fn prepare_create(&mut self) {
        self.status = Some(DaemonSetStatus::default());
        let wanted = generation(self).filter(|wanted| *wanted >= 1);
        set_generation(self, wanted.unwrap_or(1));
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        let template = |set: &Self| set.spec.as_ref().map(|spec| spec.template.clone());
        let last = generation(old).unwrap_or(0);
        set_generation(self, last.saturating_add(i64::from(template(self) != template(old))));
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        set_generation(self, generation(old).unwrap_or(0));
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let status = self.status.clone().unwrap_or_default();
        let count = |count: Option<i32>| i64::from(count.unwrap_or(0));
        counts::natural(
            &mut errors,
            [
                ("currentNumberScheduled", status.current_number_scheduled.into()),
                ("numberMisscheduled", status.number_misscheduled.into()),
                ("desiredNumberScheduled", status.desired_number_scheduled.into()),
                ("numberReady", status.number_ready.into()),
                ("observedGeneration", status.observed_generation.unwrap_or(0)),
                ("updatedNumberScheduled", count(status.updated_number_scheduled)),
                ("numberAvailable", count(status.number_available)),
                ("numberUnavailable", count(status.number_unavailable)),
                ("collisionCount", count(status.collision_count)),
            ],
        );
        let before = old.status.as_ref().and_then(|status| status.collision_count);
        counts::collisions(&mut errors, status.collision_count, before);
        errors
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.spec != old.spec
    }

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        let before = old.and_then(|old| old.spec.as_ref());
        if let Some(spec) = &self.spec
            && before.is_none_or(|before| before.template != spec.template)
        {
            warnings::of_template(&mut warnings, &spec.template, "spec.template");
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        let Some(spec) = &self.spec else {
            return vec![Invalid::required("spec", "")];
        };
        let mut errors = selector_and_template(&spec.selector, Some(&spec.template), "DaemonSet");
        let numbers = [
            ("minReadySeconds", spec.min_ready_seconds),
            ("revisionHistoryLimit", spec.revision_history_limit),
        ];
        for (name, number) in numbers {
            non_negative(&mut errors, &format!("spec.{name}"), i64::from(number.unwrap_or(0)));
        }
        strategy(&mut errors, &spec.update_strategy.clone().unwrap_or_default());
        errors
    }
}

/// A field of the spec in older versions of the kind, which upstream still counts and shows as an
/// annotation.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn generation(set: &DaemonSet) -> Option<i64> {
    set.metadata
        .annotations
        .as_ref()?
        .get(TEMPLATE_GENERATION)?
        .parse()
        .ok()
}

fn set_generation(set: &mut DaemonSet, generation: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string());
}

fn count(set: &DaemonSet, of: fn(&DaemonSetStatus) -> Option<i32>) -> Value {
    set.status.as_ref().and_then(of).unwrap_or(0).into()
}

fn strategy(errors: &mut Vec<Invalid>, strategy: &DaemonSetUpdateStrategy) {
    const PATH: &str = "spec.updateStrategy.rollingUpdate";
    let rolling = match (strategy.type_.as_deref(), &strategy.rolling_update) {
        (Some("OnDelete"), _) => return,
        (Some("RollingUpdate"), Some(rolling)) => rolling,
        (Some("RollingUpdate"), None) => return errors.push(Invalid::required(PATH, "")),
        (_, rolling) => {
            let rolling = rolling
                .as_ref()
                .map(|rolling| (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref()));
            let value = internal::strategy(strategy.type_.as_ref(), rolling);
            let supported = ["RollingUpdate", "OnDelete"];
            return errors.push(Invalid::not_supported_rendered(
                "spec.updateStrategy",
                value,
                &supported,
            ));
        }
    };
    let numbers = [
        ("maxUnavailable", &rolling.max_unavailable),
        ("maxSurge", &rolling.max_surge),
    ];
    let [down, up] = numbers.map(|(name, value)| number_or_percent(errors, &format!("{PATH}.{name}"), value.as_ref()?));
    for ((name, value), amount) in numbers.into_iter().zip([down, up]) {
        if matches!(value, Some(IntOrString::String(_))) && amount.is_some_and(|percent| percent > 100) {
            let value = serde_json::to_string(value).unwrap_or_default();
            let detail = "must not be greater than 100%";
            errors.push(Invalid::rendered(format!("{PATH}.{name}"), value, detail));
        }
    }
    match (down.unwrap_or(0) != 0, up.unwrap_or(0) != 0) {
        (true, true) => {
            let value = serde_json::to_string(&rolling.max_surge).unwrap_or_default();
            let detail = "may not be set when maxUnavailable is non-zero";
            errors.push(Invalid::rendered(format!("{PATH}.maxSurge"), value, detail));
        }
        (false, false) => {
            let detail = "cannot be 0 when maxSurge is 0";
            errors.push(Invalid::required(format!("{PATH}.maxUnavailable"), detail));
        }
        (true, false) | (false, true) => {}
    }
}
