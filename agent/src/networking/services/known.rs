//! Known Services and their endpoints, and which of them have changed since the last call.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use agent_plan::network::proxy::{Endpoint, Input, Name, Place, Protocol, Service, Slice, SlicePort, name};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::runtime::watcher::Event;
use network::Cidr;

use super::Heard;
use crate::context::Context;

/// Services by namespace and name.
pub(crate) type Services = BTreeMap<Name, Arc<Service>>;

/// EndpointSlices by namespace and name.
pub(crate) type Slices = BTreeMap<Name, Arc<Slice>>;

/// Number of changed Services up to which each is looked up individually.
const FEW: usize = 16;

/// Service of the API server.
pub(super) const SERVER: (&str, &str) = ("default", "kubernetes");

/// Objects of an incomplete list, and whether a list was ever complete.
struct Listing<T> {
    listed: BTreeMap<Name, T>,
    complete: bool,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self {
            listed: BTreeMap::new(),
            complete: false,
        }
    }
}

#[derive(Default)]
pub(super) struct Known {
    /// Both are stored in the context, where others read them.
    services: Listing<Arc<Service>>,
    slices: Listing<Arc<Slice>>,
    ranges: BTreeMap<String, Vec<Cidr>>,
    listed_ranges: BTreeMap<String, Vec<Cidr>>,
    /// Services with changes.
    changed: BTreeSet<Name>,
}

impl Known {
    pub(super) fn hear(&mut self, context: &Context, change: Heard) {
        match change {
            Heard::Service(change) => self.hear_of_service(context, *change),
            Heard::Slice(change) => self.hear_of_slice(context, change),
            Heard::Range(change) => self.hear_of_range(change),
        }
        if self.services.complete && self.slices.complete {
            context.names.learn();
        }
    }

    fn hear_of_service(&mut self, context: &Context, change: Event<k8s_openapi::api::core::v1::Service>) {
        let alter = |change: &dyn Fn(&mut Services)| {
            context
                .services
                .send_modify(|services| change(Arc::make_mut(services.get_or_insert_default())));
        };
        match change {
            Event::Init => self.services.listed.clear(),
            Event::InitApply(service) => {
                let (name, service) = Service::new(&service);
                self.services.listed.insert(name, Arc::new(service));
            }
            Event::InitDone => {
                let all = std::mem::take(&mut self.services.listed);
                self.services.complete = true;
                let before = context.services.borrow().clone().unwrap_or_default();
                self.changed.extend(before.keys().chain(all.keys()).cloned());
                context.services.send_replace(Some(Arc::new(all)));
            }
            Event::Apply(service) => {
                let (name, service) = Service::new(&service);
                let service = Arc::new(service);
                self.changed.insert(name.clone());
                alter(&|all| drop(all.insert(name.clone(), Arc::clone(&service))));
            }
            Event::Delete(service) => {
                let name = name(&service.metadata);
                alter(&|all| drop(all.remove(&name)));
                self.changed.insert(name);
            }
        }
    }

    fn hear_of_slice(&mut self, context: &Context, change: Event<EndpointSlice>) {
        let trim = |slice: &EndpointSlice| Slice::new(slice, &context.config.node_name);
        match change {
            Event::Init => self.slices.listed.clear(),
            Event::InitApply(slice) => {
                let kept = trim(&slice).map(|(name, slice)| (name, Arc::new(slice)));
                self.slices.listed.extend(kept);
            }
            Event::InitDone => {
                let all = std::mem::take(&mut self.slices.listed);
                self.slices.complete = true;
                let mut known = context.slices();
                for ((namespace, _), slice) in known.iter().chain(&all) {
                    self.changed.insert((namespace.clone(), slice.service.to_string()));
                }
                *known = all;
            }
            Event::Apply(slice) => {
                let own = name(&slice.metadata);
                let kept = trim(&slice).map(|(_, slice)| slice);
                self.replace(context, own, kept);
            }
            Event::Delete(slice) => self.replace(context, name(&slice.metadata), None),
        }
    }

    /// The slice may belong to another Service from now on.
    fn replace(&mut self, context: &Context, own: Name, slice: Option<Slice>) {
        let mut known = context.slices();
        let before = known.remove(&own);
        if before.as_deref() != slice.as_ref() {
            let services = before.as_deref().into_iter().chain(slice.as_ref());
            let services = services.map(|slice| (own.0.clone(), slice.service.to_string()));
            self.changed.extend(services);
        }
        if let Some(slice) = slice {
            known.insert(own, Arc::new(slice));
        }
    }

