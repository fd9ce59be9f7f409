//! DNS server of the cluster on this node: pods of the built-in network query it at their gateway,
//! an address of the node, so that queries pass no Service and no other node. Pods of CNI plugins
//! query a link-local address of the node. Servers that an operator sets by `--cluster-dns` take
//! precedence.
//!
//! While the API server is unavailable, the last known names are served: from memory, and after a
//! restart from a file ([`last`]).

mod forwarding;
mod last;
pub(crate) mod names;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use agent_plan::container::files;
use agent_plan::network::dns::{Directory, Forwarding};
use agent_plan::network::proxy::{Name, Service, Slice};
use dns::{Bound, Forwarder, Rules};
use network::Ranges;
use nix::net::if_::if_nametoindex;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, info, warn};

use crate::Error;
use crate::client::events::Kind;
use crate::context::Context;
use crate::networking::resolver;
use crate::networking::services::slices::{Services, Slices, slices_of};

const PORT: u16 = 53;

/// Service of the cluster's name servers.
const SERVICE: (&str, &str) = ("kube-system", "kube-dns");

/// Interval between reads of the machine's `resolv.conf`.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Time before a server whose sockets failed is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Changes within this time are written together.
const SETTLE: Duration = Duration::from_secs(1);

/// Least time between two writes of what is known.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// The agent's Services and EndpointSlices as a zone.
pub(crate) struct Known(Arc<Context>);

impl Known {
    /// Looks up the current state: the last known one until all objects are listed.
    fn look<T>(&self, look: impl FnOnce(&Services, &Slices) -> T) -> T {
        let names = &self.0.names;
        if !names.complete.load(Ordering::Relaxed)
            && let Some(last) = &*names.last()
        {
            return look(&last.services, &last.slices);
        }
        let services = self.0.services.borrow().clone().unwrap_or_default();
        look(&services, &self.0.slices())
    }
}

impl Directory for Known {
    fn is_complete(&self) -> bool {
        self.0.names.complete.load(Ordering::Relaxed) || self.0.names.last().is_some()
    }

    fn service(&self, name: &Name) -> Option<Arc<Service>> {
        self.look(|services, _| services.get(name).cloned())
    }

    fn slices(&self, service: &Name) -> Vec<Arc<Slice>> {
        self.look(|_, slices| slices_of(slices, service).to_vec())
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        self.look(|services, _| {
            let mut from = services.range(Name::new(namespace, "")..);
            from.next().is_some_and(|(name, _)| name.namespace() == namespace)
        })
    }

    fn at(&self, address: IpAddr) -> Vec<Name> {
        self.look(|services, slices| {
            let mut found: Vec<Name> = services
                .iter()
                .filter(|(_, service)| service.cluster_ips.contains(&address))
                .map(|(name, _)| name.clone())
                .collect();
            let with = slices.iter().filter(|(_, slices)| {
                let mut endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter());
                endpoints.any(|endpoint| endpoint.address == address)
            });
            found.extend(with.map(|(service, _)| service.clone()));
            found
        })
    }

    /// Over CNI plugins the server has an address that hosts on the node's links could send to.
    fn serves(&self, client: IpAddr) -> bool {
        let (config, parts) = (&self.0.config, &self.0.parts);
        let own = self.0.names.servers.get().into_iter().flatten();
        // The node asks from the address that it asks.
        let is_own = client.is_loopback() || client == network::local::ADDRESS;
        is_own || own.chain(&config.addresses).any(|own| *own == client) || parts.network.has_pod(client)
    }
}

/// Running name server.
pub(crate) struct Started {
    server: Bound<Known>,
    forwarder: Forwarder,
    gateways: Vec<IpAddr>,
}

/// Serves at the addresses of an earlier run, before the node's pod CIDR is allocated again.
pub(crate) async fn resume(context: &Arc<Context>) -> Option<Started> {
    if !context.config.dns.servers.is_empty() {
        return None;
    }
    let ranges = context.names.last().as_ref()?.ranges;
    let place = place(context, ranges).await?;
    let forwarder = Forwarder::default();
    // After a reboot the address does not exist yet.
    let failed = |error: &dns::Error| debug!(error = image::chain(error), "names are not answered yet");
    let (server, gateways) = listen(context, &forwarder, place).await.inspect_err(failed).ok()?;
    Some(Started {
        server,
        forwarder,
        gateways,
    })
}

