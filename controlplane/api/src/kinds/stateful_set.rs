//! `StatefulSet`: pods with stable names and storage.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus, StatefulSetUpdateStrategy};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::persistent_volume_claim;
use crate::kind::{Kind, Subresource};
use crate::strategy::scale;
use crate::table::{Column, age_column, containers};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::pod::defaults::{set_claim_defaults, set_template_defaults, text};
use crate::workload::validation::workload::{keep_empty_selector, number_or_percent, selector_and_template};
use crate::workload::validation::{counts, each, internal, non_empty, non_negative, one_of};
use crate::workload::warnings;

impl Kind for StatefulSet {
    const SHORT_NAMES: &'static [&'static str] = &["sts"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
    const GENERATION: bool = true;
    const NAME: names::Rule = names::Rule::Label;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Ready", "Number of the pod with ready state", |set, _| {
            let ready = set.status.as_ref().and_then(|status| status.ready_replicas);
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas);
            format!("{}/{}", ready.unwrap_or(0), wanted.unwrap_or(0)).into()
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
    ];

    fn decoded(&mut self, json: &[u8]) {
        if let Some(spec) = &mut self.spec {
            keep_empty_selector(&mut spec.selector, json);
        }
    }

    fn set_defaults(&mut self) {
        set_spec_defaults(self.spec.get_or_insert_default());
        // Upstream always writes this number.
        self.status.get_or_insert_default().available_replicas.get_or_insert(0);
    }

    fn prepare_create(&mut self) {
        drop_max_unavailable(self, None);
        self.status = Some(StatefulSetStatus {
            available_replicas: Some(0),
            ..StatefulSetStatus::default()
        });
    }

    fn prepare_update(&mut self, old: &Self) {
        drop_max_unavailable(self, Some(old));
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let status = self.status.clone().unwrap_or_default();
        let count = |count: Option<i32>| i64::from(count.unwrap_or(0));
        counts::natural(
            &mut errors,
            [
                ("replicas", status.replicas.into()),
                ("readyReplicas", count(status.ready_replicas)),
                ("currentReplicas", count(status.current_replicas)),
                ("updatedReplicas", count(status.updated_replicas)),
                ("availableReplicas", count(status.available_replicas)),
                ("observedGeneration", status.observed_generation.unwrap_or(0)),
                ("collisionCount", count(status.collision_count)),
            ],
        );
        let (all, ready) = (status.replicas, status.ready_replicas.unwrap_or(0));
        let of_ready = "cannot be greater than status.readyReplicas";
        counts::at_most(
            &mut errors,
            [
                ("readyReplicas", status.ready_replicas, all, counts::OF_ALL),
                ("currentReplicas", status.current_replicas, all, counts::OF_ALL),
                ("updatedReplicas", status.updated_replicas, all, counts::OF_ALL),
                ("availableReplicas", status.available_replicas, all, counts::OF_ALL),
                ("availableReplicas", status.available_replicas, ready, of_ready),
            ],
        );
        let before = old.status.as_ref().and_then(|status| status.collision_count);
        counts::collisions(&mut errors, status.collision_count, before);
        errors
    }

    crate::spec_alone!();

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        let Some(spec) = &self.spec else { return warnings };
        if old.is_none_or(|old| old.metadata.generation != self.metadata.generation) {
            warnings::of_template(&mut warnings, &spec.template, "spec.template");
        }
        // Upstream names the field in updates alone.
        let field = if old.is_some() { ".Spec" } else { "" };
        for (index, claim) in spec.volume_claim_templates.iter().flatten().enumerate() {
            if let Some(own) = &claim.spec {
                let path = format!("spec.volumeClaimTemplates[{index}]{field}");
                warnings::of_claim(&mut warnings, own, &path);
            }
        }
        if spec.revision_history_limit.is_some_and(|limit| limit < 0) {
            let message = "a negative value retains all historical revisions; a value >= 0 is recommended";
            warnings.push(format!("spec.revisionHistoryLimit: {message}"));
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        self.spec
            .as_ref()
            .map_or_else(|| vec![Invalid::required("spec", "")], validate_new)
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let (Some(new), Some(old)) = (&self.spec, &old.spec) else {
            return self.validate();
        };
        // A set that was stored under fewer rules may stay invalid: errors are reported for its
        // pods.
        let before = validate_spec(old);
        let was_valid = before.is_empty() && validate_template(old, true).is_empty();
        let mut errors = validate_spec(new);
        errors.retain(|error| !before.contains(error));
        errors.extend(validate_template(new, was_valid));
        let mut fixed = new.clone();
        fixed.replicas = old.replicas;
        fixed.ordinals.clone_from(&old.ordinals);
        fixed.template.clone_from(&old.template);
        fixed.update_strategy.clone_from(&old.update_strategy);
        fixed.revision_history_limit = old.revision_history_limit;
        fixed.min_ready_seconds = old.min_ready_seconds;
        fixed
            .persistent_volume_claim_retention_policy
            .clone_from(&old.persistent_volume_claim_retention_policy);
        if fixed != *old {
            errors.push(Invalid::forbidden("spec", FIXED));
        }
        errors
    }

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
    if non_empty(strategy.type_.as_deref()).is_none() {
        strategy.type_ = Some("RollingUpdate".to_owned());
        strategy.rolling_update.get_or_insert_default();
    }
    // A strategy with only its type gets no `rollingUpdate`.
    if let Some(rolling) = &mut strategy.rolling_update
        && strategy.type_.as_deref() == Some("RollingUpdate")
    {
        rolling.partition.get_or_insert(0);
    }
    let retention = spec.persistent_volume_claim_retention_policy.get_or_insert_default();
    text(&mut retention.when_deleted, "Retain");
    text(&mut retention.when_scaled, "Retain");
    set_template_defaults(&mut spec.template);
    for claim in spec.volume_claim_templates.iter_mut().flatten() {
        set_claim_defaults(claim.spec.get_or_insert_default());
        text(&mut claim.status.get_or_insert_default().phase, "Pending");
    }
}

