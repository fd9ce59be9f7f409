//! The endpoint slices of a Service: its pods, by family and ports, up to 100 per slice.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};

use super::slice::{self, Wanted, delete, group, is_of};
use super::topology::{self, is_topology_aware};
use super::{
    HEADLESS, address_of, answering, families, host_name, is_headless, is_served, number, publishes_unready, reference,
};
use crate::objects::{Map, Meta as _, controller_of, name, target, uid};
use crate::pod::{Pod, is_ready, node_of};
use crate::step::{Plan, SERVICES, Severity, Step};

const MANAGER: &str = "endpointslice-controller.k8s.io";
/// Default `maxEndpointsPerSlice` of kube-controller-manager.
const LIMIT: usize = 100;

/// Endpoints that can share a slice.
pub(super) struct Group {
    pub(super) family: &'static str,
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoints: Vec<Endpoint>,
}

impl Group {
    pub(super) fn key(&self) -> GroupKey {
        group(self.family, &self.ports)
    }
}

/// Family and ports that a slice's endpoints share.
type GroupKey = (String, Vec<String>);

/// The slices that a manager keeps for a Service, by family and ports.
pub(super) fn own_groups<'a>(
    service: &Service,
    slices: &[&'a EndpointSlice],
    manager: &str,
) -> BTreeMap<GroupKey, Vec<&'a EndpointSlice>> {
    let mut own: BTreeMap<_, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| is_of(slice, name(service), manager)) {
        let ports = slice.ports.as_deref().unwrap_or_default();
        own.entry(group(&slice.address_type, ports)).or_default().push(slice);
    }
    for there in own.values_mut() {
        there.sort_by_key(|slice| name(*slice));
    }
    own
}

/// An existing slice and its new endpoints.
struct Filled<'a> {
    slice: &'a EndpointSlice,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

/// Makes the plan. `pods` are those of the namespace, `slices` its own; `zone` returns a node's zone,
/// empty if it is in none, and `None` if there is no such node. `nodes` are all nodes; they are
/// needed only if [`is_topology_aware`].
pub fn plan(
    service: &Service,
    pods: &[&Pod],
    slices: &[&EndpointSlice],
    zone: &dyn Fn(&str) -> Option<String>,
    nodes: &[Arc<Node>],
) -> Plan {
    let mut plan = Plan::default();
    if !is_served(service) {
        return plan;
    }
    let mut own = own_groups(service, slices, MANAGER);
    let mut work = Work::new(service, MANAGER);
    let mut groups = groups(service, pods, zone);
    let events = if is_topology_aware(service) {
        let is_hinted = own.values().flatten().any(|slice| is_hinted(slice));
        hint(service, &mut groups, nodes, is_hinted)
    } else {
        Vec::new()
    };
    for (key, wanted) in groups {
        let there = own.remove(&key).unwrap_or_default();
        work.fill(wanted, &there);
    }
    work.abandon(own.into_values().flatten());
    plan.stage(work.steps());
    plan.stage(events);
    plan
}

fn is_hinted(slice: &EndpointSlice) -> bool {
    let mut endpoints = slice.endpoints.iter().flatten();
    endpoints.any(|endpoint| endpoint.hints.is_some())
}

/// Hints by the zones' capacity, for each family; returns events.
fn hint(
    service: &Service,
    groups: &mut BTreeMap<GroupKey, Group>,
    nodes: &[Arc<Node>],
    mut is_hinted: bool,
) -> Vec<Step> {
    let zones = topology::capacity(nodes.iter().filter_map(|node| topology::share(node)));
    let mut events = Vec::new();
    for family in families(service) {
        let own = groups.values_mut().filter(|group| group.family == family);
        let mut endpoints: Vec<&mut Endpoint> = own.flat_map(|group| &mut group.endpoints).collect();
        let (severity, reason, message) = match topology::hint(&mut endpoints, &zones) {
            Ok(()) if std::mem::replace(&mut is_hinted, true) => continue,
            Ok(()) => (
                Severity::Normal,
                "TopologyAwareHintsEnabled",
                "Topology Aware Hints has been enabled".to_owned(),
            ),
            Err(reason) => (Severity::Warning, "TopologyAwareHintsDisabled", reason),
        };
        let message = format!("{message}, addressType: {family}");
        events.push(Step::Event(target(SERVICES, service).note(severity, reason, message)));
    }
    events
}

