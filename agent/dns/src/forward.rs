//! Questions about names that are not the cluster's: asked of the machine's name servers, or of those that an operator
//! names for a domain, through a cache.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use common::shares::Shares;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ServerOrderingStrategy};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_server::proto::op::ResponseCode;
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use tracing::{debug, warn};

/// Longest time for one server's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for an answer at all: clients ask again after five seconds.
const DEADLINE: Duration = Duration::from_millis(4500);
/// Answers that are kept.
const CACHED: u64 = 4096;
/// Longest time that answers and refusals are kept, as in kubeadm's Corefile (`cache 30`).
const MAX_TTL: Duration = Duration::from_secs(30);
/// Questions that may be under way, and those of one client; further ones fail at once.
const IN_FLIGHT: usize = 512;
const IN_FLIGHT_EACH: usize = 64;

/// Name servers by domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Servers for all names that no stub domain has.
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

#[derive(Default)]
struct Resolvers {
    rules: Rules,
    upstream: Option<Arc<TokioResolver>>,
    /// The longest domain first.
    stubs: Vec<(Name, Option<Arc<TokioResolver>>)>,
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
                Some((domain, resolver(servers)))
            })
            .collect();
        stubs.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.num_labels()));
        *resolvers = Resolvers {
            upstream: resolver(&rules.upstreams),
            stubs,
            rules,
        };
    }

    fn responsible(&self, name: &Name) -> Option<Arc<TokioResolver>> {
        let resolvers = self.resolvers.read().unwrap_or_else(PoisonError::into_inner);
        let name = name.to_lowercase();
        let stub = resolvers.stubs.iter().find(|(domain, _)| domain.zone_of(&name));
        stub.map_or_else(|| resolvers.upstream.clone(), |(_, resolver)| resolver.clone())
    }

    pub(crate) async fn lookup(&self, name: &Name, kind: RecordType, client: IpAddr) -> Forwarded {
        let failed = |code| Forwarded {
            code: Some(code),
            ..Forwarded::default()
        };
        let (Some(resolver), Some(_place)) = (self.responsible(name), self.places.take(client)) else {
            return failed(ResponseCode::ServFail);
        };
        let mut name = name.clone();
        name.set_fqdn(true);
        match tokio::time::timeout(DEADLINE, resolver.lookup(name.clone(), kind)).await {
            Ok(Ok(found)) => Forwarded {
                code: None,
                answers: found.answers().to_vec(),
                authorities: Vec::new(),
            },
            Ok(Err(NetError::Dns(DnsError::NoRecordsFound(none)))) => Forwarded {
                code: Some(none.response_code),
                answers: Vec::new(),
                authorities: none
                    .soa
                    .map(|soa| Record::from_rdata(soa.name.clone(), soa.ttl, RData::SOA(soa.data.clone())))
                    .into_iter()
                    .collect(),
            },
            Ok(Err(NetError::Dns(DnsError::ResponseCode(code)))) => failed(code),
            Ok(Err(error)) => {
                debug!(%name, %kind, %error, "a forwarded question failed");
                failed(ResponseCode::ServFail)
            }
            Err(_) => failed(ResponseCode::ServFail),
        }
    }
}

fn resolver(servers: &[SocketAddr]) -> Option<Arc<TokioResolver>> {
    if servers.is_empty() {
        return None;
    }
    let servers = servers.iter().map(|server| name_server(server.ip(), server.port()));
    let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    options.timeout = TIMEOUT;
    options.attempts = 1;
    options.cache_size = CACHED;
    options.positive_max_ttl = Some(MAX_TTL);
    options.negative_max_ttl = Some(MAX_TTL);
    options.use_hosts_file = ResolveHosts::Never;
    options.edns0 = true;
    options.server_ordering_strategy = ServerOrderingStrategy::QueryStatistics;
    // Against forged answers, beside the random ports and numbers of questions (RFC 5452).
    options.case_randomization = true;
    options.preserve_intermediates = true;
    builder
        .build()
        .map(Arc::new)
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