    fn hear_of_range(&mut self, change: Event<ServiceCIDR>) {
        let own = |range: &ServiceCIDR| range.metadata.name.clone().unwrap_or_default();
        match change {
            Event::Init => self.listed_ranges.clear(),
            Event::InitApply(range) => drop(self.listed_ranges.insert(own(&range), cidrs(&range))),
            Event::InitDone => self.ranges = std::mem::take(&mut self.listed_ranges),
            Event::Apply(range) => drop(self.ranges.insert(own(&range), cidrs(&range))),
            Event::Delete(range) => drop(self.ranges.remove(&own(&range))),
        }
    }

    /// CIDRs of the Services' addresses.
    pub(super) fn ranges(&self) -> Vec<Cidr> {
        self.ranges.values().flatten().copied().collect()
    }

    /// Returns changes since the last call; `None` until all objects are listed.
    pub(super) fn take_changed(&mut self, context: &Context) -> Option<BTreeMap<Name, Input>> {
        if !self.services.complete || !self.slices.complete {
            return None;
        }
        let changed = std::mem::take(&mut self.changed);
        let services = context.services.borrow().clone().unwrap_or_default();
        let mut inputs: BTreeMap<Name, Input> = BTreeMap::new();
        for name in changed {
            let input = Input {
                service: services.get(&name).cloned(),
                slices: Vec::new(),
            };
            inputs.insert(name, input);
        }
        add_slices(&context.slices(), &mut inputs);
        if let Some(input) = inputs.get_mut(&(SERVER.0.to_owned(), SERVER.1.to_owned()))
            && input.slices.is_empty()
        {
            let v6 = input.service.as_ref().and_then(|service| service.families().next());
            let server = v6.and_then(|v6| server(context, v6));
            input.slices.extend(server.map(own_slice).map(Arc::new));
        }
        Some(inputs)
    }
}

fn cidrs(range: &ServiceCIDR) -> Vec<Cidr> {
    let named = range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    named.filter_map(|text| text.parse().ok()).collect()
}

fn add_slices(known: &Slices, inputs: &mut BTreeMap<Name, Input>) {
    if inputs.len() > FEW {
        for ((namespace, _), slice) in known {
            if let Some(input) = inputs.get_mut(&(namespace.clone(), slice.service.to_string())) {
                input.slices.push(Arc::clone(slice));
            }
        }
        return;
    }
    for (service, input) in inputs {
        input.slices.extend(slices_of(known, service).cloned());
    }
}

/// Returns the slices of a Service.
pub(crate) fn slices_of<'a>(known: &'a Slices, service: &'a Name) -> impl Iterator<Item = &'a Arc<Slice>> {
    let neighbours = known.range((service.0.clone(), String::new())..);
    let neighbours = neighbours.take_while(move |((namespace, _), _)| *namespace == service.0);
    neighbours
        .map(|(_, slice)| slice)
        .filter(move |slice| *slice.service == *service.1)
}

/// EndpointSlice of the API server if it advertises a loopback address: pods of its machine reach
/// it by the node's address.
fn own_slice(server: SocketAddr) -> Slice {
    let endpoint = Endpoint {
        address: server.ip(),
        hostname: None,
        ready: true,
        serving: true,
        terminating: false,
        place: Place::Unknown,
        hints: None,
    };
    let port = SlicePort {
        name: "https".into(),
        protocol: Protocol::Tcp,
        port: server.port(),
    };
    Slice {
        service: SERVER.1.into(),
        headless: false,
        v6: server.is_ipv6(),
        ports: [port].into(),
        endpoints: [endpoint].into(),
    }
}

/// Address of the API server for pods, of one family. A loopback address of the machine is replaced,
/// since pods have loopback interfaces of their own: by one of the node, else by that of the node in
/// the pods' range.
fn server(context: &Context, v6: bool) -> Option<SocketAddr> {
    let server = context.config.server?;
    if !server.ip().is_loopback() {
        return Some(server).filter(|server| server.is_ipv6() == v6);
    }
    let mut addresses = context.config.addresses.iter().copied();
    let own = addresses.find(|address| address.is_ipv6() == v6 && !address.is_loopback());
    let range = || context.parts.network.served()?.ranges.of_family(v6);
    let own = own.or_else(|| Some(range()?.gateway()));
    own.map(|own| SocketAddr::new(own, server.port()))
}