/// Desired endpoints by family and ports; a family without pods has one empty slice. Pods of nodes
/// that are gone have no endpoint, unless the Service publishes all addresses
/// (`staging/src/k8s.io/endpointslice/reconciler.go`).
fn groups(service: &Service, pods: &[&Pod], zone: &dyn Fn(&str) -> Option<String>) -> BTreeMap<GroupKey, Group> {
    let mut groups = BTreeMap::new();
    let answering = answering(service, pods, true);
    for family in families(service) {
        let before = groups.len();
        for pod in &answering {
            let Some(address) = address_of(pod, family) else {
                continue;
            };
            let zone = node_of(pod).and_then(zone);
            if zone.is_none() && !publishes_unready(service) {
                continue;
            }
            let ports = ports(service, pod);
            let group = groups.entry(group(family, &ports)).or_insert_with(|| Group {
                family,
                ports,
                endpoints: Vec::new(),
            });
            group.endpoints.push(endpoint(service, pod, address, zone));
        }
        if groups.len() == before {
            let empty = Group {
                family,
                ports: Vec::new(),
                endpoints: Vec::new(),
            };
            groups.insert(group(family, &[]), empty);
        }
    }
    groups
}

/// Creations, updates and deletions of slices.
pub(super) struct Work<'a> {
    service: &'a Service,
    labels: Map,
    updates: Vec<(&'a EndpointSlice, Wanted)>,
    creations: Vec<Wanted>,
    spare: Vec<&'a EndpointSlice>,
}

