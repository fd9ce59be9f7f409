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
use super::slices::{Services, Strangers, by_service, exchange, is_stranger};
use crate::context::Context;

/// Service of the API server.
pub(super) const SERVER: (&str, &str) = ("default", "kubernetes");

/// Objects of an incomplete list, and whether a list was ever complete.
struct Listing<T> {
    listed: Vec<(Name, Arc<T>)>,
    complete: bool,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self {
            listed: Vec::new(),
            complete: false,
        }
    }
}

#[derive(Default)]
pub(super) struct Known {
    /// Both are stored in the context, where others read them.
    services: Listing<Service>,
    slices: Listing<Slice>,
    ranges: BTreeMap<String, Vec<Cidr>>,
    listed_ranges: BTreeMap<String, Vec<Cidr>>,
    /// Services with changes.
    changed: BTreeSet<Name>,
    /// Names of Services while the first lists are incomplete.
    names: BTreeSet<Name>,
    strangers: Strangers,
}

impl Known {
    pub(super) fn hear(&mut self, context: &Context, change: Heard) {
        match change {
            Heard::Service(change) => self.hear_of_service(context, *change),
            Heard::Slice(change) => self.hear_of_slice(context, change),
            Heard::Range(change) => self.hear_of_range(change),
        }
        if self.services.complete || self.slices.complete {
            self.names.clear();
        }
        if self.services.complete && self.slices.complete {
            context.names.learn();
        }
    }

    /// Returns the copy of a Service's name that all maps share.
    fn shared(&mut self, context: &Context, name: Name) -> Name {
        let services = context.services.borrow();
        let slices = context.slices();
        let service = services.as_deref().and_then(|services| services.get_key_value(&name));
        let known = service.map(|(known, _)| known);
        let known = known.or_else(|| slices.get_key_value(&name).map(|(known, _)| known));
        if let Some(known) = known.or_else(|| self.names.get(&name)) {
            return known.clone();
        }
        self.names.insert(name.clone());
        name
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
                let name = self.shared(context, name);
                self.services.listed.push((name, Arc::new(service)));
            }
            Event::InitDone => {
                let all: Services = std::mem::take(&mut self.services.listed).into_iter().collect();
                self.services.complete = true;
                let before = context.services.borrow().clone().unwrap_or_default();
                self.changed.extend(before.keys().chain(all.keys()).cloned());
                context.services.send_replace(Some(Arc::new(all)));
            }
            Event::Apply(service) => {
                let (name, service) = Service::new(&service);
                let name = self.shared(context, name);
                let service = Arc::new(service);
                alter(&|all| drop(all.insert(name.clone(), Arc::clone(&service))));
                self.changed.insert(name);
            }
            Event::Delete(service) => {
                let name = self.shared(context, name(&service.metadata));
                alter(&|all| drop(all.remove(&name)));
                self.changed.insert(name);
            }
        }
    }

    fn hear_of_slice(&mut self, context: &Context, change: Event<EndpointSlice>) {
        match change {
            Event::Init => self.slices.listed.clear(),
            Event::InitApply(slice) => {
                if let Some((service, slice)) = Slice::new(&slice, &context.config.node_name) {
                    let service = self.shared(context, service);
                    self.slices.listed.push((service, Arc::new(slice)));
                }
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.slices.listed);
                let strange = listed
                    .iter()
                    .filter(|(service, slice)| is_stranger(service, &slice.name));
                self.strangers = strange
                    .map(|(service, slice)| (Name::new(service.namespace(), &slice.name), service.clone()))
                    .collect();
                let all = by_service(listed);
                self.slices.complete = true;
                let mut known = context.slices();
                self.changed.extend(known.keys().chain(all.keys()).cloned());
                *known = all;
            }
            Event::Apply(slice) => self.replace(context, &slice, false),
            Event::Delete(slice) => self.replace(context, &slice, true),
        }
    }

    /// The slice may belong to another Service from now on.
    fn replace(&mut self, context: &Context, slice: &EndpointSlice, deleted: bool) {
        let own = name(&slice.metadata);
        let now = Slice::new(slice, &context.config.node_name).filter(|_| !deleted);
        let now = now.map(|(service, slice)| (self.shared(context, service), slice));
        let changed = exchange(&mut context.slices(), &mut self.strangers, &own, now);
        self.changed.extend(changed);
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
        let slices = context.slices();
        let inputs = changed.into_iter().map(|name| {
            let input = Input {
                service: services.get(&name).cloned(),
                slices: slices.get(&name).cloned().unwrap_or_default(),
            };
            (name, input)
        });
        let mut inputs: BTreeMap<Name, Input> = inputs.collect();
        drop(slices);
        if let Some(input) = inputs.get_mut(&Name::new(SERVER.0, SERVER.1))
            && input.slices.is_empty()
        {
            let v6 = input.service.as_ref().and_then(|service| service.families().next());
            let server = v6.and_then(|v6| server(context, v6));
            input.slices = server.map(own_slice).map(Arc::new).into_iter().collect();
        }
        Some(inputs)
    }
}

fn cidrs(range: &ServiceCIDR) -> Vec<Cidr> {
    let named = range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    named.filter_map(|text| text.parse().ok()).collect()
}

/// EndpointSlice of the API server if it advertises a loopback address: pods of its machine reach
/// it by the node's address.
fn own_slice(server: SocketAddr) -> Slice {
    let endpoint = Endpoint {
        address: server.ip(),
        ready: true,
        serving: true,
        terminating: false,
        place: Place::Unknown,
        details: None,
    };
    let port = SlicePort {
        name: "https".into(),
        protocol: Protocol::Tcp,
        port: server.port(),
    };
    Slice {
        name: SERVER.1.into(),
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
