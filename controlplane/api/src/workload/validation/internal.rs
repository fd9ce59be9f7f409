//! Structures as upstream shows them in errors: with the fields of its internal types, by their Go
//! names, including absent ones.

use k8s_openapi::api::apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, SecurityContext, Toleration, VolumeNodeAffinity,
};
use k8s_openapi::api::networking::v1::ParentReference;
use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;
use k8s_openapi::api::storage::v1::{CSINodeDriver, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

const NULL: &str = "null";

/// Structure in Go's notation, built field by field.
#[derive(Default)]
struct Fields(String);

impl Fields {
    fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_string(&value).unwrap_or_default();
        self.put(name, &value);
        self
    }

    /// Adds a nested structure.
    fn inner(mut self, name: &str, value: Option<Self>) -> Self {
        self.put(name, &value.map_or_else(|| NULL.to_owned(), Self::end));
        self
    }

    /// Adds a list of nested structures.
    fn list(mut self, name: &str, items: Option<impl Iterator<Item = Self>>) -> Self {
        let items = items.map(|items| items.map(Self::end).collect::<Vec<_>>().join(","));
        self.put(
            name,
            &items.map_or_else(|| NULL.to_owned(), |items| format!("[{items}]")),
        );
        self
    }

    fn put(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.extend([&format!("{name:?}:"), value]);
    }

    fn end(self) -> String {
        self.0 + "}"
    }
}

/// Text that is empty if absent, since upstream's type is not a pointer.
fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

pub(crate) fn toleration(own: &Toleration) -> String {
    Fields::default()
        .with("Key", text(own.key.as_ref()))
        .with("Operator", text(own.operator.as_ref()))
        .with("Value", text(own.value.as_ref()))
        .with("Effect", text(own.effect.as_ref()))
        .with("TolerationSeconds", own.toleration_seconds)
        .end()
}

pub(crate) fn disruption_budget(own: &PodDisruptionBudgetSpec) -> String {
    Fields::default()
        .with("MinAvailable", &own.min_available)
        .with("Selector", &own.selector)
        .with("MaxUnavailable", &own.max_unavailable)
        .with("UnhealthyPodEvictionPolicy", &own.unhealthy_pod_eviction_policy)
        .end()
}

pub(crate) fn update_strategy(own: &StatefulSetUpdateStrategy) -> String {
    Fields::default()
        .with("Type", text(own.type_.as_ref()))
        .inner("RollingUpdate", own.rolling_update.as_ref().map(rolling))
        .end()
}

/// Strategy of a Deployment or `DaemonSet`, with `maxUnavailable` and `maxSurge`.
pub(crate) fn strategy(kind: Option<&String>, rolling: Option<(Option<&IntOrString>, Option<&IntOrString>)>) -> String {
    let zero = IntOrString::Int(0);
    let rolling = rolling.map(|(unavailable, surge)| {
        Fields::default()
            .with("MaxUnavailable", unavailable.unwrap_or(&zero))
            .with("MaxSurge", surge.unwrap_or(&zero))
    });
    Fields::default()
        .with("Type", text(kind))
        .inner("RollingUpdate", rolling)
        .end()
}

pub(crate) fn rolling_update(own: &RollingUpdateStatefulSetStrategy) -> String {
    rolling(own).end()
}

fn rolling(own: &RollingUpdateStatefulSetStrategy) -> Fields {
    Fields::default()
        .with("Partition", own.partition.unwrap_or(0))
        .with("MaxUnavailable", &own.max_unavailable)
}

