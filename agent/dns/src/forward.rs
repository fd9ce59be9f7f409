//! Questions about names that are not the cluster's: asked of the machine's name servers, or of those that an operator
//! names for a domain, through a cache.
//!
//! The servers are asked in their order, as by the machine's own resolver: the first one often knows names that a public
//! one behind it does not. One that does not answer comes last for a while.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use common::shares::Shares;
use futures::future::BoxFuture;
use hickory_resolver::Resolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::{RuntimeProvider, TokioRuntimeProvider};
use hickory_resolver::net::{DnsError, NetError};
use hickory_server::proto::op::ResponseCode;
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Longest time for one server's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for an answer at all: clients ask again after five seconds.
const DEADLINE: Duration = Duration::from_millis(4500);
/// Questions in a row that a server leaves to the next one before it comes last, and the time for which it does.
const UNANSWERED: u32 = 5;
const LAST_FOR: Duration = Duration::from_secs(15);
/// Answers of one server that are kept.
const CACHED: u64 = 4096;
/// Longest time that answers and refusals are kept, as in kubeadm's Corefile (`cache 30`).
const MAX_TTL: Duration = Duration::from_secs(30);
/// Questions that may be under way (as by `max_concurrent` of kubeadm's Corefile), and those of one client, such as a
/// proxy that looks for all its destinations at once; further ones fail at once.
const IN_FLIGHT: usize = 1000;
const IN_FLIGHT_EACH: usize = 250;

/// Name servers by domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Servers for all names that no stub domain has; link-local ones with the scope of their interface.
    pub upstreams: Vec<SocketAddr>,
    /// Domains with servers of their own, without the dot at the end.
    pub stubs: Vec<(String, Vec<SocketAddr>)>,
}

/// Answer to a forwarded question.
#[derive(Default)]
pub(crate) struct Forwarded {
    pub(crate) code: Option<ResponseCode>,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
}

impl Forwarded {
    fn failed(code: ResponseCode) -> Self {
        Self {
            code: Some(code),
            ..Self::default()
        }
    }
}

/// Name server that is asked.
struct Upstream {
    resolver: Resolver<Sockets>,
    /// Number of questions since the last answer, and the time of the last of them.
    unanswered: Mutex<(u32, Option<Instant>)>,
}

#[derive(Default)]
struct Resolvers {
    rules: Rules,
    upstreams: Arc<[Upstream]>,
    /// The longest domain first.
    stubs: Vec<(Name, Arc<[Upstream]>)>,
}

/// Asks other name servers. Clones share one cache.
#[derive(Clone)]
pub struct Forwarder {
    resolvers: Arc<RwLock<Resolvers>>,
    places: Arc<Shares>,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self {
            resolvers: Arc::default(),
            places: Shares::new(IN_FLIGHT, IN_FLIGHT_EACH),
        }
    }
}

impl Forwarder {
    /// Replaces the servers; the cache starts anew where they changed.
    pub fn set(&self, rules: Rules) {
        let mut resolvers = self.resolvers.write().unwrap_or_else(PoisonError::into_inner);
        if resolvers.rules == rules {
            return;
        }
        let mut stubs: Vec<_> = rules
            .stubs
            .iter()
            .filter_map(|(domain, servers)| {
                let mut domain = Name::from_ascii(domain).ok()?.to_lowercase();
                domain.set_fqdn(true);
                Some((domain, upstreams(servers)))
            })
            .collect();
        stubs.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.num_labels()));
        *resolvers = Resolvers {
            upstreams: upstreams(&rules.upstreams),
            stubs,
            rules,
        };
    }

    fn responsible(&self, name: &Name) -> Arc<[Upstream]> {
        let resolvers = self.resolvers.read().unwrap_or_else(PoisonError::into_inner);
        let name = name.to_lowercase();
        let stub = resolvers.stubs.iter().find(|(domain, _)| domain.zone_of(&name));
        Arc::clone(stub.map_or(&resolvers.upstreams, |(_, upstreams)| upstreams))
    }

    pub(crate) async fn lookup(&self, name: &Name, kind: RecordType, client: IpAddr) -> Forwarded {
        let Some(_place) = self.places.take(client) else {
            return Forwarded::failed(ResponseCode::ServFail);
        };
        let upstreams = self.responsible(name);
        let mut name = name.clone();
        name.set_fqdn(true);
        let asked = tokio::time::timeout(DEADLINE, ask(&upstreams, &name, kind)).await;
        asked.unwrap_or_else(|_late| Forwarded::failed(ResponseCode::ServFail))
    }
}

/// Asks one server after the other until one answers, be it that there is no such name.
async fn ask(upstreams: &[Upstream], name: &Name, kind: RecordType) -> Forwarded {
    let mut failure = Forwarded::failed(ResponseCode::ServFail);
    let (silent, others): (Vec<&Upstream>, Vec<&Upstream>) =
        upstreams.iter().partition(|upstream| upstream.is_silent());
    let mut passed: Vec<&Upstream> = Vec::new();
    for upstream in others.into_iter().chain(silent) {
        let found = upstream.resolver.lookup(name.clone(), kind).await;
        if matches!(found, Ok(_) | Err(NetError::Dns(_))) {
            upstream.note(true);
            // A question that nobody answers says nothing about them.
            passed.drain(..).for_each(|silent| silent.note(false));
        } else {
            passed.push(upstream);
        }
        match found {
            Ok(found) => {
                return Forwarded {
                    code: None,
                    answers: found.answers().to_vec(),
                    authorities: Vec::new(),
                };
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                return Forwarded {
                    code: Some(none.response_code),
                    answers: Vec::new(),
                    authorities: none
                        .soa
                        .map(|soa| Record::from_rdata(soa.name.clone(), soa.ttl, RData::SOA(soa.data.clone())))
                        .into_iter()
                        .collect(),
                };
            }
            Err(NetError::Dns(DnsError::ResponseCode(code))) => failure = Forwarded::failed(code),
            Err(error) => debug!(%name, %kind, %error, "a forwarded question failed"),
        }
    }
    failure
}

