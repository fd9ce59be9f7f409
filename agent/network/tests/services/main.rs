//! Services with real traffic, as root, in their own network namespaces.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod affinity;
#[path = "../common/mod.rs"]
mod common;
mod lab;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use lab::{From, Lab, NODE, PORT, STRANGER, TABLE, answer, bind, config, eventually, send};
use network::services::Services;
use serde_json::json;

const REFUSED: &str = "connection refused";
/// Errors of a request that is not answered.
const SILENT: &[&str] = &["timed out", "operation would block"];
const CLIENT: From = From::Pod("client");

#[tokio::test]
async fn a_cluster_address_is_reached_by_pods_by_itself_and_by_the_node() {
    let mut lab = Lab::new().await;
    let ports = json!([{"port": 80}, {"name": "", "port": 53, "protocol": "UDP"}]);
    lab.service(
        "web",
        &json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": ports}),
        &["web"],
    );
    let (web, client) = (lab.pod("web"), lab.pod("client"));
    assert_eq!(lab.ask(CLIENT, "10.96.0.20:80"), format!("web {client}"));
    assert_eq!(lab.send(CLIENT, "10.96.0.20:53"), format!("web {client}"));
    assert_eq!(lab.ask(From::Node, "10.96.0.20:80"), "web 10.77.0.1");
    lab.reroute("route del default via 172.30.0.254");
    assert_eq!(lab.ask(From::Node, "10.96.0.20:80"), "web 10.77.0.1", "again");
    lab.reroute("route add default via 172.30.0.254");
    assert_eq!(lab.ask(From::Pod("web"), "10.96.0.20:80"), "web 10.77.0.1", "itself");
    assert!(lab.ask(CLIENT, "[fd96::20]:80").starts_with("web fd00:77::"));
    assert!(lab.send(CLIENT, "[fd96::20]:53").starts_with("web fd00:77::"));
    assert!(lab.ask(From::Pod("web"), "[fd96::20]:80").starts_with("web fd00:77::1"));
    assert_eq!(lab.ask(From::Outside, "10.96.0.20:80"), "web 10.77.0.1", "from outside");
    assert_ne!(web, client);
    lab.end().await;
}

#[tokio::test]
async fn pods_that_plugins_connect_reach_services_under_their_own_address() {
    let mut lab = Lab::with_plugins().await;
    let ports = json!([{"port": 80, "nodePort": 30080}]);
    lab.service("web", &json!({"clusterIP": "10.96.0.20", "ports": ports}), &["web"]);
    let client = lab.pod("client");
    assert_eq!(lab.ask(CLIENT, "10.96.0.20:80"), format!("web {client}"));
    assert!(lab.ask(From::Pod("web"), "10.96.0.20:80").starts_with("web"), "itself");
    for from in [CLIENT, From::Node, From::Outside] {
        assert_eq!(lab.ask(from, "172.30.0.1:30080"), "web 10.77.0.1");
    }
    assert!(lab.ask(From::Node, "10.96.0.20:80").starts_with("web"));
    lab.service("web", &json!({"clusterIP": "10.96.0.20", "ports": ports}), &[]);
    assert_eq!(lab.ask(CLIENT, "10.96.0.20:80"), REFUSED);
    lab.end().await;
}

#[tokio::test]
async fn who_asks_in_vain_is_told_at_once() {
    let mut lab = Lab::new().await;
    let ports = json!([{"port": 80, "nodePort": 30080}, {"name": "", "port": 53, "protocol": "UDP"}]);
    let spec = json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": ports});
    lab.service("web", &spec, &[]);
    for from in [CLIENT, From::Node] {
        assert_eq!(lab.ask(from, "10.96.0.20:80"), REFUSED, "no endpoint");
        assert_eq!(lab.ask(from, "10.96.0.20:81"), REFUSED, "another port");
        assert_eq!(lab.ask(from, "[fd96::20]:80"), REFUSED, "of version 6");
    }
    assert_eq!(lab.ask(From::Outside, "172.30.0.1:30080"), REFUSED);
    let socket = lab.sender(CLIENT, "10.96.0.20:53");
    // The kernel limits how many refusals all of the machine sends.
    assert!((0..10).any(|_| send(&socket) == REFUSED));
    let unknown = lab.ask(CLIENT, "10.96.0.21:80");
    assert!(SILENT.contains(&unknown.as_str()), "no Service at all: {unknown}");
    // The first endpoint answers a client that was rejected before, from the same port too.
    lab.service("web", &spec, &["web"]);
    assert_eq!(lab.ask(CLIENT, "10.96.0.20:80"), format!("web {}", lab.pod("client")));
    assert!(send(&socket).starts_with("web"));
    lab.end().await;
}

