//! `ReplicationController`: replicas of a pod, in the form before `ReplicaSet`.

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kind::{Dependents, Field, Kind, Subresource};
use crate::strategy::scale;
use crate::table::{Column, age_column, containers, labels};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::set_template_defaults;
use crate::workload::validation::workload::selector_and_template;
use crate::workload::validation::{counts, newly, non_negative};
use crate::workload::warnings;

impl Kind for ReplicationController {
    const SHORT_NAMES: &'static [&'static str] = &["rc"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const DEPENDENTS: Dependents = Dependents::Orphaned;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer(
            "Desired",
            "core.v1.ReplicationControllerSpec.replicas",
            |controller, _| {
                let spec = controller.spec.as_ref();
                spec.and_then(|spec| spec.replicas).unwrap_or(0).into()
            },
        ),
        Column::integer(
            "Current",
            "core.v1.ReplicationControllerStatus.replicas",
            |controller, _| current(controller).into(),
        ),
        Column::integer(
            "Ready",
            "core.v1.ReplicationControllerStatus.readyReplicas",
            |controller, _| {
                let status = controller.status.as_ref();
                status.and_then(|status| status.ready_replicas).unwrap_or(0).into()
            },
        ),
        age_column(),
        Column::wide(
            "Containers",
            "Names of each container in the template.",
            |controller, _| {
                let spec = controller.spec.as_ref();
                containers(spec.and_then(|spec| spec.template.as_ref())).0.into()
            },
        ),
        Column::wide(
            "Images",
            "Images referenced by each container in the template.",
            |controller, _| {
                let spec = controller.spec.as_ref();
                containers(spec.and_then(|spec| spec.template.as_ref())).1.into()
            },
        ),
        Column::wide(
            "Selector",
            "core.v1.ReplicationControllerSpec.selector",
            |controller, _| {
                let spec = controller.spec.as_ref();
                labels(spec.and_then(|spec| spec.selector.as_ref())).into()
            },
        ),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field::new("status.replicas", |controller| {
        current(controller).to_string()
    })];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        spec.min_ready_seconds = spec.min_ready_seconds.filter(|seconds| *seconds != 0);
        let Some(template) = &mut spec.template else { return };
        set_template_defaults(template);
        // Defaults the selector and labels to the labels of the template.
        let Some(own) = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref()) else {
            return;
        };
        if own.is_empty() {
            return;
        }
        for place in [&mut spec.selector, &mut self.metadata.labels] {
            if place.as_ref().is_none_or(std::collections::BTreeMap::is_empty) {
                *place = Some(own.clone());
            }
        }
    }

    crate::spec_and_status!();

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let template = self.spec.as_ref().and_then(|spec| spec.template.as_ref());
        warnings::of_maker(&self.metadata, old.map(|old| &old.metadata), template, "spec.template")
    }

    fn validate(&self) -> Vec<Invalid> {
        let Some(spec) = &self.spec else {
            return vec![Invalid::required("spec", "")];
        };
        let selector = LabelSelector {
            match_labels: spec.selector.clone(),
            match_expressions: None,
        };
        let mut errors = Vec::new();
        let ready = spec.min_ready_seconds.unwrap_or(0);
        non_negative(&mut errors, "spec.minReadySeconds", i64::from(ready));
        let is_empty = spec.selector.as_ref().is_none_or(std::collections::BTreeMap::is_empty);
        if is_empty {
            errors.push(Invalid::required("spec.selector", ""));
        }
        non_negative(&mut errors, "spec.replicas", i64::from(spec.replicas.unwrap_or(0)));
        let mut template = selector_and_template(&selector, spec.template.as_ref(), "ReplicationController");
        if is_empty {
            let said = ["spec.selector", "spec.template.metadata.labels"];
            template.retain(|error| !said.contains(&error.field.as_ref()));
        }
        errors.extend(template);
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        newly(self.validate(), || old.validate())
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let status = self.status.clone().unwrap_or_default();
        counts::of_set(&counts::OfSet {
            replicas: status.replicas,
            labelled: status.fully_labeled_replicas,
            ready: status.ready_replicas,
            available: status.available_replicas,
            terminating: None,
            observed: status.observed_generation,
        })
    }

    fn scale(&self) -> Option<Scale> {
        let spec = self.spec.as_ref()?;
        let selector = LabelSelector {
            match_labels: spec.selector.clone(),
            match_expressions: None,
        };
        Some(scale(&self.metadata, spec.replicas, current(self), &selector))
    }

    fn set_scale(&mut self, replicas: i32) {
        self.spec.get_or_insert_default().replicas = Some(replicas);
    }
}

fn current(controller: &ReplicationController) -> i32 {
    controller.status.as_ref().map_or(0, |status| status.replicas)
}
