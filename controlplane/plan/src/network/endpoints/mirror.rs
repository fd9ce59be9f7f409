//! Endpoint slices that mirror user-written `Endpoints` of Services without a selector.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};

use super::slice::{Wanted, delete, group, is_of, labels};
use super::slices::canonical;
use super::{IPV4, IPV6, family_of, has_selector};
use crate::objects::{Map, annotation, name, target};
use crate::step::{ENDPOINTS, Plan, Severity, Step};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations of `Endpoints` that are not mirrored.
const OWN: [&str; 2] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];
/// Most addresses of one subset that are mirrored.
const LIMIT: usize = 1000;

type Groups = BTreeMap<(String, Vec<String>), (&'static str, Vec<EndpointPort>, Vec<Endpoint>)>;

/// Makes the plan for the name `called`. `slices` are those of the Service of that name.
pub fn plan(called: &str, endpoints: Option<&Endpoints>, service: Option<&Service>, slices: &[&EndpointSlice]) -> Plan {
    let mut plan = Plan::default();
    let own = slices.iter().copied().filter(|slice| is_of(slice, called, MANAGER));
    let Some(endpoints) = endpoints.filter(|endpoints| is_mirrored(endpoints, service)) else {
        plan.stage(own.map(delete).collect());
        return plan;
    };
    let mut spare: Vec<&EndpointSlice> = own.collect();
    spare.sort_by_key(|slice| name(*slice));
    let mut creations = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    for (key, (family, ports, all)) in groups(endpoints) {
        let wanted = Wanted {
            family,
            labels: labels(endpoints.metadata.labels.as_ref(), called, MANAGER),
            annotations: Some(annotations(endpoints)),
            ports,
            endpoints: all,
        };
        let same =
            |slice: &&EndpointSlice| group(&slice.address_type, slice.ports.as_deref().unwrap_or_default()) == key;
        match spare.iter().position(same) {
            Some(at) => steps.extend(wanted.update(spare.remove(at))),
            None => creations.push(wanted),
        }
    }
    let owner = target(ENDPOINTS, endpoints);
    for wanted in creations {
        match spare.iter().position(|slice| slice.address_type == wanted.family) {
            Some(at) => steps.extend(wanted.update(spare.remove(at))),
            None => steps.push(wanted.create(&owner)),
        }
    }
    steps.extend(spare.into_iter().map(delete));
    steps.extend(
        skipped(endpoints)
            .map(|message| Step::Event(owner.note(Severity::Warning, "TooManyAddressesToMirror", message))),
    );
    plan.stage(steps);
    plan
}

/// Message about the addresses above the limit, if there are any.
fn skipped(endpoints: &Endpoints) -> Option<String> {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let subsets = endpoints.subsets.iter().flatten();
    let above = |subset: &EndpointSubset| {
        let all = count(&subset.addresses) + count(&subset.not_ready_addresses);
        all.saturating_sub(LIMIT)
    };
    let skipped: usize = subsets.map(above).sum();
    (skipped > 0).then(|| {
        format!(
            "A max of {LIMIT} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were \
             skipped"
        )
    })
}

fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let skipped = endpoints.metadata.labels.as_ref().and_then(|labels| labels.get(SKIP));
    service.is_some_and(|service| !has_selector(service))
        && skipped.is_none_or(|skip| skip != "true")
        && annotation(&endpoints.metadata, LEADER).is_none()
        && endpoints.metadata.deletion_timestamp.is_none()
}

fn annotations(endpoints: &Endpoints) -> Map {
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !OWN.contains(&key.as_str()));
    annotations
}

/// Groups addresses into one slice for each family and each set of ports.
fn groups(endpoints: &Endpoints) -> Groups {
    let mut groups = Groups::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let others = subset
            .not_ready_addresses
            .iter()
            .flatten()
            .map(|address| (address, false));
        for (address, ready) in ready.chain(others).take(LIMIT) {
            let family = if family_of(&address.ip) == IPV6 { IPV6 } else { IPV4 };
            let (_, _, list) = groups
                .entry(group(family, &ports))
                .or_insert_with(|| (family, ports.clone(), Vec::new()));
            if list.len() < LIMIT {
                list.push(endpoint(address, ready));
            }
        }
    }
    groups
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let port = |port: &k8s_openapi::api::core::v1::EndpointPort| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    };
    subset.ports.iter().flatten().map(port).collect()
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![canonical(&address.ip)],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}
