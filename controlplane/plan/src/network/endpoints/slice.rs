//! An endpoint slice: its desired state, and the steps that reach it.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::change_of;
use crate::objects::{Map, controlled_by, target};
use crate::step::{ENDPOINT_SLICES, Outcome, Step, Target};

/// The label that names the Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Desired content of a slice.
pub(super) struct Wanted {
    pub(super) family: &'static str,
    pub(super) labels: Map,
    /// Annotations to set, beside existing ones; `None` leaves all as they are.
    pub(super) annotations: Option<Map>,
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoints: Vec<Endpoint>,
}

/// Labels of the owner, and those by which the slice is found.
pub(super) fn labels(own: Option<&Map>, service: &str, manager: &str) -> Map {
    let mut labels = own.cloned().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), service.to_owned());
    labels.insert(MANAGED_BY.to_owned(), manager.to_owned());
    labels
}

/// True if the slice belongs to this Service and manager, and is not being deleted.
pub(super) fn is_of(slice: &EndpointSlice, service: &str, manager: &str) -> bool {
    let label = |key| slice.metadata.labels.as_ref()?.get(key).map(String::as_str);
    slice.metadata.deletion_timestamp.is_none()
        && label(SERVICE_NAME) == Some(service)
        && label(MANAGED_BY) == Some(manager)
}

/// Key of slices that can hold the same endpoints: the family, and the ports in any order.
pub(super) fn group(family: &str, ports: &[EndpointPort]) -> (String, Vec<String>) {
    let text = |port: &EndpointPort| serde_json::to_string(port).unwrap_or_default();
    let mut ports: Vec<String> = ports.iter().map(text).collect();
    ports.sort_unstable();
    (family.to_owned(), ports)
}

impl Wanted {
    /// Makes a new slice.
    pub(super) fn create(self, owner: &Target) -> Step {
        let slice = EndpointSlice {
            address_type: self.family.to_owned(),
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", owner.name)),
                namespace: Some(owner.namespace.clone()),
                labels: Some(self.labels),
                annotations: self.annotations.filter(|annotations| !annotations.is_empty()),
                owner_references: Some(vec![controlled_by(owner)]),
                ..ObjectMeta::default()
            },
            endpoints: Some(self.endpoints),
            ports: Some(self.ports),
        };
        Step::Create {
            resource: ENDPOINT_SLICES,
            namespace: owner.namespace.clone(),
            body: Box::new(json!(slice)),
            outcome: Outcome::default(),
        }
    }

    /// Updates an existing slice; `None` if it is up to date.
    pub(super) fn update(&self, slice: &EndpointSlice) -> Option<Step> {
        let metadata = &slice.metadata;
        let annotated = self.annotations.as_ref().is_none_or(|wanted| {
            wanted.is_empty() && metadata.annotations.is_none() || metadata.annotations.as_ref() == Some(wanted)
        });
        let same = slice.endpoints.as_deref().unwrap_or_default() == self.endpoints.as_slice()
            && slice.ports.as_deref().unwrap_or_default() == self.ports.as_slice()
            && metadata.labels.as_ref() == Some(&self.labels)
            && annotated;
        if same {
            return None;
        }
        let mut body = json!({
            "metadata": {
                "uid": metadata.uid, "resourceVersion": metadata.resource_version,
                "labels": change_of(metadata.labels.as_ref(), &self.labels),
            },
            "endpoints": self.endpoints, "ports": self.ports,
        });
        if let (Some(wanted), Some(own)) = (&self.annotations, body.get_mut("metadata")) {
            let change = change_of(metadata.annotations.as_ref(), wanted);
            own.as_object_mut()?.insert("annotations".to_owned(), change);
        }
        Some(target(ENDPOINT_SLICES, slice).merge(body))
    }
}

/// Removes a slice.
pub(super) fn delete(slice: &EndpointSlice) -> Step {
    target(ENDPOINT_SLICES, slice).delete()
}
