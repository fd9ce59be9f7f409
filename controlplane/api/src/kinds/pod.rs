//! Pod: containers that share a network and a lifecycle.

mod gated;
mod status;
mod summary;
mod update;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::kind::{Field, Kind, Subresource};
use crate::table::{Column, Shown, age_column, or};
use crate::value::invalid::Invalid;
use crate::workload::pod::{apparmor, defaults, label_keys, phase, qos, unsupported};
use crate::workload::validation::{annotations, pod_spec, required};
use crate::workload::warnings;
use summary::Summary;

/// Path of a pod's annotations.
const ANNOTATIONS: &str = "metadata.annotations";

/// Members of a container that cells of a pod show.
const OF_CONTAINERS: &[Shown] = &[Shown::Whole("name"), Shown::Whole("restartPolicy")];

impl Kind for Pod {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["po"];
    const CATEGORIES: &'static [&'static str] = &["all"];
    const SUBRESOURCES: &'static [Subresource] = &[
        Subresource::Attach,
        Subresource::Binding,
        Subresource::EphemeralContainers,
        Subresource::Eviction,
        Subresource::Exec,
        Subresource::Log,
        Subresource::PortForward,
        Subresource::Proxy,
        Subresource::Resize,
        Subresource::Status,
    ];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Ready",
            "The aggregate readiness state of this pod for accepting traffic.",
            |pod, _| Summary::of(pod).ready().into(),
        ),
        Column::text(
            "Status",
            "The aggregate status of the containers in this pod.",
            |pod, _| Summary::of(pod).reason.into(),
        ),
        Column::text(
            "Restarts",
            "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
            |pod, now| Summary::of(pod).restarts(now).into(),
        ),
        age_column(),
        Column::wide("IP", "core.v1.PodStatus.podIP", |pod, _| {
            or(address(pod), "<none>").into()
        }),
        Column::wide("Node", "core.v1.PodSpec.nodeName", |pod, _| {
            or(spec(pod).and_then(|spec| spec.node_name.as_deref()), "<none>").into()
        }),
        Column::wide("Nominated Node", "core.v1.PodStatus.nominatedNodeName", |pod, _| {
            or(
                pod.status
                    .as_ref()
                    .and_then(|status| status.nominated_node_name.as_deref()),
                "<none>",
            )
            .into()
        }),
        Column::wide("Readiness Gates", "core.v1.PodSpec.readinessGates", |pod, _| {
            gates(pod).into()
        }),
    ];
    const SHOWN: &'static [Shown] = &[
        Shown::Within(
            "metadata",
            &[
                Shown::Whole("name"),
                Shown::Whole("resourceVersion"),
                Shown::Whole("creationTimestamp"),
                Shown::Whole("deletionTimestamp"),
            ],
        ),
        Shown::Within(
            "spec",
            &[
                Shown::Within("initContainers", OF_CONTAINERS),
                Shown::Within("containers", OF_CONTAINERS),
                Shown::Whole("nodeName"),
                Shown::Whole("readinessGates"),
            ],
        ),
        Shown::Within(
            "status",
            &[
                Shown::Whole("phase"),
                Shown::Whole("conditions"),
                Shown::Whole("reason"),
                Shown::Whole("podIP"),
                Shown::Whole("nominatedNodeName"),
                Shown::Whole("initContainerStatuses"),
                Shown::Whole("containerStatuses"),
            ],
        ),
    ];
    const FIELDS: &'static [Field<Self>] = &[
        Field::new("spec.nodeName", |pod| of_spec(pod, |spec| spec.node_name.as_ref())),
        Field::new("spec.restartPolicy", |pod| {
            of_spec(pod, |spec| spec.restart_policy.as_ref())
        }),
        Field::new("spec.schedulerName", |pod| {
            of_spec(pod, |spec| spec.scheduler_name.as_ref())
        }),
        Field::new("spec.serviceAccountName", |pod| {
            of_spec(pod, |spec| spec.service_account_name.as_ref())
        }),
        Field::new("spec.hostNetwork", |pod| {
            spec(pod)
                .and_then(|spec| spec.host_network)
                .unwrap_or(false)
                .to_string()
        }),
        Field::new("status.phase", |pod| phase(pod).to_owned()),
        Field::new("status.podIP", |pod| address(pod).unwrap_or_default().to_owned()),
        Field::new("status.nominatedNodeName", |pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.nominated_node_name.clone())
                .unwrap_or_default()
        }),
    ];
    /// `pkg/apis/core/v1/conversion.go`: no pod has `status.podIPs` among its fields.
    const FIELD_NAMES: &'static [(&'static str, &'static str)] = &[
        ("spec.nodeName", "spec.nodeName"),
        ("spec.host", "spec.nodeName"),
        ("spec.restartPolicy", "spec.restartPolicy"),
        ("spec.schedulerName", "spec.schedulerName"),
        ("spec.serviceAccountName", "spec.serviceAccountName"),
        ("spec.hostNetwork", "spec.hostNetwork"),
        ("status.phase", "status.phase"),
        ("status.podIP", "status.podIP"),
        ("status.podIPs", "status.podIPs"),
        ("status.nominatedNodeName", "status.nominatedNodeName"),
    ];

    fn completed(&self) -> Option<(&'static str, &'static str)> {
        match phase(self) {
            "Succeeded" => Some(("Succeeded", "The pod has completed successfully.")),
            "Failed" => Some(("Failed", "The pod failed.")),
            _ => None,
        }
    }

    fn set_defaults(&mut self) {
        defaults::set_pod_defaults(self.spec.get_or_insert_default());
    }

    fn prepare_create(&mut self) {
        let spec = self.spec.get_or_insert_default();
        let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        self.status = Some(PodStatus {
            phase: Some("Pending".to_owned()),
            qos_class: Some(qos(spec).to_owned()),
            conditions: gated.then(|| vec![gated_condition(self.metadata.creation_timestamp.clone())]),
            ..PodStatus::default()
        });
        label_keys::merge(self);
        apparmor::read_annotations(self);
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        let (own, last) = (&mut self.metadata, &old.metadata);
        own.deletion_timestamp.clone_from(&last.deletion_timestamp);
        own.owner_references.clone_from(&last.owner_references);
        let status = self.status.get_or_insert_default();
        if let Some(old) = &old.status {
            if status.qos_class.is_none() {
                status.qos_class.clone_from(&old.qos_class);
            }
            keep_generations(status, old);
        }
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.spec != old.spec
    }

    /// Skips warnings for updates: people do not edit pods by hand, and controllers that do so
    /// often would pay for the checks.
    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        match (&self.spec, old) {
            (Some(spec), None) => warnings::of_pod(&self.metadata, spec),
            (_, _) => Vec::new(),
        }
    }

    fn status_warnings(&self) -> Vec<String> {
        status::warnings(self)
    }

    fn validate(&self) -> Vec<Invalid> {
        let Some(spec) = &self.spec else {
            return vec![Invalid::required("spec", "")];
        };
        let mut errors = pod_spec::validate(spec, "spec");
        if spec.ephemeral_containers.as_ref().is_some_and(|own| !own.is_empty()) {
            errors.push(Invalid::forbidden(
                "spec.ephemeralContainers",
                "cannot be set on create",
            ));
        }
        for (index, volume) in spec.volumes.iter().flatten().enumerate() {
            if let Some(image) = &volume.image {
                // Templates may leave the reference out.
                let field = format!("spec.volumes[{index}].image.reference");
                required(&mut errors, &field, image.reference.as_deref());
            }
        }
        let on_node = spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
        if on_node && spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
            let detail = "cannot be set until all schedulingGates have been cleared";
            errors.push(Invalid::forbidden("spec.nodeName", detail));
        }
        let own = self.metadata.annotations.as_ref();
        annotations::of_pod(&mut errors, own, spec, ANNOTATIONS);
        annotations::contradictions(&mut errors, own, spec, "spec");
        errors.extend(unsupported(spec));
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        update::validate(self, old)
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        status::validate(self, old)
    }

    /// Grace period. A pod without a node, or one that has terminated, is deleted immediately;
    /// otherwise the pod's own period, at least a second.
    fn grace(&self, requested: Option<i64>) -> i64 {
        let Some(spec) = &self.spec else { return 0 };
        let on_node = spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
        if !on_node || crate::workload::pod::is_terminal(self) {
            return 0;
        }
        let period = requested.or(spec.termination_grace_period_seconds).unwrap_or(0);
        if period < 0 { 1 } else { period }
    }
}

