//! What an operator says of a new Node (`initialNode`, `pkg/kubelet/kubelet_node_status.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;

/// Taint that keeps pods away until the node is ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Taint of a Node that a cloud controller manager has not initialized yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// What the operator says of the Node.
#[derive(Clone, Debug, Default)]
pub struct Registration {
    /// Labels besides the usual ones.
    pub labels: BTreeMap<String, String>,
    /// Taints of a new Node.
    pub taints: Vec<Taint>,
    /// `spec.providerID` of a new Node.
    pub provider_id: Option<String>,
    /// True if a cloud controller manager initializes the Node and says its addresses.
    pub external_cloud: bool,
}

impl Registration {
    /// Returns all taints of a new Node.
    pub fn all_taints(&self) -> Vec<Taint> {
        let taint = |key: &str, value: Option<&str>| Taint {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let mut taints = vec![taint(NOT_READY, None)];
        taints.extend(self.taints.iter().filter(|own| own.key != NOT_READY).cloned());
        taints.extend(self.external_cloud.then(|| taint(UNINITIALIZED, Some("true"))));
        taints
    }
}