/// Drops `maxUnavailable` unless the old set has it: the feature gate `MaxUnavailableStatefulSet` is
/// off (`dropStatefulSetDisabledFields`).
fn drop_max_unavailable(new: &mut StatefulSet, old: Option<&StatefulSet>) {
    let spec = old.and_then(|old| old.spec.as_ref());
    let strategy = spec.and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    if rolling.is_some_and(|rolling| rolling.max_unavailable.is_some()) {
        return;
    }
    let strategy = new.spec.as_mut().and_then(|spec| spec.update_strategy.as_mut());
    if let Some(rolling) = strategy.and_then(|strategy| strategy.rolling_update.as_mut()) {
        rolling.max_unavailable = None;
    }
}

const FIXED: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

/// Validates a new StatefulSet.
fn validate_new(spec: &StatefulSetSpec) -> Vec<Invalid> {
    let mut errors = validate_spec(spec);
    for (index, claim) in spec.volume_claim_templates.iter().flatten().enumerate() {
        let own = claim.spec.clone().unwrap_or_default();
        let path = format!("spec.volumeClaimTemplates[{index}].spec");
        errors.extend(persistent_volume_claim::validate_spec(&own, &path));
    }
    if let Some(name) = non_empty(spec.service_name.as_deref()) {
        each(&mut errors, "spec.serviceName", name, names::dns1123_label(name));
    }
    errors.extend(validate_template(spec, true));
    errors
}

