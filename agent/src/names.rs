//! The cluster's name server on this node: pods of the built-in network ask it at their gateways, an address that is the
//! node's own, so that no Service stands between and no name waits for another node. Operators who name servers by
//! `--cluster-dns` keep those.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agent_plan::dns::Directory;
use agent_plan::files::{self, ClusterDns};
use agent_plan::proxy::{Name, Service, Slice};
use dns::{Bound, Forwarder, Rules};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::Error;
use crate::context::Context;
use crate::events::Kind;
use crate::resolver;
use crate::services::slices_of;

const PORT: u16 = 53;

/// How often the machine's own name servers are read.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Time before a server whose sockets failed is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The node's name server, as others see it.
#[derive(Default)]
pub(crate) struct Names {
    servers: OnceLock<Vec<IpAddr>>,
    /// Whether all Services and EndpointSlices have been listed.
    pub(crate) complete: AtomicBool,
}

impl Names {
    /// Whether this node has a name server of the cluster's.
    pub(crate) fn is_served(&self) -> bool {
        self.servers.get().is_some_and(|servers| !servers.is_empty())
    }

    /// Servers and domain that pods are told of.
    pub(crate) fn cluster(&self, configured: &ClusterDns) -> ClusterDns {
        let own = self.servers.get().into_iter().flatten().map(ToString::to_string);
        let servers = if configured.servers.is_empty() {
            own.collect()
        } else {
            configured.servers.clone()
        };
        ClusterDns {
            servers,
            domain: configured.domain.clone(),
        }
    }
}

/// Services and EndpointSlices as the agent follows them.
pub(crate) struct Known(Arc<Context>);

impl Directory for Known {
    fn is_complete(&self) -> bool {
        self.0.names.complete.load(Ordering::Relaxed)
    }

    fn service(&self, name: &Name) -> Option<Arc<Service>> {
        let services = self.0.services.borrow();
        services.as_ref().and_then(|all| all.get(name).cloned())
    }

    fn slices(&self, service: &Name) -> Vec<Arc<Slice>> {
        slices_of(&self.0.slices(), service).cloned().collect()
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        let services = self.0.services.borrow();
        let mut from = services
            .iter()
            .flat_map(|all| all.range((namespace.to_owned(), String::new())..));
        from.next().is_some_and(|((own, _), _)| own == namespace)
    }

    fn at(&self, address: IpAddr) -> Vec<Name> {
        let services = self.0.services.borrow();
        let all = services.iter().flat_map(|all| all.iter());
        let mut found: Vec<Name> = all
            .filter(|(_, service)| service.cluster_ips.contains(&address))
            .map(|(name, _)| name.clone())
            .collect();
        let slices = self.0.slices();
        let with = slices.iter().filter(|(_, slice)| {
            let mut endpoints = slice.endpoints.iter();
            endpoints.any(|endpoint| endpoint.address == address)
        });
        found.extend(with.map(|((namespace, _), slice)| (namespace.clone(), slice.service.to_string())));
        found
    }
}

/// A name server that is ready to run.
pub(crate) struct Started {
    server: Bound<Known>,
    forwarder: Forwarder,
}

/// Starts to listen, before the first pod is told whom to ask. Without a server, pods ask those of the machine.
pub(crate) async fn start(context: &Arc<Context>) -> Option<Started> {
    if !context.config.dns.servers.is_empty() {
        return None;
    }
    let forwarder = Forwarder::default();
    let server = listen(context, &forwarder).await;
    if server.is_none() {
        // Upstream says it of each pod, which on a cluster without name servers would be of every one.
        let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                       Falling back to \"Default\" policy.";
        context.node_event(Kind::Warning, "MissingClusterDNS", message.to_owned());
    }
    Some(Started {
        server: server?,
        forwarder,
    })
}

async fn listen(context: &Arc<Context>, forwarder: &Forwarder) -> Option<Bound<Known>> {
    let served = context.parts.network.served()?;
    let gateways: Vec<IpAddr> = served.ranges.iter().map(network::Cidr::gateway).collect();
    forwarder.set(upstreams(context, &gateways));
    let ranges = served.ranges.iter().map(|range| (range.address, range.prefix));
    let own = context.config.addresses.iter().map(|address| {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        (*address, prefix)
    });
    let config = dns::Config {
        listen: gateways.iter().map(|gateway| SocketAddr::new(*gateway, PORT)).collect(),
        domain: context.config.dns.domain.clone(),
        clients: dns::networks(ranges.chain(own)),
    };
    match dns::bind(config, Arc::new(Known(Arc::clone(context))), forwarder.clone()).await {
        Ok(bound) => {
            info!(?gateways, "names of the cluster are answered");
            // Only ever the same.
            context.names.servers.get_or_init(|| gateways);
            Some(bound)
        }
        Err(error) => {
            warn!(error = image::chain(&error), "names of the cluster are not answered");
            None
        }
    }
}

/// Serves for ever, and follows the machine's own name servers.
pub(crate) async fn run(context: Arc<Context>, started: Option<Started>) -> Result<Infallible, Error> {
    let Some(Started { server, forwarder }) = started else {
        return std::future::pending().await;
    };
    let mut server = Some(server);
    loop {
        let Some(bound) = server.take() else {
            sleep(RESTART_DELAY).await;
            server = listen(&context, &forwarder).await;
            continue;
        };
        tokio::select! {
            ended = bound.serve() => if let Err(error) = ended {
                warn!(error = image::chain(&error), "the name server of this node starts again");
            },
            () = reload(&context, &forwarder) => {}
        }
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

/// Servers of the machine itself, those on its loopback included. Never this one: questions would go round in a circle.
fn upstreams(context: &Context, own: &[IpAddr]) -> Rules {
    let text = resolver::of_node(&context.config).unwrap_or_default();
    let mut servers = files::servers(&text);
    servers.retain(|server| !own.contains(server));
    Rules {
        upstreams: servers
            .into_iter()
            .map(|server| SocketAddr::new(server, PORT))
            .collect(),
        stubs: Vec::new(),
    }
}
