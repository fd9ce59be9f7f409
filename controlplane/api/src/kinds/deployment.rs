//! Deployment: replicas of a pod, rolled from version to version.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Column, Kind, Subresource};
use crate::pod::defaults::{set_template_defaults, text};
use crate::strategy::scale;
use crate::table::{age_column, containers, selector};

impl Kind for Deployment {
    const SHORT_NAMES: &'static [&'static str] = &["deploy"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Ready", "Ready and wanted pods.", |deployment, _| {
            format!(
                "{}/{}",
                count(deployment, |status| status.ready_replicas),
                replicas(deployment)
            )
            .into()
        }),
        Column::integer("Up-to-date", "Pods of the newest template.", |deployment, _| {
            count(deployment, |status| status.updated_replicas).into()
        }),
        Column::integer(
            "Available",
            "Pods that have been ready for long enough.",
            |deployment, _| count(deployment, |status| status.available_replicas).into(),
        ),
        age_column(),
        Column::wide(
            "Containers",
            "Names of each container in the template.",
            |deployment, _| containers(deployment.spec.as_ref().map(|spec| &spec.template)).0.into(),
        ),
        Column::wide(
            "Images",
            "Images of each container in the template.",
            |deployment, _| containers(deployment.spec.as_ref().map(|spec| &spec.template)).1.into(),
        ),
        Column::wide("Selector", "Which pods belong.", |deployment, _| {
            deployment
                .spec
                .as_ref()
                .map(|spec| selector(&spec.selector))
                .unwrap_or_default()
                .into()
        }),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        spec.progress_deadline_seconds.get_or_insert(600);
        let strategy = spec.strategy.get_or_insert_default();
        text(&mut strategy.type_, "RollingUpdate");
        if strategy.type_.as_deref() == Some("RollingUpdate") {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling
                .max_unavailable
                .get_or_insert_with(|| IntOrString::String("25%".to_owned()));
            rolling
                .max_surge
                .get_or_insert_with(|| IntOrString::String("25%".to_owned()));
        }
        set_template_defaults(spec.template.spec.get_or_insert_default());
    }

    fn prepare_create(&mut self) {
        self.status = Some(DeploymentStatus::default());
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.metadata.labels.clone_from(&old.metadata.labels);
    }

    fn spec_changed(&self, old: &Self) -> bool {
        // Annotations are copied to the replica sets, so they are asked for too.
        self.spec != old.spec || self.metadata.annotations != old.metadata.annotations
    }

    fn scale(&self) -> Option<Scale> {
        let spec = self.spec.as_ref()?;
        Some(scale(
            &self.metadata,
            spec.replicas,
            count(self, |status| status.replicas),
            &spec.selector,
        ))
    }

    fn set_scale(&mut self, replicas: i32) {
        self.spec.get_or_insert_default().replicas = Some(replicas);
    }
}

fn count(deployment: &Deployment, of: fn(&DeploymentStatus) -> Option<i32>) -> i32 {
    deployment.status.as_ref().and_then(of).unwrap_or(0)
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
}
