//! Node: a machine that runs pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, NodeSystemInfo};

mod validation;

use crate::kind::{Field, Kind, Subresource};
use crate::table::{Column, age_column, or};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::amounts;
use crate::workload::warnings::of_range;

/// Path at which an agent asks whether the server needs a connection from it.
pub const REVERSE_CONNECTION: &str = "/skiff/reverse-connection";
/// Protocol of that connection: the server's requests to the agent, over TLS.
pub const REVERSE_PROTOCOL: &str = "skiff-reverse";

impl Kind for Node {
    const SHORT_NAMES: &'static [&'static str] = &["no"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Proxy, Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Status", "The status of the node", |node, _| status(node).into()),
        Column::text("Roles", "The roles of the node", |node, _| roles(node).into()),
        age_column(),
        Column::text("Version", "core.v1.NodeSystemInfo.kubeletVersion", |node, _| {
            info(node, |info| &info.kubelet_version).unwrap_or_default().into()
        }),
        Column::wide("Internal-IP", "core.v1.NodeStatus.addresses", |node, _| {
            address(node, "InternalIP").into()
        }),
        Column::wide("External-IP", "core.v1.NodeStatus.addresses", |node, _| {
            address(node, "ExternalIP").into()
        }),
        Column::wide("OS-Image", "core.v1.NodeSystemInfo.osImage", |node, _| {
            or(info(node, |info| &info.os_image), "<unknown>").into()
        }),
        Column::wide("Kernel-Version", "core.v1.NodeSystemInfo.kernelVersion", |node, _| {
            kernel(node).into()
        }),
        Column::wide(
            "Container-Runtime",
            "core.v1.NodeSystemInfo.containerRuntimeVersion",
            |node, _| or(info(node, |info| &info.container_runtime_version), "<unknown>").into(),
        ),
    ];
    const FIELDS: &'static [Field<Self>] = &[Field::new("spec.unschedulable", |node| {
        node.spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or(false)
            .to_string()
    })];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        // `podCIDR` is the first of `podCIDRs`; if they differ, upstream uses `podCIDR`.
        let first = spec.pod_cidrs.as_ref().and_then(|ranges| ranges.first());
        match &spec.pod_cidr {
            Some(range) if first != Some(range) => spec.pod_cidrs = Some(vec![range.clone()]),
            Some(_) => {}
            None => spec.pod_cidr = first.cloned(),
        }
        let status = self.status.get_or_insert_default();
        // Upstream's type always writes these structs, even before the node agent has reported
        // anything.
        let endpoints = status.daemon_endpoints.get_or_insert_default();
        endpoints.kubelet_endpoint.get_or_insert_default();
        status.node_info.get_or_insert_default();
        for list in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
            amounts(list);
        }
        if status.allocatable.is_none() {
            status.allocatable.clone_from(&status.capacity);
        }
    }

    // A node registers itself with its status, so creation keeps it.
    fn prepare_create(&mut self) {
        drop_config_source(self, None);
        drop_config(self, None);
    }

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        drop_config_source(self, Some(old));
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        drop_config(self, Some(old));
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let spec = self.spec.as_ref();
        let id = spec.and_then(|spec| spec.external_id.as_deref());
        let told = [
            (
                spec.is_some_and(|spec| spec.config_source.is_some()),
                "spec.configSource: the feature is removed",
            ),
            (
                id.is_some_and(|id| !id.is_empty()),
                "spec.externalID: this field is deprecated, and is unused by Kubernetes",
            ),
        ];
        let told = told.into_iter().filter(|(is_set, _)| *is_set);
        let mut warnings: Vec<String> = told.map(|(_, warning)| warning.to_owned()).collect();
        let ranges = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
        for (index, range) in ranges.iter().enumerate() {
            of_range(&mut warnings, range, &format!("spec.podCIDRs[{index}]"));
        }
        warnings
    }

    fn spec_changed(&self, old: &Self) -> bool {
        self.spec != old.spec
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::validate(self)
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        validation::validate_update(self, old)
    }

    fn validate_status(&self, old: &Self) -> Vec<Invalid> {
        validation::validate_update(self, old)
    }
}

/// Drops `configSource`, which upstream no longer supports, unless it was already stored.
fn drop_config_source(node: &mut Node, old: Option<&Node>) {
    let had = old.and_then(|old| old.spec.as_ref()?.config_source.as_ref());
    if let Some(spec) = node.spec.as_mut().filter(|_| had.is_none()) {
        spec.config_source = None;
    }
}

/// The same for the status.
fn drop_config(node: &mut Node, old: Option<&Node>) {
    let had = old.and_then(|old| old.status.as_ref()?.config.as_ref());
    if let Some(status) = node.status.as_mut().filter(|_| had.is_none()) {
        status.config = None;
    }
}

/// `Ready`, `NotReady` or `Unknown`, followed by `SchedulingDisabled` if so.
fn status(node: &Node) -> String {
    let conditions = node
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let mut text = match ready.map(|condition| condition.status.as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        text.push_str(",SchedulingDisabled");
    }
    text
}

fn roles(node: &Node) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in node.metadata.labels.iter().flatten() {
        if let Some(role) = key
            .strip_prefix("node-role.kubernetes.io/")
            .filter(|role| !role.is_empty())
        {
            roles.insert(role);
        } else if key == "kubernetes.io/role" && !value.is_empty() {
            roles.insert(value);
        }
    }
    let roles = roles.into_iter().collect::<Vec<_>>().join(",");
    or(Some(&roles), "<none>").to_owned()
}

fn info(node: &Node, field: fn(&NodeSystemInfo) -> &String) -> Option<&str> {
    node.status.as_ref()?.node_info.as_ref().map(field).map(String::as_str)
}

/// `6.18.0 (amd64)`
fn kernel(node: &Node) -> String {
    let version = or(info(node, |info| &info.kernel_version), "<unknown>");
    match info(node, |info| &info.architecture).filter(|architecture| !architecture.is_empty()) {
        Some(architecture) => format!("{version} ({architecture})"),
        None => version.to_owned(),
    }
}

/// The first address of a type, or `<none>`.
fn address<'a>(node: &'a Node, kind: &str) -> &'a str {
    let mut addresses = node
        .status
        .iter()
        .filter_map(|status| status.addresses.as_ref())
        .flatten();
    or(
        addresses
            .find(|address| address.type_ == kind)
            .map(|address| address.address.as_str()),
        "<none>",
    )
}