#[tokio::test]
async fn ports_of_the_node_lead_from_everywhere() {
    let mut lab = Lab::new().await;
    let ports =
        json!([{"port": 80, "nodePort": 30080}, {"name": "", "port": 53, "protocol": "UDP", "nodePort": 30053}]);
    lab.service(
        "web",
        &json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": ports}),
        &["web"],
    );
    for from in [CLIENT, From::Pod("web"), From::Node, From::Outside] {
        for address in [NODE, "10.77.0.1", "[fd00:30::1]"] {
            if matches!(from, From::Outside) && address == "10.77.0.1" {
                continue;
            }
            let answer = lab.ask(from, &format!("{address}:30080"));
            assert!(
                answer == "web 10.77.0.1" || answer.starts_with("web fd00:77::1"),
                "{address}: {answer}"
            );
            let answer = lab.send(from, &format!("{address}:30053"));
            assert!(answer.starts_with("web"), "{address}: {answer}");
        }
    }
    assert_eq!(
        lab.ask(From::Node, "127.0.0.1:30080"),
        REFUSED,
        "the loopback is the node's own"
    );
    let mut only = config(&*lab.network, TABLE);
    only.node_ports = vec!["10.77.0.0/24".parse().unwrap()];
    lab.tables.configure(only);
    lab.fill();
    assert_eq!(lab.ask(CLIENT, "10.77.0.1:30080"), "web 10.77.0.1");
    assert_eq!(lab.ask(CLIENT, "172.30.0.1:30080"), REFUSED, "an address that has none");
    lab.end().await;
}

#[tokio::test]
async fn the_policy_local_shows_the_client_and_keeps_to_the_node() {
    let mut lab = Lab::new().await;
    let spec = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80, "nodePort": 30080}], "type": "LoadBalancer",
        "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster"});
    let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}});
    let elsewhere = format!("{} n2", lab.pod("db"));
    lab.service_with("web", &spec, &status, &["web", &elsewhere]);
    for _ in 0..8 {
        for at in ["172.30.0.1:30080", "203.0.113.7:80"] {
            assert_eq!(lab.ask(From::Outside, at), format!("web {STRANGER}"), "{at}");
        }
    }
    let answers = |from: From, at: &str| (0..40).map(|_| lab.ask(from, at)).collect::<BTreeSet<String>>();
    for from in [CLIENT, From::Node] {
        let names: BTreeSet<String> = answers(from, "172.30.0.1:30080")
            .iter()
            .map(|answer| answer.split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            BTreeSet::from(["db".to_owned(), "web".to_owned()]),
            "all for our own"
        );
    }
    lab.service_with("web", &spec, &status, &[&elsewhere]);
    for at in ["172.30.0.1:30080", "203.0.113.7:80"] {
        let answer = lab.ask(From::Outside, at);
        assert!(SILENT.contains(&answer.as_str()), "none here: {answer}");
        assert!(lab.ask(CLIENT, at).starts_with("db"), "{at}");
    }
    let inner = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}], "internalTrafficPolicy": "Local"});
    lab.service("web", &inner, &["web", &elsewhere]);
    assert!((0..8).all(|_| lab.ask(CLIENT, "10.96.0.20:80").starts_with("web")));
    lab.service("web", &inner, &[&elsewhere]);
    let answer = lab.ask(CLIENT, "10.96.0.20:80");
    assert!(SILENT.contains(&answer.as_str()), "none here: {answer}");
    lab.end().await;
}

