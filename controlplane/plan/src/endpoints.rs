//! The endpoint slice of a Service: which pods answer for it.

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service, ServicePort},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use serde_json::json;

use crate::{
    objects::{Map, controlled_by, controller_of, is_finished, is_ready, node_of, target, uid},
    step::{ENDPOINT_SLICES, Outcome, PatchKind, Plan, SERVICES, Step},
};

/// The label that names the Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
/// What the API allows in one slice.
const LIMIT: usize = 1000;

/// Whether a Service selects a pod.
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        let labels = pod.metadata.labels.as_ref();
        !selector.is_empty()
            && selector
                .iter()
                .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    })
}

/// Makes the plan: one slice a Service, of at most 1000 pods. `pods` are those of the namespace.
pub fn plan(service: &Service, pods: &[&Pod], slices: &[&EndpointSlice]) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = service.spec.as_ref() else { return plan };
    let external = spec.type_.as_deref() == Some("ExternalName");
    if external || service.metadata.deletion_timestamp.is_some() || spec.selector.as_ref().is_none_or(Map::is_empty) {
        return plan;
    }
    let unready = spec.publish_not_ready_addresses == Some(true);
    let mut selected: Vec<&Pod> = pods
        .iter()
        .copied()
        .filter(|pod| selects(service, pod) && !is_finished(pod))
        .collect();
    selected.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let endpoints: Vec<Endpoint> = selected
        .iter()
        .filter_map(|pod| endpoint(pod, unready))
        .take(LIMIT)
        .collect();
    let ports: Vec<EndpointPort> = spec
        .ports
        .iter()
        .flatten()
        .filter_map(|port| resolve(port, &selected))
        .collect();
    let own = slices.iter().find(|slice| {
        controller_of(&slice.metadata).is_some_and(|owner| owner.uid == uid(service))
            && slice.metadata.deletion_timestamp.is_none()
    });
    match own {
        None => plan.stage(vec![create(service, endpoints, ports)]),
        Some(slice) => {
            let same = slice.endpoints.as_deref().unwrap_or_default() == endpoints.as_slice()
                && slice.ports.as_deref().unwrap_or_default() == ports.as_slice();
            if !same {
                plan.stage(vec![Step::Patch {
                    target: target(ENDPOINT_SLICES, *slice),
                    subresource: None,
                    kind: PatchKind::Merge,
                    body: Box::new(json!({
                        "metadata": {
                            "uid": slice.metadata.uid, "resourceVersion": slice.metadata.resource_version,
                        },
                        "endpoints": endpoints, "ports": ports,
                    })),
                    outcome: Outcome::default(),
                }]);
            }
        }
    }
    plan
}

fn create(service: &Service, endpoints: Vec<Endpoint>, ports: Vec<EndpointPort>) -> Step {
    let owner = target(SERVICES, service);
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), owner.name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let slice = EndpointSlice {
        address_type: "IPv4".to_owned(),
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name)),
            namespace: Some(owner.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![controlled_by(&owner)]),
            ..ObjectMeta::default()
        },
        endpoints: Some(endpoints),
        ports: Some(ports),
    };
    Step::Create {
        resource: ENDPOINT_SLICES,
        namespace: owner.namespace,
        body: Box::new(json!(slice)),
        outcome: Outcome::default(),
    }
}

fn endpoint(pod: &Pod, publish_unready: bool) -> Option<Endpoint> {
    let address = pod
        .status
        .as_ref()?
        .pod_ip
        .clone()
        .filter(|address| !address.is_empty())?;
    let serving = is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    Some(Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(publish_unready || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        node_name: node_of(pod).map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

/// The number behind a Service's port; a name is looked up in the pods, the first that knows it decides.
fn resolve(port: &ServicePort, pods: &[&Pod]) -> Option<EndpointPort> {
    let number = match port.target_port.as_ref() {
        None => port.port,
        Some(IntOrString::Int(number)) if *number == 0 => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            let containers = pods
                .iter()
                .filter_map(|pod| pod.spec.as_ref())
                .flat_map(|spec| &spec.containers);
            let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
            ports.find(|known| known.name.as_ref() == Some(name))?.container_port
        }
    };
    Some(EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(number),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    })
}
