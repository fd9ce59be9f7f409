//! Deployment: replicas of a pod with rolling updates.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, DeploymentStrategy};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kind::{Kind, Subresource};
use crate::strategy::scale;
use crate::table::{Column, age_column, containers, selector};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::{set_template_defaults, text};
use crate::workload::validation::workload::{number_or_percent, selector_and_template};
use crate::workload::validation::{counts, internal, non_negative};
use crate::workload::warnings;

impl Kind for Deployment {
    const SHORT_NAMES: &'static [&'static str] = &["deploy"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Ready", "Number of the pod with ready state", |deployment, _| {
            format!(
                "{}/{}",
                count(deployment, |status| status.ready_replicas),
                replicas(deployment)
            )
            .into()
        }),
        Column::text(
            "Up-to-date",
            "apps.v1.DeploymentStatus.updatedReplicas",
            |deployment, _| count(deployment, |status| status.updated_replicas).into(),
        ),
        Column::text(
            "Available",
            "apps.v1.DeploymentStatus.availableReplicas",
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
            "Images referenced by each container in the template.",
            |deployment, _| containers(deployment.spec.as_ref().map(|spec| &spec.template)).1.into(),
        ),
        Column::wide("Selector", "apps.v1.DeploymentSpec.selector", |deployment, _| {
            deployment
                .spec
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
        // False and zero are the same as unset.
        spec.paused = spec.paused.filter(|paused| *paused);
        spec.min_ready_seconds = spec.min_ready_seconds.filter(|seconds| *seconds != 0);
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
        set_template_defaults(&mut spec.template);
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
        // Annotations are copied to the replica sets, so they count as part of the spec.
        self.spec != old.spec || self.metadata.annotations != old.metadata.annotations
    }

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let template = self.spec.as_ref().map(|spec| &spec.template);
        warnings::of_maker(&self.metadata, old.map(|old| &old.metadata), template, "spec.template")
    }

    fn validate(&self) -> Vec<Invalid> {
        let Some(spec) = &self.spec else {
            return vec![Invalid::required("spec", "")];
        };
        let mut errors = Vec::new();
        non_negative(&mut errors, "spec.replicas", i64::from(spec.replicas.unwrap_or(0)));
        errors.extend(selector_and_template(
            &spec.selector,
            Some(&spec.template),
            "Deployment",
        ));
        strategy(&mut errors, &spec.strategy.clone().unwrap_or_default());
        let ready = i64::from(spec.min_ready_seconds.unwrap_or(0));
        non_negative(&mut errors, "spec.minReadySeconds", ready);
        non_negative(
            &mut errors,
            "spec.revisionHistoryLimit",
            i64::from(spec.revision_history_limit.unwrap_or(0)),
        );
        if let Some(deadline) = spec.progress_deadline_seconds {
            non_negative(&mut errors, "spec.progressDeadlineSeconds", i64::from(deadline));
            if i64::from(deadline) <= ready {
                let detail = "must be greater than minReadySeconds";
                errors.push(Invalid::value("spec.progressDeadlineSeconds", deadline, detail));
            }
        }
        errors
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let status = self.status.clone().unwrap_or_default();
        let count = |count: Option<i32>| i64::from(count.unwrap_or(0));
        counts::natural(
            &mut errors,
            [
                ("observedGeneration", status.observed_generation.unwrap_or(0)),
                ("replicas", count(status.replicas)),
                ("updatedReplicas", count(status.updated_replicas)),
                ("readyReplicas", count(status.ready_replicas)),
                ("availableReplicas", count(status.available_replicas)),
                ("unavailableReplicas", count(status.unavailable_replicas)),
                ("terminatingReplicas", count(status.terminating_replicas)),
                ("collisionCount", count(status.collision_count)),
            ],
        );
        let (all, ready) = (status.replicas.unwrap_or(0), status.ready_replicas.unwrap_or(0));
        counts::at_most(
            &mut errors,
            [
                ("updatedReplicas", status.updated_replicas, all, counts::OF_ALL),
                ("readyReplicas", status.ready_replicas, all, counts::OF_ALL),
                ("availableReplicas", status.available_replicas, all, counts::OF_ALL),
                ("availableReplicas", status.available_replicas, ready, counts::OF_READY),
            ],
        );
        let before = old.status.as_ref().and_then(|status| status.collision_count);
        counts::collisions(&mut errors, status.collision_count, before);
        errors
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

fn strategy(errors: &mut Vec<Invalid>, strategy: &DeploymentStrategy) {
    const PATH: &str = "spec.strategy.rollingUpdate";
    match (strategy.type_.as_deref().unwrap_or_default(), &strategy.rolling_update) {
        ("Recreate", None) => {}
        ("Recreate", Some(_)) => {
            errors.push(Invalid::forbidden(
                PATH,
                "may not be specified when strategy `type` is 'Recreate'",
            ));
        }
        ("RollingUpdate", None) => errors.push(Invalid::required(PATH, "this should be defaulted and never be nil")),
        ("RollingUpdate", Some(rolling)) => {
            let default = IntOrString::String("25%".to_owned());
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&default);
            let surge = rolling.max_surge.as_ref().unwrap_or(&default);
            let field = format!("{PATH}.maxUnavailable");
            let down = number_or_percent(errors, &field, unavailable);
            let up = number_or_percent(errors, &format!("{PATH}.maxSurge"), surge);
            if (down, up) == (Some(0), Some(0)) {
                let value = serde_json::to_string(unavailable).unwrap_or_default();
                errors.push(Invalid::rendered(
                    field.as_str(),
                    value,
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            if matches!(unavailable, IntOrString::String(_)) && down.is_some_and(|percent| percent > 100) {
                let value = serde_json::to_string(unavailable).unwrap_or_default();
                errors.push(Invalid::rendered(field, value, "must not be greater than 100%"));
            }
        }
        (_, rolling) => {
            let rolling = rolling
                .as_ref()
                .map(|rolling| (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref()));
            let value = internal::strategy(strategy.type_.as_ref(), rolling);
            let supported = ["Recreate", "RollingUpdate"];
            errors.push(Invalid::not_supported_rendered("spec.strategy", value, &supported));
        }
    }
}