/// Starts the server, before the first pod is configured. Without a server, pods use those of the
/// machine.
pub(crate) async fn start(context: &Arc<Context>, resumed: Option<Started>) -> Option<Started> {
    if !context.config.dns.servers.is_empty() {
        return None;
    }
    let place = place(context, context.parts.network.served().map(|served| served.ranges)).await;
    let same = |resumed: &Started| place.as_ref().is_some_and(|place| resumed.gateways == place.listen);
    let started = if let Some(resumed) = resumed.filter(same) {
        Some(resumed)
    } else {
        begin(context, place).await
    };
    if let Some(started) = &started {
        info!(gateways = ?started.gateways, "names of the cluster are answered");
        context.names.servers.get_or_init(|| started.gateways.clone());
    } else {
        // Upstream records it for each pod, which would be every pod of a cluster without name
        // servers.
        let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                       Falling back to \"Default\" policy.";
        context.node_event(Kind::Warning, "MissingClusterDNS", message.to_owned());
    }
    started
}

async fn begin(context: &Arc<Context>, place: Option<Place>) -> Option<Started> {
    let forwarder = Forwarder::default();
    let listening = listen(context, &forwarder, place?).await;
    let failed = |error: &dns::Error| warn!(error = image::chain(error), "names of the cluster are not answered");
    let (server, gateways) = listening.inspect_err(failed).ok()?;
    Some(Started {
        server,
        forwarder,
        gateways,
    })
}

/// Addresses of the server, and the ranges of its clients.
struct Place {
    listen: Vec<IpAddr>,
    clients: Vec<(IpAddr, u8)>,
}

/// The gateways of the pods' ranges, else an address of the node that only its pods reach.
async fn place(context: &Context, ranges: Option<Ranges>) -> Option<Place> {
    if let Some(ranges) = ranges {
        return Some(Place {
            listen: ranges.iter().map(network::Cidr::gateway).collect(),
            clients: ranges.iter().map(|range| (range.address, range.prefix)).collect(),
        });
    }
    let local = context.parts.network.local_address()?;
    if common::task::spawn_blocking(network::local::is_shut)
        .await
        .unwrap_or(false)
    {
        warn!("a firewall drops what pods send to the node: they ask the machine's name servers");
        return None;
    }
    let held = common::task::spawn_blocking(network::local::hold).await.ok()?;
    let failed = |error: &network::Error| warn!(error = image::chain(error), "names of the cluster are not answered");
    held.inspect_err(failed).ok()?;
    Some(Place {
        listen: vec![local],
        clients: vec![(Ipv4Addr::UNSPECIFIED.into(), 0)],
    })
}

async fn listen(
    context: &Arc<Context>,
    forwarder: &Forwarder,
    place: Place,
) -> Result<(Bound<Known>, Vec<IpAddr>), dns::Error> {
    let Place { listen, clients } = place;
    forwarder.set(upstreams(context, &listen));
    let own = context.config.addresses.iter().map(|address| {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        (*address, prefix)
    });
    let config = dns::Config {
        listen: listen.iter().map(|address| SocketAddr::new(*address, PORT)).collect(),
        domain: context.config.dns.domain.clone(),
        clients: dns::networks(clients.into_iter().chain(own)),
    };
    let bound = dns::bind(config, Arc::new(Known(Arc::clone(context))), forwarder.clone()).await?;
    Ok((bound, listen))
}

/// Serves without end, and follows the machine's own name servers.
pub(crate) async fn run(context: Arc<Context>, started: Option<Started>) -> Result<Infallible, Error> {
    let Some(started) = started else {
        return std::future::pending().await;
    };
    let Started { server, forwarder, .. } = started;
    let mut server = Some(server);
    loop {
        let Some(bound) = server.take() else {
            sleep(RESTART_DELAY).await;
            let ranges = context.parts.network.served().map(|served| served.ranges);
            if let Some(place) = place(&context, ranges).await {
                let listening = listen(&context, &forwarder, place).await;
                let failed = |error: &dns::Error| warn!(error = image::chain(error), "names are not answered");
                server = listening.inspect_err(failed).ok().map(|(server, _)| server);
            }
            continue;
        };
        tokio::select! {
            ended = bound.serve() => if let Err(error) = ended {
                warn!(error = image::chain(&error), "the name server of this node starts again");
            },
            () = reload(&context, &forwarder) => {}
            () = write_changes(&context) => {}
            () = forwarding::follow(&context, &forwarder) => {}
        }
    }
}