#[tokio::test]
async fn only_source_ranges_may_ask_a_balancers_address() {
    let mut lab = Lab::new().await;
    let spec = |ranges: &[&str]| {
        json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80, "nodePort": 30080}], "type": "LoadBalancer",
            "externalIPs": ["203.0.113.8"], "loadBalancerSourceRanges": ranges})
    };
    let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}});
    lab.service_with("web", &spec(&["172.30.0.0/29", "192.168.0.0/16"]), &status, &["web"]);
    let answer = lab.ask(From::Outside, "203.0.113.7:80");
    assert!(SILENT.contains(&answer.as_str()), "{answer}");
    for open in ["203.0.113.8:80", "172.30.0.1:30080"] {
        assert_eq!(lab.ask(From::Outside, open), "web 10.77.0.1", "{open}");
    }
    lab.service_with("web", &spec(&["172.30.0.8/29"]), &status, &["web"]);
    assert_eq!(lab.ask(From::Outside, "203.0.113.7:80"), "web 10.77.0.1");
    lab.end().await;
}

#[tokio::test]
async fn attack_a_service_with_the_nodes_address_takes_no_port_of_the_api_server() {
    let mut lab = Lab::new().await;
    answer(bind("172.30.0.1:6443".parse().unwrap()), "api");
    for (name, address, port) in [("web", "10.96.0.20", 80), ("thief", "10.96.0.21", 6443)] {
        let spec = json!({"clusterIP": address, "ports": [{"port": port}], "externalIPs": [NODE]});
        lab.service(name, &spec, &["web"]);
    }
    for from in [CLIENT, From::Outside] {
        assert!(lab.ask(from, "172.30.0.1:80").starts_with("web "), "a free port");
    }
    for from in [CLIENT, From::Outside, From::Node] {
        let server = lab.ask(from, "172.30.0.1:6443");
        assert!(server.starts_with("api "), "{server}");
    }
    lab.end().await;
}

#[tokio::test]
async fn endpoints_that_end_answer_where_no_other_does() {
    let mut lab = Lab::new().await;
    let spec = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]});
    lab.service("web", &spec, &["web n1 ending", "db n1 ending"]);
    let names = |lab: &Lab| -> BTreeSet<String> {
        let answers = (0..30).map(|_| lab.ask(CLIENT, "10.96.0.20:80"));
        answers
            .map(|answer| answer.split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&lab).len(), 2);
    lab.service("web", &spec, &["web n1 ending", "db"]);
    assert_eq!(names(&lab), BTreeSet::from(["db".to_owned()]));
    lab.end().await;
}

/// Opens a socket of SCTP; `None` if this kernel has no SCTP.
fn sctp() -> Option<socket2::Socket> {
    use socket2::{Domain, Protocol, Socket, Type};
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(132))).ok()
}

/// Starts a server of SCTP in the pod `web`.
fn serve_sctp(lab: &Lab) {
    use std::io::Write as _;
    let at = SocketAddr::new(lab.pod("web"), PORT);
    let listener = lab.run(From::Pod("web"), move || {
        let socket = sctp().unwrap();
        socket.bind(&at.into()).unwrap();
        socket.listen(8).unwrap();
        TcpListener::from(socket)
    });
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            drop(stream.write_all(b"web"));
        }
    });
}

fn ask_sctp(lab: &Lab, from: From, to: &str) -> String {
    use std::io::Read as _;
    let to: SocketAddr = to.parse().unwrap();
    lab.run(from, move || {
        let socket = sctp().unwrap();
        let limit = Duration::from_secs(5);
        socket.set_read_timeout(Some(limit)).unwrap();
        socket.connect_timeout(&to.into(), limit).unwrap();
        let mut text = String::new();
        TcpStream::from(socket).read_to_string(&mut text).unwrap();
        text
    })
}

#[tokio::test]
async fn sctp_is_led() {
    let mut lab = Lab::new().await;
    let ports = json!([{"port": 80, "protocol": "SCTP", "nodePort": 30080}]);
    let spec = json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": ports});
    lab.service("web", &spec, &["web"]);
    for (family, map, key) in [
        ("ip", "front", "10.96.0.20 . 132 . 80 :"),
        ("ip6", "front", "fd96::20 . 132 . 80 :"),
        ("ip", "node_ports", "132 . 30080 :"),
    ] {
        let mut nft = std::process::Command::new("nft");
        let listed = nft.args(["-n", "list", "map", family, TABLE, map]).output().unwrap();
        let text = String::from_utf8_lossy(&listed.stdout);
        assert!(text.contains(key), "{key}: {text}");
    }
    if sctp().is_some() {
        serve_sctp(&lab);
        for (from, to) in [
            (CLIENT, "10.96.0.20:80"),
            (From::Node, "10.96.0.20:80"),
            (From::Outside, "172.30.0.1:30080"),
        ] {
            assert_eq!(ask_sctp(&lab, from, to), "web", "{to}");
        }
    } else {
        println!("this kernel has no SCTP: only the rules were looked at");
    }
    lab.end().await;
}

