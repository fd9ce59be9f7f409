//! `ReplicaSet`: replicas of one version of a pod.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::autoscaling::v1::Scale;

use crate::kind::{Kind, Subresource};
use crate::strategy::scale;
use crate::table::{Column, age_column, containers, selector};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::set_template_defaults;
use crate::workload::validation::workload::selector_and_template;
use crate::workload::validation::{counts, non_negative};
use crate::workload::warnings;

impl Kind for ReplicaSet {
    const SHORT_NAMES: &'static [&'static str] = &["rs"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Desired", "apps.v1.ReplicaSetSpec.replicas", |set, _| {
            set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0).into()
        }),
        Column::integer("Current", "apps.v1.ReplicaSetStatus.replicas", |set, _| {
            current(set).into()
        }),
        Column::integer("Ready", "apps.v1.ReplicaSetStatus.readyReplicas", |set, _| {
            set.status
                .as_ref()
                .and_then(|status| status.ready_replicas)
                .unwrap_or(0)
                .into()
        }),
        age_column(),
        Column::wide("Containers", "Names of each container in the template.", |set, _| {
            containers(set.spec.as_ref().and_then(|spec| spec.template.as_ref()))
                .0
                .into()
        }),
        Column::wide(
            "Images",
            "Images referenced by each container in the template.",
            |set, _| {
                containers(set.spec.as_ref().and_then(|spec| spec.template.as_ref()))
                    .1
                    .into()
            },
        ),
        Column::wide("Selector", "apps.v1.ReplicaSetSpec.selector", |set, _| {
            set.spec
                .as_ref()
                .map(|spec| selector(&spec.selector))
                .unwrap_or_default()
                .into()
        }),
    ];

    crate::fixed_selector!();

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        spec.min_ready_seconds = spec.min_ready_seconds.filter(|seconds| *seconds != 0);
        if let Some(template) = &mut spec.template {
            set_template_defaults(template);
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
        let mut errors = Vec::new();
        non_negative(&mut errors, "spec.replicas", i64::from(spec.replicas.unwrap_or(0)));
        non_negative(
            &mut errors,
            "spec.minReadySeconds",
            i64::from(spec.min_ready_seconds.unwrap_or(0)),
        );
        errors.extend(selector_and_template(
            &spec.selector,
            spec.template.as_ref(),
            "ReplicaSet",
        ));
        errors
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let status = self.status.clone().unwrap_or_default();
        counts::of_set(&counts::OfSet {
            replicas: status.replicas,
            labelled: status.fully_labeled_replicas,
            ready: status.ready_replicas,
            available: status.available_replicas,
            terminating: status.terminating_replicas,
            observed: status.observed_generation,
        })
    }

    fn scale(&self) -> Option<Scale> {
        let spec = self.spec.as_ref()?;
        Some(scale(&self.metadata, spec.replicas, current(self), &spec.selector))
    }

    fn set_scale(&mut self, replicas: i32) {
        self.spec.get_or_insert_default().replicas = Some(replicas);
    }
}

fn current(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}
