//! The cluster's name server on a node: hickory-server answers names of the cluster from what the agent knows of Services
//! (`agent_plan::network::dns` decides), and forwards the rest to the machine's own name servers ([`Forwarder`]).

mod forward;
mod tcp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use agent_plan::network::dns::{self, Answer, Data, Directory, Kind};
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Edns, Metadata, OpCode, ResponseCode};
use hickory_server::proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV, TXT};
use hickory_server::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use ipnet::IpNet;
use rand::seq::SliceRandom as _;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tracing::{debug, warn};

pub use forward::{Forwarder, Rules};

/// Largest answer over UDP, as DNS Flag Day 2020 recommends: it is never cut into fragments, which could be forged.
const UDP_PAYLOAD: u16 = 1232;
/// Aliases that are followed within the cluster for one question.
const ALIASES: usize = 8;

/// Failure of the name server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port of an address could not be had: another name server has it.
    #[error("listen at {address}, port 53")]
    Listen {
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A socket failed.
    #[error("the name server's socket")]
    Socket(#[source] hickory_server::net::NetError),
}

/// Addresses and names that a server is for.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen at.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain, such as `cluster.local`.
    pub domain: String,
    /// Ranges whose addresses may ask; others are refused.
    pub clients: Vec<IpNet>,
}

/// Ranges of addresses with the lengths of their prefixes; what is none is left out.
pub fn networks(ranges: impl Iterator<Item = (IpAddr, u8)>) -> Vec<IpNet> {
    let ranges = ranges.filter_map(|(address, prefix)| IpNet::new(address, prefix).ok());
    ranges.map(|range| range.trunc()).collect()
}

/// A server whose sockets are bound.
pub struct Bound<D: Directory + Send + Sync + 'static> {
    datagrams: Server<Handler<D>>,
    /// Never end.
    connections: JoinSet<()>,
}

/// Binds the sockets, so that questions wait in them from then on.
pub async fn bind<D>(config: Config, directory: Arc<D>, forwarder: Forwarder) -> Result<Bound<D>, Error>
where
    D: Directory + Send + Sync + 'static,
{
    let handler = Handler {
        directory,
        domain: config.domain,
        forwarder,
    };
    let mut datagrams = Server::with_access(handler.clone(), [], config.clients.clone());
    let mut connections = JoinSet::new();
    for listen in config.listen {
        let failed = |source| Error::Listen {
            address: listen.ip(),
            source,
        };
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let own = UdpSocket::bind(listen).await;
        let is_beside = own.as_ref().is_err_and(is_taken);
        let own = if is_beside { bind_beside(listen) } else { own };
        datagrams.register_socket(own.map_err(failed)?);
        match TcpListener::bind(listen).await {
            Err(error) if is_beside && is_taken(&error) => {
                warn!(%listen, "another name server has the port at all addresses; it gets the questions over TCP");
            }
            listener => {
                let serving = tcp::serve(listener.map_err(failed)?, handler.clone(), config.clients.clone());
                connections.spawn(serving);
            }
        }
    }
    Ok(Bound { datagrams, connections })
}

/// Binds an address of a port that another server has at all addresses, if that permits it, as dnsmasq does: the kernel
/// prefers the one socket to the other.
fn bind_beside(listen: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    UdpSocket::from_std(socket.into())
}

impl<D: Directory + Send + Sync + 'static> Bound<D> {
    /// Answers until a socket fails. The server ends when this is dropped.
    pub async fn serve(mut self) -> Result<(), Error> {
        let ended = self.datagrams.block_until_done().await.map_err(Error::Socket);
        self.connections.abort_all();
        ended
    }
}

/// Parts of an answer.
#[derive(Default)]
struct Reply {
    code: Option<ResponseCode>,
    authoritative: bool,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additional: Vec<Record>,
}

impl Reply {
    fn failed(code: ResponseCode) -> Self {
        Self {
            code: Some(code),
            ..Self::default()
        }
    }
}

struct Handler<D> {
    directory: Arc<D>,
    domain: String,
    forwarder: Forwarder,
}

impl<D> Clone for Handler<D> {
    fn clone(&self) -> Self {
        Self {
            directory: Arc::clone(&self.directory),
            domain: self.domain.clone(),
            forwarder: self.forwarder.clone(),
        }
    }
}

#[async_trait::async_trait]
impl<D: Directory + Send + Sync + 'static> RequestHandler for Handler<D> {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut out: R) -> ResponseInfo {
        let mut reply = self.reply(request).await;
        shuffle(&mut reply.answers);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = true;
        metadata.authoritative = reply.authoritative;
        metadata.response_code = reply.code.unwrap_or(ResponseCode::NoError);
        let edns = request.edns.as_ref().map(|asked| {
            let mut edns = Edns::new();
            edns.set_max_payload(asked.max_payload().clamp(512, UDP_PAYLOAD));
            edns.set_version(0);
            edns
        });
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &edns {
            builder.edns(edns);
        }
        let message = builder.build(metadata, &reply.answers, &reply.authorities, [], &reply.additional);
        match out.send_response(message).await {
            Ok(info) => info,
            Err(error) => {
                debug!(%error, client = %request.src(), "an answer was not sent");
                failed(metadata)
            }
        }
    }
}

/// Puts addresses last, in random order: clients take the first one, and are to be spread over the
/// pods of a headless Service, as by `CoreDNS`' `plugin/loadbalance/loadbalance.go`.
fn shuffle(answers: &mut [Record]) {
    let is_address = |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
    answers.sort_by_key(is_address);
    let first = answers.partition_point(|record| !is_address(record));
    if let Some(addresses) = answers.get_mut(first..) {
        addresses.shuffle(&mut rand::rng());
    }
}