#[tokio::test]
async fn datagrams_follow_the_endpoints_and_connections_stay() {
    let mut lab = Lab::new().await;
    let ports = json!([{"port": 80}, {"name": "", "port": 53, "protocol": "UDP", "nodePort": 30053}]);
    let spec = json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": ports});
    lab.service("web", &spec, &["web"]);
    let senders = ["10.96.0.20:53", "172.30.0.1:30053", "[fd96::20]:53"].map(|to| lab.sender(CLIENT, to));
    let all = |name: &str| senders.iter().all(|sender| send(sender).starts_with(name));
    assert!(all("web"));
    lab.service("web", &spec, &["db"]);
    eventually("datagrams go to the endpoint that is there", || all("db"));
    lab.service("web", &spec, &["db", "web"]);
    assert!(all("db"), "flows to an endpoint that stays are left alone");
    lab.end().await;
}

#[tokio::test]
async fn what_others_change_is_heard_and_mended() {
    let mut lab = Lab::new().await;
    lab.service(
        "web",
        &json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}),
        &["web"],
    );
    let mut watch = lab.tables.watch().unwrap();
    let nft = |words: &str| {
        let done = std::process::Command::new("nft").args(words.split(' ')).status();
        assert!(done.unwrap().success(), "nft {words}");
    };
    // The agent's own changes are not reported as changes by others.
    lab.service(
        "web",
        &json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}),
        &["db"],
    );
    nft("add table ip somebody-else");
    let limit = Duration::from_millis(300);
    assert!(
        tokio::time::timeout(limit, watch.changed()).await.is_err(),
        "nobody changed our tables"
    );
    let flush = format!("flush chain ip {TABLE} lookup");
    let delete = format!("delete table ip {TABLE}");
    for words in [flush.as_str(), delete.as_str(), "flush ruleset"] {
        nft(words);
        let heard = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
        heard.expect(words).unwrap();
        lab.fill();
        watch = lab.tables.watch().unwrap();
        let answer = lab.ask(CLIENT, "10.96.0.20:80");
        assert!(answer.starts_with("db"), "{words}: {answer}");
    }
    lab.end().await;
}

#[tokio::test]
async fn the_rules_of_services_hide_no_table_of_the_pods_from_the_check() {
    let mut lab = Lab::new().await;
    let web = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]});
    lab.service("web", &web, &["web"]);
    let nft = |words: &str| {
        let output = std::process::Command::new("nft")
            .args(words.split(' '))
            .output()
            .unwrap();
        assert!(output.status.success(), "{words}");
        String::from_utf8(output.stdout).unwrap()
    };
    for table in ["ip skiff_skiff_test", "bridge skiff_skiff_test_guard"] {
        nft(&format!("add chain {table} marker"));
    }
    lab.network.pass().await.unwrap();
    assert_eq!(nft("list chains").matches("chain marker").count(), 2, "made again");
    lab.end().await;
}

#[tokio::test]
async fn two_clusters_with_the_same_addresses_lead_their_own_pods() {
    let mut lab = Lab::new().await;
    let mut other = config(&*lab.network, "skiff_other_services");
    other.pods.as_mut().unwrap().ranges = "10.78.0.0/24".parse().unwrap();
    let mut second = Services::open(other).unwrap();
    let web = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]});
    lab.service("web", &web, &["db"]);
    lab::fill(&mut second, &lab.proxy);
    lab.service("web", &web, &["web"]);
    // Pod of the other cluster, which would be on its own bridge, without the guard of this one.
    let guard = ["delete", "table", "bridge", "skiff_skiff_test_guard"];
    assert!(
        std::process::Command::new("nft")
            .args(guard)
            .status()
            .unwrap()
            .success()
    );
    common::inside(&lab.pods["client"], || {
        common::ip("addr add 10.78.0.9/24 dev eth0");
    });
    common::ip("addr add 10.78.0.1/24 dev skiff-test");
    let client = lab.pod("client");
    assert_eq!(
        lab.ask(CLIENT, "10.96.0.20:80"),
        format!("web {client}"),
        "neither asks nor masquerades for the other"
    );
    let foreign = common::inside(&lab.pods["client"], || {
        let socket = nix_connect("10.78.0.9", "10.96.0.20:80");
        socket.unwrap_or_else(|error| error.to_string())
    });
    assert_eq!(foreign, "db 10.78.0.9");
    assert!(
        lab.ask(From::Node, "10.96.0.20:80").starts_with("db"),
        "the node asks the one that came last"
    );
    network::services::remove("skiff_other_services").unwrap();
    lab.end().await;
}