/// Validates everything but the templates and the service name, which are immutable.
fn validate_spec(spec: &StatefulSetSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if !matches!(spec.pod_management_policy.as_deref(), Some("OrderedReady" | "Parallel")) {
        let policy = spec.pod_management_policy.as_deref().unwrap_or_default();
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.push(Invalid::value("spec.podManagementPolicy", policy, detail));
    }
    update_strategy(&mut errors, &spec.update_strategy.clone().unwrap_or_default());
    let retention = spec
        .persistent_volume_claim_retention_policy
        .clone()
        .unwrap_or_default();
    for (name, policy) in [
        ("whenDeleted", retention.when_deleted),
        ("whenScaled", retention.when_scaled),
    ] {
        let field = format!("spec.persistentVolumeClaimRetentionPolicy.{name}");
        one_of(&mut errors, &field, policy.as_deref(), &["Retain", "Delete"]);
    }
    let numbers = [
        ("replicas", spec.replicas),
        ("minReadySeconds", spec.min_ready_seconds),
        (
            "ordinals.start",
            spec.ordinals.as_ref().and_then(|ordinals| ordinals.start),
        ),
    ];
    for (name, number) in numbers {
        non_negative(&mut errors, &format!("spec.{name}"), i64::from(number.unwrap_or(0)));
    }
    errors
}

fn update_strategy(errors: &mut Vec<Invalid>, strategy: &StatefulSetUpdateStrategy) {
    const FIELD: &str = "spec.updateStrategy";
    let rolling = strategy.rolling_update.as_ref();
    match (strategy.type_.as_deref().unwrap_or_default(), rolling) {
        ("", _) => errors.push(Invalid::required(FIELD, "")),
        ("OnDelete", Some(rolling)) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            let value = internal::rolling_update(rolling);
            errors.push(Invalid::rendered(format!("{FIELD}.rollingUpdate"), value, detail));
        }
        ("RollingUpdate", Some(rolling)) => {
            let first = i64::from(rolling.partition.unwrap_or(0));
            non_negative(errors, &format!("{FIELD}.rollingUpdate.partition"), first);
            if let Some(most) = &rolling.max_unavailable {
                max_unavailable(errors, most);
            }
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        _ => {
            let value = internal::update_strategy(strategy);
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(Invalid::rendered(FIELD, value, detail));
        }
    }
}

fn max_unavailable(errors: &mut Vec<Invalid>, most: &IntOrString) {
    let field = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    let amount = number_or_percent(errors, field, most).unwrap_or(0);
    let value = || serde_json::to_string(most).unwrap_or_default();
    if amount == 0 {
        errors.push(Invalid::rendered(field, value(), "cannot be 0"));
    }
    if matches!(most, IntOrString::String(_)) && amount > 100 {
        errors.push(Invalid::rendered(field, value(), "must not be greater than 100%"));
    }
}

/// Validates the selector and the template; the template's pods only if `pods` is true.
fn validate_template(spec: &StatefulSetSpec, pods: bool) -> Vec<Invalid> {
    let template = with_claims(spec);
    let mut errors = selector_and_template(&spec.selector, Some(&template), "StatefulSet");
    errors.retain(|error| {
        let inside = error.field.strip_prefix("spec.template.spec.");
        pods || inside.is_none_or(|field| field == "restartPolicy" || field == "activeDeadlineSeconds")
    });
    errors
}

/// Template with a volume for each claim, which replaces a volume of the same name, and without the
/// host name and subdomain, which the controller sets itself.
fn with_claims(spec: &StatefulSetSpec) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    let mut volumes: Vec<Volume> = Vec::new();
    let mut known = BTreeSet::new();
    for claim in spec.volume_claim_templates.iter().flatten() {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if known.insert(name.clone()) {
            volumes.push(Volume {
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: name.clone(),
                    read_only: None,
                }),
                name,
                ..Volume::default()
            });
        }
    }
    if let Some(pod) = &mut template.spec {
        let own = pod.volumes.take().into_iter().flatten();
        volumes.extend(own.filter(|volume| !known.contains(&volume.name)));
        pod.volumes = Some(volumes);
        (pod.hostname, pod.subdomain) = (None, None);
    }
    template
}