impl Upstream {
    fn unanswered(&self) -> std::sync::MutexGuard<'_, (u32, Option<Instant>)> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for a server that comes last. After a while a single question tries it again.
    fn is_silent(&self) -> bool {
        let mut unanswered = self.unanswered();
        let (count, Some(last)) = *unanswered else { return false };
        if count < UNANSWERED {
            return false;
        }
        if last.elapsed() < LAST_FOR {
            return true;
        }
        unanswered.1 = Some(Instant::now());
        false
    }

    fn note(&self, answered: bool) {
        let mut unanswered = self.unanswered();
        *unanswered = if answered {
            (0, None)
        } else {
            (unanswered.0.saturating_add(1), Some(Instant::now()))
        };
    }
}

fn upstreams(servers: &[SocketAddr]) -> Arc<[Upstream]> {
    let alone = servers.len() == 1;
    let resolvers = servers.iter().filter_map(|server| resolver(*server, alone));
    let upstreams = resolvers.map(|resolver| Upstream {
        resolver,
        unanswered: Mutex::default(),
    });
    upstreams.collect()
}

fn resolver(server: SocketAddr, alone: bool) -> Option<Resolver<Sockets>> {
    let sockets = Sockets {
        tokio: TokioRuntimeProvider::default(),
        scope: match server {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(server) => server.scope_id(),
        },
    };
    let server = name_server(server.ip(), server.port());
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
    let mut builder = Resolver::builder_with_config(config, sockets);
    let options = builder.options_mut();
    options.timeout = TIMEOUT;
    // Where there is another server, that is asked instead.
    options.attempts = usize::from(alone);
    // On its one TCP connection, over which it is asked again for what it cut off.
    options.max_active_requests = IN_FLIGHT;
    options.cache_size = CACHED;
    options.positive_max_ttl = Some(MAX_TTL);
    options.negative_max_ttl = Some(MAX_TTL);
    options.use_hosts_file = ResolveHosts::Never;
    options.edns0 = true;
    // Not `case_randomization`: some servers, and some that these ask, know names in lower case alone.
    options.preserve_intermediates = true;
    builder
        .build()
        .inspect_err(|error| warn!(%error, "no questions can be forwarded"))
        .ok()
}

fn name_server(address: IpAddr, port: u16) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address);
    // An upstream that says a name does not exist is believed: the next one need not be asked.
    server.trust_negative_responses = true;
    for connection in &mut server.connections {
        connection.port = port;
    }
    server
}

/// Sockets for one name server. The resolver knows it by its address alone, so the interface of a link-local one is
/// added here.
#[derive(Clone)]
struct Sockets {
    tokio: TokioRuntimeProvider,
    /// Index of the interface, or 0.
    scope: u32,
}

impl Sockets {
    fn scoped(&self, mut server: SocketAddr) -> SocketAddr {
        if let SocketAddr::V6(server) = &mut server {
            server.set_scope_id(self.scope);
        }
        server
    }
}

impl RuntimeProvider for Sockets {
    type Handle = <TokioRuntimeProvider as RuntimeProvider>::Handle;
    type Timer = <TokioRuntimeProvider as RuntimeProvider>::Timer;
    type Udp = UdpSocket;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> BoxFuture<'static, io::Result<Self::Tcp>> {
        self.tokio.connect_tcp(self.scoped(server), local, timeout)
    }

    fn bind_udp(&self, local: SocketAddr, server: SocketAddr) -> BoxFuture<'static, io::Result<Self::Udp>> {
        let (bound, server) = (self.tokio.bind_udp(local, server), self.scoped(server));
        let is_scoped = self.scope != 0;
        Box::pin(async move {
            let socket = bound.await?;
            // What it sends to the address without a scope then leaves by that interface, too.
            if is_scoped {
                socket.connect(server).await?;
            }
            Ok(socket)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use futures::future::join_all;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_client_may_ask_for_many_names_at_once() {
        let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let forwarder = Forwarder::default();
        forwarder.set(Rules {
            upstreams: vec![upstream.local_addr().unwrap()],
            stubs: Vec::new(),
        });
        let names = (0..200).map(|number| Name::from_ascii(format!("x{number}.example.")).unwrap());
        let questions = names.map(|name| {
            let forwarder = forwarder.clone();
            async move { forwarder.lookup(&name, RecordType::A, [10, 244, 0, 9].into()).await }
        });
        let heard = async {
            let (mut names, mut question) = (HashSet::new(), [0; 512]);
            while names.len() < 200 {
                let length = upstream.recv(&mut question).await.unwrap();
                // Behind the header with the number of the question.
                names.insert(question[12..length].to_vec());
            }
        };
        tokio::select! {
            heard = timeout(Duration::from_secs(10), heard) => heard.expect("all are asked"),
            _ = join_all(questions) => panic!("those that nobody answers take their time"),
        }
    }
}