/// Sends a request from a given source address.
fn nix_connect(from: &str, to: &str) -> std::io::Result<String> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
    let from: SockaddrIn = format!("{from}:0").parse().unwrap();
    let to: SockaddrIn = to.parse().unwrap();
    bind(socket.as_raw_fd(), &from)?;
    connect(socket.as_raw_fd(), &to)?;
    let mut text = String::new();
    TcpStream::from(socket).read_to_string(&mut text)?;
    Ok(text)
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Time of the processors that work takes: others may hold them for most of the time.
fn cost(work: impl FnOnce()) -> Duration {
    let spent = || {
        let all = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
        let (user, system) = (all.user_time(), all.system_time());
        (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec()
    };
    let before = spent();
    work();
    Duration::from_micros((spent() - before).try_into().unwrap())
}

#[tokio::test]
async fn a_thousand_services_that_go_leave_nothing() {
    let mut lab = Lab::new().await;
    let before = lab.proxy.all().count();
    for number in 0..1_000_u32 {
        let address = std::net::Ipv4Addr::from(0x0a60_0100 + number).to_string();
        let ports = json!([{"port": 80, "nodePort": 30_000 + number}]);
        let spec = json!({"clusterIP": address, "ports": ports, "externalIPs": ["203.0.113.8"]});
        lab.service(&format!("s{number}"), &spec, &["web", "db"]);
    }
    let answer = lab.ask(CLIENT, "10.96.4.0:80");
    assert!(answer.starts_with("web ") || answer.starts_with("db "), "{answer}");
    for number in 0..1_000_u32 {
        lab.remove(&format!("s{number}"));
    }
    assert_eq!(lab.proxy.all().count(), before);
    for address in ["10.96.1.0:80", "10.96.4.231:80"] {
        let answer = lab.ask(CLIENT, address);
        assert!(SILENT.contains(&answer.as_str()), "{address}: {answer}");
    }
    assert_eq!(lab.ask(From::Outside, "172.30.0.1:30999"), REFUSED, "the node itself");
    lab.end().await;
}

/// Benchmark: 10,000 Services with two endpoints each, and the addition and removal of one
/// endpoint.
#[tokio::test]
async fn ten_thousand_services_cost_little() {
    let mut lab = Lab::new().await;
    let services = (0..10_000_u32).map(|number| {
        let address = std::net::Ipv4Addr::from(0x0a60_0100 + number);
        let spec = json!({"clusterIP": address.to_string(), "ports": [{"port": 80}]});
        lab.input(&format!("s{number}"), &spec, &["10.1.0.1 n2", "10.1.0.2 n2"])
    });
    let empty = resident();
    let inputs = services.collect();
    lab.proxy.update(inputs);
    println!("the plan has {} KiB", resident() - empty);
    let cold = cost(|| lab.fill());
    let again = cost(|| lab.fill());
    let spec = json!({"clusterIP": "10.96.1.0", "ports": [{"port": 80}]});
    let times = (0..20).map(|turn| cost(|| lab.service("s0", &spec, &["10.1.0.1 n2", &format!("10.1.1.{turn} n2")])));
    let mut times: Vec<_> = times.collect();
    times.sort();
    println!(
        "10,000 Services of two endpoints: {cold:?}, again {again:?}; one endpoint: {:?} (lower quartile)",
        times[5]
    );
    assert!(cold.min(again).as_secs() < 6, "{cold:?} {again:?}");
    assert!(times[5].as_millis() < 60, "{times:?}");
    lab.service("s0", &spec, &["web"]);
    assert!(lab.ask(CLIENT, "10.96.1.0:80").starts_with("web"));
    lab.end().await;
}
