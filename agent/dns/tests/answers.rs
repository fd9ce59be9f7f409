//! Questions of a stock resolver over real sockets on the loopback. The machine's name server is a second instance, for
//! another domain.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use agent_dns::{Config, Forwarder, Rules};
use agent_plan::network::dns::Directory;
use agent_plan::network::proxy::{Name, Service, Slice};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RecordType;
use serde_json::json;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One namespace with a Service of one address, a headless one of many, and one elsewhere.
struct Shop;

impl Directory for Shop {
    fn is_complete(&self) -> bool {
        true
    }

    fn service(&self, name: &Name) -> Option<Arc<Service>> {
        let ports = json!([{"port": 80, "name": "http"}]);
        let spec = match name.parts() {
            ("shop", "web") => json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": ports}),
            ("shop", "many") => json!({"clusterIP": "None", "ports": ports}),
            ("shop", "out") => json!({"type": "ExternalName", "externalName": "web.shop.svc.example.org"}),
            ("shop", "loop") => json!({"type": "ExternalName", "externalName": "loop.shop.svc.cluster.local"}),
            _ => return None,
        };
        let service = json!({"metadata": {"namespace": name.namespace(), "name": name.name()}, "spec": spec});
        let (_, service) = Service::new(&serde_json::from_value(service).unwrap());
        Some(Arc::new(service))
    }