/// Keeps the file up to date.
async fn write_changes(context: &Arc<Context>) {
    loop {
        context.names.changed.notified().await;
        sleep(SETTLE).await;
        if !context.names.complete.load(Ordering::Relaxed) {
            continue;
        }
        let own = Arc::clone(context);
        let written = common::task::spawn_blocking(move || {
            let services = own.services.borrow().clone().unwrap_or_default();
            let slices = own.slices().clone();
            let ranges = own.parts.network.served().map(|served| served.ranges);
            last::write(&own.names.file, ranges, &own.names.forwarding(), (&services, &slices))
        });
        if let Ok(Err(error)) = written.await {
            warn!(%error, "what is known of Services is not kept for a restart");
        }
        sleep(WRITE_INTERVAL).await;
    }
}

async fn reload(context: &Context, forwarder: &Forwarder) {
    let own = context.names.servers.get().cloned().unwrap_or_default();
    let mut ticks = interval(RELOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        forwarder.set(upstreams(context, &own));
    }
}

/// Upstream servers: those that an operator has configured, else those of the machine, including
/// ones on its loopback. Excludes this server, and the Service in front of it, which a machine may
/// ask for the cluster's names: queries would loop.
fn upstreams(context: &Context, own: &[IpAddr]) -> Rules {
    let Forwarding { stubs, mut upstreams } = context.names.forwarding();
    if upstreams.is_empty() {
        let text = resolver::of_node(&context.config).unwrap_or_default();
        let servers = files::servers(&text).into_iter();
        upstreams = servers.map(|(server, zone)| scoped(server, &zone)).collect();
    }
    let (services, name) = (context.services.borrow(), Name::new(SERVICE.0, SERVICE.1));
    let service = services.as_deref().and_then(|services| services.get(&name));
    let before = in_front(
        service.map(|service| &**service),
        slices_of(&context.slices(), &name),
        own,
    );
    upstreams.retain(|server| !own.contains(&server.ip()) && !before.contains(&server.ip()));
    Rules { upstreams, stubs }
}

/// Addresses of the Service of the cluster's name servers, if it leads to this one.
fn in_front<'a>(service: Option<&'a Service>, slices: &[Arc<Slice>], own: &[IpAddr]) -> &'a [IpAddr] {
    let mut endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter());
    let leads_here = endpoints.any(|endpoint| own.contains(&endpoint.address));
    service
        .filter(|_| leads_here)
        .map(|service| &*service.cluster_ips)
        .unwrap_or_default()
}

/// Socket address of a name server. Its zone is the name or the index of an interface (RFC 4007).
fn scoped(server: IpAddr, zone: &str) -> SocketAddr {
    let mut address = SocketAddr::new(server, PORT);
    if let SocketAddr::V6(address) = &mut address {
        let index = zone.parse::<u32>().or_else(|_name| if_nametoindex(zone));
        address.set_scope_id(index.unwrap_or_default());
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_an_interface() {
        for (server, zone, expected) in [
            ("fe80::1", "lo", "[fe80::1%1]:53"),
            ("fe80::1", "7", "[fe80::1%7]:53"),
            ("fe80::1", "none-such", "[fe80::1]:53"),
            ("2001:db8::1", "", "[2001:db8::1]:53"),
            ("192.0.2.1", "", "192.0.2.1:53"),
        ] {
            assert_eq!(scoped(server.parse().unwrap(), zone).to_string(), expected);
        }
    }

    #[test]
    fn the_service_in_front_of_this_server_is_not_asked() {
        let service = serde_json::json!({
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIPs": ["10.96.0.10"], "ports": [{"port": 53, "protocol": "UDP"}]},
        });
        let (_, service) = Service::new(&serde_json::from_value(service).unwrap());
        let slice = serde_json::json!({
            "metadata": {"name": "kube-dns-a", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.1"]}, {"addresses": ["10.244.1.1"]}],
        });
        let (_, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
        let slices = [Arc::new(slice)];
        let front = |own: &str| in_front(Some(&service), &slices, &[own.parse().unwrap()]).to_vec();
        assert_eq!(front("10.244.1.1"), ["10.96.0.10".parse::<IpAddr>().unwrap()]);
        assert!(front("10.244.2.1").is_empty(), "it leads to other servers");
    }
}