fn failed(metadata: Metadata) -> ResponseInfo {
    ResponseInfo::from(hickory_server::proto::op::Header {
        metadata,
        counts: hickory_server::proto::op::HeaderCounts::default(),
    })
}

impl<D: Directory> Handler<D> {
    async fn reply(&self, request: &Request) -> Reply {
        if request.metadata.op_code != OpCode::Query {
            return Reply::failed(ResponseCode::NotImp);
        }
        let Ok(info) = request.request_info() else {
            return Reply::failed(ResponseCode::FormErr);
        };
        if info.query.query_class() != DNSClass::IN || !self.directory.serves(request.src().ip()) {
            return Reply::failed(ResponseCode::Refused);
        }
        let question = info.query.original();
        let kind = question.query_type();
        // Of a zone that is made as it is asked there is no transfer, and all types of a name are only asked for by those who want a
        // large answer sent to somebody else (RFC 8482).
        if matches!(kind, RecordType::AXFR | RecordType::IXFR | RecordType::ANY) {
            return Reply::failed(ResponseCode::Refused);
        }
        self.resolve(question.name(), kind, request.src().ip()).await
    }

    /// Answers within the cluster, follows aliases, and forwards what is not the cluster's.
    async fn resolve(&self, name: &Name, kind: RecordType, client: IpAddr) -> Reply {
        let mut reply = Reply::default();
        let mut owner = name.clone();
        for _ in 0..ALIASES {
            let text = owner.to_lowercase().to_ascii();
            let found = dns::answer(&*self.directory, &self.domain, text.trim_end_matches('.'), asked(kind));
            let (own, additional) = match found {
                Answer::Foreign => {
                    let forwarded = self.forwarder.lookup(&owner, kind, client).await;
                    reply.code = forwarded.code;
                    reply.answers.extend(forwarded.answers);
                    reply.authorities.extend(forwarded.authorities);
                    return reply;
                }
                Answer::Unknown => {
                    reply.code = Some(ResponseCode::ServFail);
                    return reply;
                }
                Answer::NoSuchName => {
                    reply.authoritative = true;
                    reply.code = Some(ResponseCode::NXDomain);
                    reply.authorities.extend(self.authority());
                    return reply;
                }
                Answer::Records { own, additional } => (own, additional),
            };
            reply.authoritative = true;
            let alias = own.iter().find_map(|data| {
                if let Data::Alias(target) = data
                    && kind != RecordType::CNAME
                {
                    Name::from_ascii(target).ok()
                } else {
                    None
                }
            });
            let own = own.into_iter().filter_map(|data| record(&owner, data));
            reply.answers.extend(own);
            if kind == RecordType::SOA && text.trim_end_matches('.') == self.domain {
                reply.answers.extend(self.authority());
            }
            let additional = additional.into_iter();
            let additional =
                additional.filter_map(|(name, address)| record(&Name::from_ascii(name).ok()?, Data::Address(address)));
            reply.additional.extend(additional);
            match alias {
                Some(mut target) => {
                    target.set_fqdn(true);
                    owner = target;
                }
                None => break,
            }
        }
        if reply.answers.is_empty() {
            reply.authorities.extend(self.authority());
        }
        reply
    }

    /// The record by which clients know how long a name may be taken for absent.
    fn authority(&self) -> Option<Record> {
        let domain = Name::from_ascii(&self.domain).ok()?;
        let name = |label: &str| domain.prepend_label(label).ok();
        let server = name("dns").and_then(|dns| dns.prepend_label("ns").ok())?;
        let soa = SOA::new(server, name("hostmaster")?, 1, 7200, 1800, 86400, dns::TTL);
        let mut domain = domain;
        domain.set_fqdn(true);
        Some(Record::from_rdata(domain, dns::TTL, RData::SOA(soa)))
    }
}

/// Types of records that the cluster has.
const KINDS: [(RecordType, Kind); 6] = [
    (RecordType::A, Kind::A),
    (RecordType::AAAA, Kind::Aaaa),
    (RecordType::CNAME, Kind::Cname),
    (RecordType::PTR, Kind::Ptr),
    (RecordType::SRV, Kind::Srv),
    (RecordType::TXT, Kind::Txt),
];

fn asked(kind: RecordType) -> Kind {
    let known = KINDS.iter().find(|(own, _)| *own == kind);
    known.map_or(Kind::Other, |(_, known)| *known)
}

/// Names of the cluster come from names of objects, all of which a message can hold.
fn record(owner: &Name, data: Data) -> Option<Record> {
    let full = |name: String| {
        let mut name = Name::from_ascii(name).ok()?;
        name.set_fqdn(true);
        Some(name)
    };
    let data = match data {
        Data::Address(IpAddr::V4(address)) => RData::A(A(address)),
        Data::Address(IpAddr::V6(address)) => RData::AAAA(AAAA(address)),
        Data::Alias(name) => RData::CNAME(CNAME(full(name)?)),
        Data::Pointer(name) => RData::PTR(PTR(full(name)?)),
        Data::Location { weight, port, target } => RData::SRV(SRV::new(0, weight, port, full(target)?)),
        Data::Text(text) => RData::TXT(TXT::new(vec![text.to_owned()])),
    };
    let mut owner = owner.clone();
    owner.set_fqdn(true);
    Some(Record::from_rdata(owner, dns::TTL, data))
}
