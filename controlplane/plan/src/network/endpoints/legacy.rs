//! `Endpoints`: the predecessor of endpoint slices, one object for all pods of a Service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service};
use serde_json::{Value, json};

use super::{
    HEADLESS, address_of, answering, change_of, families, host_name, is_headless, is_served, number, publishes_unready,
    reference,
};
use crate::objects::{Map, name, target};
use crate::pod::{Pod, is_ready, node_of};
use crate::step::{ENDPOINTS, Outcome, Plan, Step};

/// Label of `Endpoints` that this controller manages.
pub const MANAGED: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Most addresses in one object.
const CAPACITY: usize = 1000;

/// Name, number, protocol and application protocol of a port, in sort order.
type Port = (Option<String>, i32, String, Option<String>);

/// Addresses with the same ports.
#[derive(Default)]
struct Addresses {
    ready: Vec<EndpointAddress>,
    others: Vec<EndpointAddress>,
}

/// Makes the plan. Without a Service the `Endpoints` of its name are deleted.
pub fn plan(service: Option<&Service>, pods: &[&Pod], endpoints: Option<&Endpoints>) -> Plan {
    let mut plan = Plan::default();
    let Some(service) = service else {
        plan.stage(endpoints.map(delete).into_iter().collect());
        return plan;
    };
    let going = endpoints.is_some_and(|endpoints| endpoints.metadata.deletion_timestamp.is_some());
    if !is_served(service) || going {
        return plan;
    }
    let (subsets, truncated) = truncate(subsets(service, pods));
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED.to_owned(), MANAGER.to_owned());
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let step = match endpoints {
        None => Some(create(service, &labels, &subsets, truncated)),
        Some(endpoints) => update(endpoints, &labels, &subsets, truncated),
    };
    plan.stage(step.into_iter().collect());
    plan
}

fn delete(endpoints: &Endpoints) -> Step {
    target(ENDPOINTS, endpoints).delete()
}

fn create(service: &Service, labels: &Map, subsets: &[EndpointSubset], truncated: bool) -> Step {
    let mut metadata = json!({ "name": name(service), "labels": labels });
    if truncated && let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("annotations".to_owned(), json!({ OVER_CAPACITY: "truncated" }));
    }
    Step::Create {
        resource: ENDPOINTS,
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        body: Box::new(json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": shown(subsets),
        })),
        outcome: Outcome::default(),
    }
}

/// Subsets as the API shows them: absent if empty.
fn shown(subsets: &[EndpointSubset]) -> Value {
    if subsets.is_empty() {
        Value::Null
    } else {
        json!(subsets)
    }
}

fn update(endpoints: &Endpoints, labels: &Map, subsets: &[EndpointSubset], truncated: bool) -> Option<Step> {
    let metadata = &endpoints.metadata;
    let mark = metadata.annotations.as_ref().and_then(|all| all.get(OVER_CAPACITY));
    let wanted = truncated.then_some("truncated");
    let same = endpoints.subsets.as_deref().unwrap_or_default() == subsets
        && metadata.labels.as_ref() == Some(labels)
        && mark.map(String::as_str) == wanted;
    if same {
        return None;
    }
    Some(target(ENDPOINTS, endpoints).merge(json!({
        "metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "labels": change_of(metadata.labels.as_ref(), labels),
            "annotations": { OVER_CAPACITY: wanted },
        },
        "subsets": shown(subsets),
    })))
}

/// Groups addresses by ports, ready ones apart from the others.
fn subsets(service: &Service, pods: &[&Pod]) -> Vec<EndpointSubset> {
    let unready = publishes_unready(service);
    let Some(family) = families(service).first().copied() else {
        return Vec::new();
    };
    let mut by_ports: BTreeMap<Vec<Port>, Addresses> = BTreeMap::new();
    for pod in answering(service, pods, unready) {
        let Some(address) = address_of(pod, family) else {
            continue;
        };
        let Some(ports) = ports(service, pod) else { continue };
        let group = by_ports.entry(ports).or_default();
        let list = if unready || is_ready(pod) {
            &mut group.ready
        } else {
            &mut group.others
        };
        list.push(endpoint(service, pod, address));
    }
    let subset = |(ports, addresses): (Vec<_>, Addresses)| EndpointSubset {
        addresses: sorted(addresses.ready),
        not_ready_addresses: sorted(addresses.others),
        ports: Some(ports.into_iter().map(port).collect::<Vec<_>>()).filter(|ports| !ports.is_empty()),
    };
    by_ports.into_iter().map(subset).collect()
}

fn port((name, port, protocol, app_protocol): Port) -> EndpointPort {
    EndpointPort {
        name,
        port,
        protocol: Some(protocol),
        app_protocol,
    }
}

fn sorted(mut addresses: Vec<EndpointAddress>) -> Option<Vec<EndpointAddress>> {
    let uid = |address: &EndpointAddress| address.target_ref.as_ref().and_then(|target| target.uid.clone());
    addresses.sort_by_key(|address| (address.ip.parse::<IpAddr>().ok(), uid(address)));
    Some(addresses).filter(|addresses| !addresses.is_empty())
}

/// The pod's ports in sort order; `None` if it has none of the Service's ports. Only a headless
/// Service may have no ports.
fn ports(service: &Service, pod: &Pod) -> Option<Vec<Port>> {
    let spec = service.spec.as_ref()?;
    let all = spec.ports.as_deref().unwrap_or_default();
    if all.is_empty() {
        return (spec.cluster_ip.as_deref() == Some("None")).then(Vec::new);
    }
    let known = all.iter().filter_map(|port| {
        let name = port.name.clone().filter(|name| !name.is_empty());
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some((name, number(port, pod)?, protocol, port.app_protocol.clone()))
    });
    let mut known: Vec<_> = known.collect();
    known.sort();
    known.dedup();
    Some(known).filter(|known| !known.is_empty())
}

fn endpoint(service: &Service, pod: &Pod, address: &str) -> EndpointAddress {
    EndpointAddress {
        hostname: host_name(service, pod),
        ip: address.to_owned(),
        node_name: node_of(pod).map(str::to_owned),
        target_ref: Some(reference(pod)),
    }
}

/// Truncates to the capacity of one object: ready addresses first, and each subset gets its share.
fn truncate(mut subsets: Vec<EndpointSubset>) -> (Vec<EndpointSubset>, bool) {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| count(&subset.addresses)).sum();
    let others: usize = subsets.iter().map(|subset| count(&subset.not_ready_addresses)).sum();
    if ready + others <= CAPACITY {
        return (subsets, false);
    }
    let too_many_ready = ready > CAPACITY;
    let (room, total) = if too_many_ready {
        (CAPACITY, ready)
    } else {
        (CAPACITY - ready, others)
    };
    let mut left = room;
    for subset in &mut subsets {
        let list = if too_many_ready {
            subset.not_ready_addresses = None;
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        let share = (count(list) * room).div_ceil(total.max(1)).min(left);
        if let Some(addresses) = list {
            addresses.truncate(share);
            left -= addresses.len();
        }
        list.take_if(|addresses| addresses.is_empty());
    }
    subsets.retain(|subset| subset.addresses.is_some() || subset.not_ready_addresses.is_some());
    (subsets, true)
}
