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

/// EndpointSlices by Service, those of each in the order of their names.
pub(crate) type Slices = BTreeMap<Name, Arc<[Arc<Slice>]>>;

/// Services of the slices whose names do not begin with those of their Services.
type Strangers = BTreeMap<Name, Name>;

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

/// Groups EndpointSlices by Service.
pub(crate) fn by_service(mut listed: Vec<(Name, Arc<Slice>)>) -> Slices {
    listed.sort_by(|(service, own), (other, another)| (service, &own.name).cmp(&(other, &another.name)));
    let each = listed.chunk_by(|(service, _), (other, _)| service == other);
    each.filter_map(|same| {
        let (service, _) = same.first()?;
        let slices = same.iter().map(|(_, slice)| Arc::clone(slice)).collect();
        Some((service.clone(), slices))
    })
    .collect()
}

/// Replaces a slice of a Service; `true` if the new one differs.
fn put(known: &mut Slices, service: &Name, own: &str, slice: Option<Slice>) -> bool {
    let all = slices_of(known, service).iter().cloned();
    let (before, mut all): (Vec<_>, Vec<_>) = all.partition(|slice| *slice.name == *own);
    if before.first().map(|slice| &**slice) == slice.as_ref() {
        return false;
    }
    all.extend(slice.map(Arc::new));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    if all.is_empty() {
        known.remove(service);
    } else {
        known.insert(service.clone(), all.into());
    }
    true
}

/// Replaces a slice, in whatever Service it was; returns the Services that change.
fn exchange(known: &mut Slices, strangers: &mut Strangers, own: &Name, now: Option<(Name, Slice)>) -> Vec<Name> {
    let mut changed = Vec::new();
    if let Some(before) = service_of(known, strangers, own)
        && now.as_ref().is_none_or(|(service, _)| *service != before)
    {
        put(known, &before, own.name(), None);
        changed.push(before);
    }
    strangers.remove(own);
    if let Some((service, slice)) = now {
        if is_stranger(&service, own.name()) {
            strangers.insert(own.clone(), service.clone());
        }
        if put(known, &service, own.name(), Some(slice)) {
            changed.push(service);
        }
    }
    changed
}

fn is_stranger(service: &Name, own: &str) -> bool {
    let rest = own.strip_prefix(service.name());
    rest.is_none_or(|rest| !rest.is_empty() && !rest.starts_with('-'))
}

/// Returns the Service that a slice belongs to.
fn service_of(known: &Slices, strangers: &Strangers, own: &Name) -> Option<Name> {
    let (namespace, own_name) = own.parts();
    let ends = own_name.match_indices('-').map(|(end, _)| end).chain([own_name.len()]);
    let named = ends.filter_map(|end| Some(Name::new(namespace, own_name.get(..end)?)));
    let has = |service: &Name| slices_of(known, service).iter().any(|slice| *slice.name == *own_name);
    named.chain(strangers.get(own).cloned()).find(has)
}

/// Returns the slices of a Service.
pub(crate) fn slices_of<'a>(known: &'a Slices, service: &Name) -> &'a [Arc<Slice>] {
    known.get(service).map(|slices| &**slices).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(service: &str, own: &str, address: &str) -> (Name, Arc<Slice>) {
        let metadata = json!({"namespace": "team", "name": own, "labels": {"kubernetes.io/service-name": service}});
        let slice = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [{"addresses": [address]}]});
        let (service, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
        (service, Arc::new(slice))
    }

    fn shown(known: &Slices) -> String {
        let each = known.iter().map(|(service, slices)| {
            let names: Vec<&str> = slices.iter().map(|slice| &*slice.name).collect();
            format!("{}/{}: {}", service.namespace(), service.name(), names.join(" "))
        });
        each.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_slice_may_move_to_another_service() {
        let mut known = by_service(vec![
            slice("b", "b-2", "10.0.0.2"),
            slice("a", "a-1", "10.0.0.3"),
            slice("b", "b-1", "10.0.0.1"),
        ]);
        let mut strangers = Strangers::new();
        assert_eq!(shown(&known), "team/a: a-1, team/b: b-1 b-2");
        let table = [
            ("b", "b-1", Some("10.0.0.1"), "", "team/a: a-1, team/b: b-1 b-2"),
            ("b", "b-1", Some("10.0.0.9"), "b", "team/a: a-1, team/b: b-1 b-2"),
            ("a", "b-1", Some("10.0.0.9"), "b a", "team/a: a-1 b-1, team/b: b-2"),
            ("a", "b-1", Some("10.0.0.8"), "a", "team/a: a-1 b-1, team/b: b-2"),
            (
                "c-d",
                "b-1",
                Some("10.0.0.8"),
                "a c-d",
                "team/a: a-1, team/b: b-2, team/c-d: b-1",
            ),
            (
                "c-d",
                "c-d",
                Some("10.0.0.8"),
                "c-d",
                "team/a: a-1, team/b: b-2, team/c-d: b-1 c-d",
            ),
            ("c-d", "c-d", None, "c-d", "team/a: a-1, team/b: b-2, team/c-d: b-1"),
            ("c-d", "unknown", None, "", "team/a: a-1, team/b: b-2, team/c-d: b-1"),
            ("b", "b-1", Some("10.0.0.8"), "c-d b", "team/a: a-1, team/b: b-1 b-2"),
            ("b", "b-2", None, "b", "team/a: a-1, team/b: b-1"),
        ];
        for (service, own, address, changed, after) in table {
            let now = address.map(|address| slice(service, own, address));
            let now = now.map(|(service, slice)| (service, Slice::clone(&slice)));
            let told = exchange(&mut known, &mut strangers, &Name::new("team", own), now);
            let told: Vec<&str> = told.iter().map(Name::name).collect();
            assert_eq!(
                (told.join(" ").as_str(), shown(&known).as_str()),
                (changed, after),
                "{own}"
            );
        }
        assert!(strangers.is_empty(), "{strangers:?}");
    }
}
