//! `StatefulSet`: pods with names and storage of their own.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::autoscaling::v1::Scale;

use super::persistent_volume_claim;
use crate::kind::{Column, Kind, Subresource};
use crate::pod::defaults::{set_template_defaults, text};
use crate::strategy::scale;
use crate::table::{age_column, containers};

impl Kind for StatefulSet {
    const SHORT_NAMES: &'static [&'static str] = &["sts"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Ready", "Ready and wanted pods.", |set, _| {
            let ready = set.status.as_ref().and_then(|status| status.ready_replicas);
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas);
            format!("{}/{}", ready.unwrap_or(0), wanted.unwrap_or(0)).into()
        }),
        age_column(),
        Column::wide("Containers", "Names of each container in the template.", |set, _| {
            containers(set.spec.as_ref().map(|spec| &spec.template)).0.into()
        }),
        Column::wide("Images", "Images of each container in the template.", |set, _| {
            containers(set.spec.as_ref().map(|spec| &spec.template)).1.into()
        }),
    ];

    fn set_defaults(&mut self) {
        set_spec_defaults(self.spec.get_or_insert_default());
        // Upstream always writes this number.
        self.status.get_or_insert_default().available_replicas.get_or_insert(0);
    }

    fn prepare_create(&mut self) {
        self.status = Some(StatefulSetStatus {
            available_replicas: Some(0),
            ..StatefulSetStatus::default()
        });
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    crate::spec_alone!();

    fn scale(&self) -> Option<Scale> {
        let spec = self.spec.as_ref()?;
        let current = self.status.as_ref().map_or(0, |status| status.replicas);
        Some(scale(&self.metadata, spec.replicas, current, &spec.selector))
    }

    fn set_scale(&mut self, replicas: i32) {
        self.spec.get_or_insert_default().replicas = Some(replicas);
    }
}

fn set_spec_defaults(spec: &mut StatefulSetSpec) {
    spec.replicas.get_or_insert(1);
    spec.revision_history_limit.get_or_insert(10);
    spec.min_ready_seconds = spec.min_ready_seconds.filter(|seconds| *seconds != 0);
    text(&mut spec.pod_management_policy, "OrderedReady");
    let strategy = spec.update_strategy.get_or_insert_default();
    text(&mut strategy.type_, "RollingUpdate");
    if strategy.type_.as_deref() == Some("RollingUpdate") {
        strategy
            .rolling_update
            .get_or_insert_default()
            .partition
            .get_or_insert(0);
    }
    let retention = spec.persistent_volume_claim_retention_policy.get_or_insert_default();
    text(&mut retention.when_deleted, "Retain");
    text(&mut retention.when_scaled, "Retain");
    set_template_defaults(spec.template.spec.get_or_insert_default());
    for claim in spec.volume_claim_templates.iter_mut().flatten() {
        persistent_volume_claim::set_spec_defaults(claim.spec.get_or_insert_default());
        text(&mut claim.status.get_or_insert_default().phase, "Pending");
    }
}