    fn slices(&self, service: &Name) -> Vec<Arc<Slice>> {
        let count = if service.name() == "many" { 200 } else { 0 };
        let endpoints: Vec<_> = (1..=count)
            .map(|number| json!({"addresses": [format!("10.244.0.{number}")]}))
            .collect();
        let metadata = json!({"name": "s", "labels": {"kubernetes.io/service-name": service.name()}});
        let slice = json!({"addressType": "IPv4", "endpoints": endpoints, "metadata": metadata,
            "ports": [{"port": 80, "name": "http"}]});
        let (_, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
        vec![Arc::new(slice)]
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        namespace == "shop"
    }

    fn at(&self, _address: IpAddr) -> Vec<Name> {
        Vec::new()
    }

    fn serves(&self, client: IpAddr) -> bool {
        client != IpAddr::from([127, 0, 0, 3])
    }
}

/// A port that is free for datagrams; a connection of another test may have it.
fn free() -> SocketAddr {
    let any = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    let taken = |address: &SocketAddr| std::net::TcpListener::bind(address).is_err();
    std::iter::repeat_with(any).find(|address| !taken(address)).unwrap()
}

/// A server that ends with this.
struct Served {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

async fn serve(domain: &str, rules: Rules) -> Served {
    serve_to(domain, rules, "127.0.0.0/8").await
}

async fn serve_to(domain: &str, rules: Rules, clients: &str) -> Served {
    let (listen, bound) = loop {
        let listen = free();
        let config = Config {
            listen: vec![listen],
            domain: domain.to_owned(),
            clients: vec![clients.parse().unwrap()],
        };
        let forwarder = Forwarder::default();
        forwarder.set(rules.clone());
        match agent_dns::bind(config, Arc::new(Shop), forwarder).await {
            Ok(bound) => break (listen, bound),
            Err(agent_dns::Error::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("{error}"),
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { bound.serve().await.unwrap() });
    Served {
        address: listen,
        _tasks: tasks,
    }
}

fn client(server: SocketAddr) -> TokioResolver {
    let mut own = NameServerConfig::udp_and_tcp(server.ip());
    for connection in &mut own.connections {
        connection.port = server.port();
    }
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![own]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().cache_size = 0;
    builder.options_mut().attempts = 1;
    builder.options_mut().timeout = Duration::from_mins(1);
    builder.build().unwrap()
}

async fn asked(server: &Served, name: &str, kind: RecordType) -> Result<Vec<String>, ResponseCode> {
    asked_at(server.address, name, kind).await
}

async fn asked_at(server: SocketAddr, name: &str, kind: RecordType) -> Result<Vec<String>, ResponseCode> {
    match client(server).lookup(name, kind).await {
        Ok(found) => Ok(found.answers().iter().map(|record| record.data.to_string()).collect()),
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => Err(none.response_code),
        Err(NetError::Dns(DnsError::ResponseCode(code))) => Err(code),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[tokio::test]
async fn names_of_the_cluster_are_answered_and_others_are_asked_for() {
    let upstream = serve("example.org", Rules::default()).await;
    let server = serve(
        "cluster.local",
        Rules {
            upstreams: vec![upstream.address],
            stubs: Vec::new(),
        },
    )
    .await;
    let found = asked(&server, "web.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]));
    let found = asked(&server, "WEB.shop.svc.cluster.LOCAL.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]), "letters' case does not matter");
    assert_eq!(
        asked(&server, "web.shop.svc.cluster.local.", RecordType::AAAA).await,
        Err(ResponseCode::NoError)
    );
    assert_eq!(
        asked(&server, "no.shop.svc.cluster.local.", RecordType::A).await,
        Err(ResponseCode::NXDomain)
    );
    let found = asked(&server, "web.shop.svc.example.org.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]), "a forwarded name");
    let found = asked(&server, "out.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(
        found,
        Ok(vec!["web.shop.svc.example.org.".to_owned(), "10.96.0.7".to_owned()])
    );
    assert_eq!(
        asked(&server, "no.shop.svc.example.org.", RecordType::A).await,
        Err(ResponseCode::NXDomain)
    );
    assert_eq!(
        asked(&server, "web.shop.svc.elsewhere.test.", RecordType::A).await,
        Err(ResponseCode::ServFail)
    );
    let apex = asked(&server, "cluster.local.", RecordType::SOA).await.unwrap();
    assert!(
        apex.iter()
            .any(|soa| soa.starts_with("ns.dns.cluster.local. hostmaster.cluster.local. 1 ")),
        "{apex:?}"
    );
    let looped = asked(&server, "loop.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(looped, Err(ResponseCode::NoError), "aliases in a circle end");
}

#[tokio::test]
async fn an_answer_too_large_for_a_datagram_comes_over_tcp() {
    let server = serve("cluster.local", Rules::default()).await;
    let found = asked(&server, "many.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(found.unwrap().len(), 200);
}

#[tokio::test]
async fn another_server_at_all_addresses_leaves_this_one_its_own() {
    let own = free();
    let any = SocketAddr::from(([0, 0, 0, 0], own.port()));
    // As dnsmasq makes it.
    let other = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    other.set_reuse_address(true).unwrap();
    other.bind(&any.into()).unwrap();
    let _connections = std::net::TcpListener::bind(any).unwrap();
    let config = Config {
        listen: vec![own],
        domain: "cluster.local".to_owned(),
        clients: vec!["127.0.0.0/8".parse().unwrap()],
    };
    let bound = agent_dns::bind(config, Arc::new(Shop), Forwarder::default()).await;
    let bound = bound.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { bound.serve().await.unwrap() });
    let found = asked_at(own, "web.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]));
}

#[tokio::test]
async fn each_pod_of_a_headless_service_comes_first_in_its_turn() {
    let server = serve("cluster.local", Rules::default()).await;
    let mut firsts = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let found = asked(&server, "many.shop.svc.cluster.local.", RecordType::A).await;
        firsts.extend(found.unwrap().into_iter().take(1));
    }
    assert!(firsts.len() > 5, "{firsts:?}");
}

#[tokio::test]
async fn a_domain_may_have_servers_of_its_own() {
    let stub = serve("corp.test", Rules::default()).await;
    let rules = Rules {
        upstreams: Vec::new(),
        stubs: vec![("corp.test".to_owned(), vec![stub.address])],
    };
    let server = serve("cluster.local", rules).await;
    let found = asked(&server, "web.shop.svc.corp.test.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]));
    assert_eq!(
        asked(&server, "web.shop.svc.notcorp.test.", RecordType::A).await,
        Err(ResponseCode::ServFail)
    );
}

/// Name server that has this address for every name, or no name at all. Like some, it knows names in lower case alone.
async fn upstream(known: Option<u8>) -> (SocketAddr, JoinSet<()>) {
    upstream_at("127.0.0.1:0".parse().unwrap(), known).await
}

async fn upstream_at(address: SocketAddr, known: Option<u8>) -> (SocketAddr, JoinSet<()>) {
    let socket = tokio::net::UdpSocket::bind(address).await.unwrap();
    let address = socket.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut asked = [0; 1500];
        loop {
            let (_, client) = socket.recv_from(&mut asked).await.unwrap();
            let mut end = 12;
            while asked[end] != 0 {
                end += 1 + usize::from(asked[end]);
            }
            let mut answer = asked[..end + 5].to_vec();
            let known = known.filter(|_| !asked[12..end].iter().any(u8::is_ascii_uppercase));
            let header = match known {
                Some(_) => *b"\x81\x80\0\x01\0\x01\0\0\0\0",
                None => *b"\x81\x83\0\x01\0\0\0\0\0\0",
            };
            answer.splice(2..12, header);
            if let Some(last) = known {
                answer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\x0e\x10\0\x04\xc0\0\x02");
                answer.push(last);
            }
            socket.send_to(&answer, client).await.unwrap();
        }
    });
    (address, tasks)
}

/// A link-local address of this machine and the index of its interface, else the loopback address.
fn link_local() -> (Ipv6Addr, u32) {
    // Per line: address, index, length of the prefix, scope, flags, name; 80 is a permanent address that is in use.
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap();
    let found = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = Ipv6Addr::from(u128::from_str_radix(words[0], 16).unwrap());
        let index = u32::from_str_radix(words[1], 16).unwrap();
        (address.is_unicast_link_local() && words[4] == "80").then_some((address, index))
    });
    found
        .min_by_key(|(_, index)| *index)
        .unwrap_or((Ipv6Addr::LOCALHOST, 1))
}

#[tokio::test]
async fn an_upstream_may_be_link_local() {
    let (address, scope) = link_local();
    let (upstream, _tasks) = upstream_at(SocketAddrV6::new(address, 0, 0, scope).into(), Some(7)).await;
    let scoped: SocketAddr = SocketAddrV6::new(address, upstream.port(), 0, scope).into();
    let (upstreams, stubs) = (vec![scoped], Vec::new());
    let server = serve("cluster.local", Rules { upstreams, stubs }).await;
    let found = asked(&server, "x.corp.test.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["192.0.2.7".to_owned()]), "{scoped}");
}

#[tokio::test]
async fn upstreams_are_asked_in_their_order() {
    let (private, _of_private) = upstream(Some(7)).await;
    let (public, _of_public) = upstream(None).await;
    // It takes questions and never answers.
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let dead = socket.local_addr().unwrap();
    let own = Ok(vec!["192.0.2.7".to_owned()]);
    for (upstreams, times, expected) in [
        (vec![private, public], 8, own.clone()),
        (vec![public, private], 8, Err(ResponseCode::NXDomain)),
        (vec![dead, private], 1, own),
    ] {
        let stubs = Vec::new();
        let server = serve("cluster.local", Rules { upstreams, stubs }).await;
        for number in 0..times {
            let name = format!("x{number}.corp.test.");
            assert_eq!(asked(&server, &name, RecordType::A).await, expected, "{name}");
        }
    }
    // After some questions it comes last.
    let (upstreams, stubs) = (vec![dead, private], Vec::new());
    let server = serve("cluster.local", Rules { upstreams, stubs }).await;
    let names = (0..6).map(|number| format!("x{number}.corp.test."));
    let many = names.map(async |name| asked(&server, &name, RecordType::A).await);
    for found in futures::future::join_all(many).await {
        assert_eq!(found, Ok(vec!["192.0.2.7".to_owned()]));
    }
    let started = Instant::now();
    let found = asked(&server, "y.corp.test.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["192.0.2.7".to_owned()]));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_dead_upstream_delays_no_name_of_the_cluster() {
    // It takes questions and never answers.
    let dead = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let rules = Rules {
        upstreams: vec![dead.local_addr().unwrap()],
        stubs: Vec::new(),
    };
    let server = serve("cluster.local", rules).await;
    let address = server.address;
    let mut waiting = JoinSet::new();
    for number in 0..600 {
        let name = format!("x{number}.example.test.");
        waiting.spawn(async move { asked_at(address, &name, RecordType::A).await });
    }
    // This process may be held up once.
    let (limit, mut took) = (Duration::from_secs(2), Vec::<Duration>::new());
    while took.len() < 3 && took.iter().all(|took| *took >= limit) {
        let started = Instant::now();
        let found = asked(&server, "web.shop.svc.cluster.local.", RecordType::A).await;
        assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]));
        took.push(started.elapsed());
    }
    assert!(took.iter().any(|took| *took < limit), "{took:?}");
    while let Some(one) = waiting.join_next().await {
        assert_eq!(one.unwrap(), Err(ResponseCode::ServFail));
    }
}

#[tokio::test]
async fn attack_a_question_of_a_stranger_or_for_everything_gets_no_answer_to_grow_by() {
    let closed = serve_to("cluster.local", Rules::default(), "192.0.2.0/24").await;
    assert_eq!(
        asked(&closed, "web.shop.svc.cluster.local.", RecordType::A).await,
        Err(ResponseCode::Refused)
    );
    let server = serve("cluster.local", Rules::default()).await;
    for kind in [RecordType::ANY, RecordType::AXFR] {
        assert_eq!(
            asked(&server, "many.shop.svc.cluster.local.", kind).await,
            Err(ResponseCode::Refused)
        );
    }
    let stranger = tokio::net::UdpSocket::bind("127.0.0.3:0").await.unwrap();
    let header = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00";
    let name = b"\x04many\x04shop\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01";
    let question = [header.as_slice(), name].concat();
    stranger.send_to(&question, server.address).await.unwrap();
    let mut answer = [0; 1500];
    let answered = tokio::time::timeout(Duration::from_secs(10), stranger.recv(&mut answer));
    let length = answered.await.unwrap().unwrap();
    assert!(length <= question.len(), "{length}");
    assert_eq!(answer[3] & 0xf, 5, "refused");
}

/// A server of a domain that also answers for `bank.test`, unasked, and sends a forged answer with
/// another number ahead of each of its own.
async fn forge(socket: tokio::net::UdpSocket) {
    let mut asked = [0; 1500];
    loop {
        let (_, client) = socket.recv_from(&mut asked).await.unwrap();
        let mut end = 12;
        while asked[end] != 0 {
            end += 1 + usize::from(asked[end]);
        }
        let record = |last: u8| [b"\0\x01\0\x01\0\0\x0e\x10\0\x04\xc0\0\x02".as_slice(), &[last]].concat();
        let mut honest = asked[..end + 5].to_vec();
        honest.splice(2..12, *b"\x81\x80\0\x01\0\x01\0\0\0\0");
        let mut forged = [honest.as_slice(), b"\xc0\x0c", &record(66)].concat();
        forged[0] ^= 1;
        honest.extend([b"\xc0\x0c".as_slice(), &record(7)].concat());
        if asked[12] != 4 {
            honest[7] = 2;
            honest.extend([b"\x04bank\x04test\0".as_slice(), &record(66)].concat());
        }
        for message in [forged, honest] {
            socket.send_to(&message, client).await.unwrap();
        }
    }
}

#[tokio::test]
async fn attack_a_forged_answer_and_one_for_another_name_are_not_kept() {
    let upstream = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let rules = Rules {
        upstreams: vec![upstream.local_addr().unwrap()],
        stubs: Vec::new(),
    };
    let mut forging = JoinSet::new();
    forging.spawn(forge(upstream));
    let server = serve("cluster.local", rules).await;
    let own = "192.0.2.7".to_owned();
    let found = asked(&server, "victim.evil.test.", RecordType::A).await.unwrap();
    assert!(found.contains(&own), "{found:?}");
    assert_eq!(asked(&server, "bank.test.", RecordType::A).await, Ok(vec![own]));
}

#[tokio::test]
async fn attack_a_name_of_255_bytes_is_a_name_like_others() {
    let server = serve("cluster.local", Rules::default()).await;
    let name = [63, 63, 63, 47].map(|length| "a".repeat(length)).join(".") + ".cluster.local.";
    let found = asked(&server, &name, RecordType::A).await;
    assert_eq!(found, Err(ResponseCode::NXDomain));
}

#[tokio::test]
async fn attack_messages_that_are_no_questions_do_not_end_the_server() {
    let server = serve("cluster.local", Rules::default()).await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let header = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let long: Vec<u8> = header.iter().copied().chain([63; 255]).collect();
    let looped: Vec<u8> = header.iter().copied().chain([0xc0, 12, 0, 1, 0, 1]).collect();
    let answer: Vec<u8> = [0x12, 0x34, 0x81, 0, 0, 1, 0, 0, 0, 0, 0, 0].into();
    for message in [&[][..], &[0; 3], &header, &long, &looped, &answer, &[0xff; 512]] {
        socket.send_to(message, server.address).await.unwrap();
    }
    let found = asked(&server, "web.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(found, Ok(vec!["10.96.0.7".to_owned()]));
}

#[tokio::test]
async fn a_client_that_holds_many_connections_takes_none_of_others() {
    let server = serve("cluster.local", Rules::default()).await;
    let mut held = Vec::new();
    // More than one client may have: the server closes the last ones at once.
    for _ in 0..40 {
        held.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    // The first one ends by its silence, some seconds later.
    let (mut first, mut last) = (held.remove(0), held.pop().unwrap());
    let (mut early, mut late) = ([0], [0]);
    tokio::select! {
        biased;
        closed = last.read(&mut late) => assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}"),
        ended = first.read(&mut early) => panic!("it has a place: {ended:?}"),
    }
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = other.connect(server.address).await.unwrap();
    let name = b"\x03web\x04shop\x03svc\x07cluster\x05local\x00";
    let mut question = [
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".as_slice(),
        name,
        b"\x00\x01\x00\x01",
    ]
    .concat();
    question.splice(0..0, u16::try_from(question.len()).unwrap().to_be_bytes());
    other.write_all(&question).await.unwrap();
    let mut answer = vec![0; usize::from(other.read_u16().await.unwrap())];
    other.read_exact(&mut answer).await.unwrap();
    assert!(answer.ends_with(&[10, 96, 0, 7]), "{answer:?}");
}