pub(crate) fn security_context(own: &SecurityContext) -> String {
    let capabilities = own.capabilities.as_ref().map(|own| {
        let fields = Fields::default().with("Add", &own.add);
        fields.with("Drop", &own.drop)
    });
    let linux = own.se_linux_options.as_ref().map(|own| {
        let fields = Fields::default().with("User", text(own.user.as_ref()));
        let fields = fields.with("Role", text(own.role.as_ref()));
        let fields = fields.with("Type", text(own.type_.as_ref()));
        fields.with("Level", text(own.level.as_ref()))
    });
    let windows = own.windows_options.as_ref().map(|own| {
        let fields = Fields::default().with("GMSACredentialSpecName", &own.gmsa_credential_spec_name);
        let fields = fields.with("GMSACredentialSpec", &own.gmsa_credential_spec);
        let fields = fields.with("RunAsUserName", &own.run_as_user_name);
        fields.with("HostProcess", own.host_process)
    });
    let profile = |kind: &str, file: &Option<String>| {
        let fields = Fields::default().with("Type", kind);
        fields.with("LocalhostProfile", file)
    };
    let seccomp = own.seccomp_profile.as_ref();
    let apparmor = own.app_armor_profile.as_ref();
    Fields::default()
        .inner("Capabilities", capabilities)
        .with("Privileged", own.privileged)
        .inner("SELinuxOptions", linux)
        .inner("WindowsOptions", windows)
        .with("RunAsUser", own.run_as_user)
        .with("RunAsGroup", own.run_as_group)
        .with("RunAsNonRoot", own.run_as_non_root)
        .with("ReadOnlyRootFilesystem", own.read_only_root_filesystem)
        .with("AllowPrivilegeEscalation", own.allow_privilege_escalation)
        .with("ProcMount", &own.proc_mount)
        .inner(
            "SeccompProfile",
            seccomp.map(|own| profile(&own.type_, &own.localhost_profile)),
        )
        .inner(
            "AppArmorProfile",
            apparmor.map(|own| profile(&own.type_, &own.localhost_profile)),
        )
        .end()
}

/// Terms of a node selector; null if there are none.
pub(crate) fn node_selector_terms(own: &[NodeSelectorTerm]) -> String {
    if own.is_empty() {
        return NULL.to_owned();
    }
    let own: Vec<String> = own.iter().map(node_selector_term).collect();
    format!("[{}]", own.join(","))
}

pub(crate) fn node_selector_term(own: &NodeSelectorTerm) -> String {
    term(own).end()
}

fn term(own: &NodeSelectorTerm) -> Fields {
    let requirement = |own: &NodeSelectorRequirement| {
        let fields = Fields::default().with("Key", &own.key);
        fields.with("Operator", &own.operator).with("Values", &own.values)
    };
    let expressions = own.match_expressions.as_ref().map(|all| all.iter().map(requirement));
    let fields = own.match_fields.as_ref().map(|all| all.iter().map(requirement));
    Fields::default()
        .list("MatchExpressions", expressions)
        .list("MatchFields", fields)
}

pub(crate) fn volume_node_affinity(own: Option<&VolumeNodeAffinity>) -> String {
    let Some(own) = own else { return NULL.to_owned() };
    let required = own.required.as_ref().map(|own| {
        let terms = own.node_selector_terms.iter().map(term);
        Fields::default().list("NodeSelectorTerms", Some(terms))
    });
    Fields::default().inner("Required", required).end()
}

pub(crate) fn attachment(own: &VolumeAttachmentSpec) -> String {
    let source = Fields::default()
        .with("PersistentVolumeName", &own.source.persistent_volume_name)
        .with("InlineVolumeSpec", &own.source.inline_volume_spec);
    Fields::default()
        .with("Attacher", &own.attacher)
        .inner("Source", Some(source))
        .with("NodeName", &own.node_name)
        .end()
}

/// Storage driver of a node without its allocatable resources.
pub(crate) fn storage_driver(own: &CSINodeDriver) -> String {
    Fields::default()
        .with("Name", &own.name)
        .with("NodeID", &own.node_id)
        .with("TopologyKeys", &own.topology_keys)
        .inner("Allocatable", None)
        .end()
}

pub(crate) fn parent(own: &ParentReference) -> String {
    Fields::default()
        .with("Group", text(own.group.as_ref()))
        .with("Resource", &own.resource)
        .with("Namespace", text(own.namespace.as_ref()))
        .with("Name", &own.name)
        .end()
}