impl<'a> Work<'a> {
    pub(super) fn new(service: &'a Service, manager: &str) -> Self {
        let mut labels = slice::labels(service.metadata.labels.as_ref(), name(service), manager);
        labels.remove(HEADLESS);
        if is_headless(service) {
            labels.insert(HEADLESS.to_owned(), String::new());
        }
        Self {
            service,
            labels,
            updates: Vec::new(),
            creations: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn wanted(&self, family: &'static str, ports: &[EndpointPort], endpoints: Vec<Endpoint>) -> Wanted {
        Wanted {
            family,
            labels: self.labels.clone(),
            annotations: None,
            ports: ports.to_vec(),
            endpoints,
        }
    }

    /// Keeps endpoints in their slices; new ones fill slices that change anyway, then others, then
    /// new slices.
    pub(super) fn fill(&mut self, wanted: Group, there: &[&'a EndpointSlice]) {
        let Group {
            family,
            ports,
            endpoints: mut rest,
        } = wanted;
        let is_empty = rest.is_empty();
        let (own, foreign): (Vec<_>, Vec<_>) = there.iter().copied().partition(|slice| self.owns(slice));
        self.spare.extend(foreign);
        let mut filled: Vec<Filled<'_>> = own.into_iter().map(|slice| keep(slice, &mut rest)).collect();
        for slice in filled.iter_mut().filter(|slice| slice.changed) {
            let room = LIMIT.saturating_sub(slice.endpoints.len()).min(rest.len());
            slice.endpoints.extend(rest.drain(..room));
        }
        let fits = |slice: &&mut Filled<'_>| slice.endpoints.len() + rest.len() <= LIMIT;
        if !rest.is_empty()
            && let Some(slice) = filled.iter_mut().filter(|slice| !slice.changed).find(fits)
        {
            slice.endpoints.append(&mut rest);
        }
        let mut placeholder = is_empty;
        for Filled { slice, endpoints, .. } in filled {
            if endpoints.is_empty() && !std::mem::take(&mut placeholder) {
                self.spare.push(slice);
            } else {
                let wanted = self.wanted(family, &ports, endpoints);
                self.updates.push((slice, wanted));
            }
        }
        for chunk in rest.chunks(LIMIT) {
            let wanted = self.wanted(family, &ports, chunk.to_vec());
            self.creations.push(wanted);
        }
        if placeholder {
            let wanted = self.wanted(family, &ports, Vec::new());
            self.creations.push(wanted);
        }
    }

    /// Releases slices without endpoints.
    pub(super) fn abandon(&mut self, slices: impl Iterator<Item = &'a EndpointSlice>) {
        self.spare.extend(slices);
    }

    /// True if the slice belongs to this Service, not to an earlier one of the same name.
    fn owns(&self, slice: &EndpointSlice) -> bool {
        controller_of(&slice.metadata).is_some_and(|owner| owner.uid == uid(self.service))
    }

    /// Reuses unneeded slices for those that would be created.
    pub(super) fn steps(mut self) -> Vec<Step> {
        let owner = target(SERVICES, self.service);
        let mut steps = Vec::new();
        for wanted in std::mem::take(&mut self.creations) {
            let fits = |slice: &&EndpointSlice| slice.address_type == wanted.family && self.owns(slice);
            match self.spare.iter().position(fits) {
                Some(at) => steps.extend(wanted.update(self.spare.remove(at))),
                None => steps.push(wanted.create(&owner)),
            }
        }
        steps.extend(self.updates.iter().filter_map(|(slice, wanted)| wanted.update(slice)));
        steps.extend(self.spare.iter().map(|slice| delete(slice)));
        steps
    }
}

/// Endpoints of a slice that remain, in their current order; takes them out of `rest`.
fn keep<'a>(slice: &'a EndpointSlice, rest: &mut Vec<Endpoint>) -> Filled<'a> {
    let old = slice.endpoints.as_deref().unwrap_or_default();
    let same = |new: &Endpoint, old: &Endpoint| {
        let uid = |endpoint: &Endpoint| endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
        new.addresses == old.addresses && uid(new) == uid(old)
    };
    let kept = old.iter().filter_map(|old| {
        let at = rest.iter().position(|new| same(new, old))?;
        Some(rest.remove(at))
    });
    let endpoints: Vec<Endpoint> = kept.take(LIMIT).collect();
    let changed = endpoints != old;
    Filled {
        slice,
        endpoints,
        changed,
    }
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let all = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    let known = all.unwrap_or_default().iter().filter_map(|port| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number(port, pod)?),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
    });
    known.collect()
}

/// Address in the form that slices take (`getEndpointAddresses` of
/// `staging/src/k8s.io/endpointslice/utils.go`).
pub(super) fn canonical(address: &str) -> String {
    let read = address.parse::<IpAddr>();
    read.map_or_else(|_| address.to_owned(), |address| address.to_string())
}

fn endpoint(service: &Service, pod: &Pod, address: &str, zone: Option<String>) -> Endpoint {
    let serving = is_ready(pod);
    let terminating = pod.metadata.is_deleting();
    let ready = publishes_unready(service) || (serving && !terminating);
    let (node, zone) = (node_of(pod), zone.filter(|zone| !zone.is_empty()));
    Endpoint {
        addresses: vec![canonical(address)],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: if ready {
            hints(service, node, zone.as_deref())
        } else {
            None
        },
        hostname: host_name(service, pod),
        node_name: node.map(str::to_owned),
        target_ref: Some(reference(pod)),
        zone,
        ..Endpoint::default()
    }
}

/// Hints for the proxies of the endpoint's own zone or node, by `trafficDistribution`
/// (`staging/src/k8s.io/endpointslice/trafficdist/trafficdist.go`).
fn hints(service: &Service, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let is_known = matches!(distribution, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    if !is_known || is_topology_aware(service) {
        return None;
    }
    let node = node.filter(|_| distribution == "PreferSameNode");
    (node.is_some() || zone.is_some()).then(|| EndpointHints {
        for_nodes: node.map(|name| vec![ForNode { name: name.to_owned() }]),
        for_zones: zone.map(|name| vec![ForZone { name: name.to_owned() }]),
    })
}