/// Keeps observed generations that a client leaves out because it does not know the field.
fn keep_generations(new: &mut PodStatus, old: &PodStatus) {
    new.observed_generation = new.observed_generation.or(old.observed_generation);
    for condition in new.conditions.iter_mut().flatten() {
        let before = old
            .conditions
            .iter()
            .flatten()
            .find(|before| before.type_ == condition.type_);
        let before = before.and_then(|before| before.observed_generation);
        condition.observed_generation = condition.observed_generation.or(before);
    }
}

fn gated_condition(since: Option<Time>) -> PodCondition {
    PodCondition {
        last_transition_time: since,
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("SchedulingGated".to_owned()),
        message: Some("Scheduling is blocked due to non-empty scheduling gates".to_owned()),
        ..PodCondition::default()
    }
}

fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

fn of_spec(pod: &Pod, field: fn(&PodSpec) -> Option<&String>) -> String {
    spec(pod).and_then(field).cloned().unwrap_or_default()
}

fn address(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref()
}

/// Number of readiness gates that are true, and number of gates.
fn gates(pod: &Pod) -> String {
    let gates = spec(pod)
        .and_then(|spec| spec.readiness_gates.as_deref())
        .unwrap_or_default();
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let is_true =
        |kind: &str| crate::workload::pod::condition(pod, kind).is_some_and(|condition| condition.status == "True");
    let count = gates.iter().filter(|gate| is_true(&gate.condition_type)).count();
    format!("{count}/{}", gates.len())
}
