//! `ReplicaSet`: replicas of one version of a pod.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::autoscaling::v1::Scale;

use crate::kind::{Column, Field, Kind, Subresource};
use crate::pod::defaults::set_template_defaults;
use crate::strategy::scale;
use crate::table::{age_column, containers, selector};

impl Kind for ReplicaSet {
    const SHORT_NAMES: &'static [&'static str] = &["rs"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::integer("Desired", "Pods that are wanted.", |set, _| {
            set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0).into()
        }),
        Column::integer("Current", "Pods that there are.", |set, _| current(set).into()),
        Column::integer("Ready", "Pods that are ready.", |set, _| {
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
        Column::wide("Images", "Images of each container in the template.", |set, _| {
            containers(set.spec.as_ref().and_then(|spec| spec.template.as_ref()))
                .1
                .into()
        }),
        Column::wide("Selector", "Which pods belong.", |set, _| {
            set.spec
                .as_ref()
                .map(|spec| selector(&spec.selector))
                .unwrap_or_default()
                .into()
        }),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field {
        label: "status.replicas",
        value: |set| current(set).to_string(),
    }];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        if let Some(template) = &mut spec.template {
            set_template_defaults(template.spec.get_or_insert_default());
        }
    }

    fn prepare_create(&mut self) {
        self.status = Some(ReplicaSetStatus::default());
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.spec != old.spec
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
