//! Network policies with real traffic, as root, in their own network namespaces.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../services/lab.rs"]
mod lab;

mod world;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use agent_plan::network::network_policy::Input;
use common::inside;
use lab::{From, Lab, answer, bind};
use network::{AttachSpec, PortMapping};
use serde_json::json;
use world::By::{Tcp, Udp};
use world::{TIMEOUT, World, app, labeled, list, policy, sends, udp, web};

#[tokio::test]
async fn who_is_isolated_inward_is_reached_by_itself_and_its_node_alone() {
    let mut world = World::new().await;
    let free = [("client", "web", 8080, Tcp, true), ("stranger", "web", 8080, Tcp, true)];
    world.check("without policies", &free);
    world.apply(&web(&json!({"policyTypes": ["Ingress"]})));
    world.check(
        "default deny",
        &[
            ("client", "web", 8080, Tcp, false),
            ("client", "web", 8080, Udp, false),
            ("client", "web", 1, Tcp, false),
            ("stranger", "web", 8080, Tcp, false),
            ("stranger", "web", 8080, Udp, false),
            ("node", "web", 8080, Tcp, true),
            ("node", "web", 8080, Udp, true),
            ("web", "web", 8080, Tcp, true),
            ("web", "node", 1, Tcp, true),
            ("web", "db", 8080, Tcp, true),
            ("web", "stranger", 8080, Tcp, true),
            ("client", "db", 8080, Udp, true),
        ],
    );
    world.remove();
    world.check("the policy is gone", &free);
    world.end().await;
}

#[tokio::test]
async fn rules_let_peers_in_at_ports() {
    let mut world = World::new().await;
    let stranger = ["172.30.0.9", "fd00:30::9"].map(|text| text.parse().unwrap());
    let ports = json!([{"port": 8080}, {"port": 8085, "endPort": 8100}]);
    world.apply(&web(&json!({"ingress": [{"from": [app("client")], "ports": ports}]})));
    let refused = [
        ("client", "web", 8081, Tcp, false),
        ("client", "web", 8080, Udp, false),
        ("db", "web", 8080, Tcp, false),
        ("db", "web", 8090, Tcp, false),
    ];
    world.check(
        "by label",
        &[("client", "web", 8080, Tcp, true), ("client", "web", 8090, Tcp, true)],
    );
    world.check("others", &refused);
    world.check("outside", &[("stranger", "web", 8080, Tcp, false)]);
    world.update(vec![labeled("remote", "client", stranger.to_vec(), "n2")]);
    world.check(
        "a pod of another node",
        &[
            ("stranger", "web", 8080, Tcp, true),
            ("stranger", "web", 8081, Tcp, false),
        ],
    );
    world.update(vec![labeled("remote", "other", stranger.to_vec(), "n2")]);
    world.check("it has another label", &[("stranger", "web", 8080, Tcp, false)]);
    world.apply(&web(
        &json!({"ingress": [{"ports": [{"port": "http"}]}, {"ports": [{"protocol": "UDP", "port": 8090}]}]}),
    ));
    world.check(
        "by name",
        &[
            ("db", "web", 8081, Tcp, true),
            ("stranger", "web", 8081, Tcp, true),
            ("db", "web", 8080, Tcp, false),
            ("db", "web", 8090, Udp, true),
            ("db", "web", 8090, Tcp, false),
        ],
    );
    world.apply(&web(
        &json!({"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"who": "us"}}}]}]}),
    ));
    world.check(
        "by namespace",
        &[("db", "web", 8090, Udp, true), ("stranger", "web", 8080, Tcp, true)],
    );
    world.update(vec![Input::Namespace("t".to_owned(), Some([].into()))]);
    world.check(
        "it has another label",
        &[("db", "web", 8090, Udp, false), ("stranger", "web", 8080, Tcp, false)],
    );
    world.end().await;
}

#[tokio::test]
async fn blocks_are_ranges_but_for_their_exceptions() {
    let mut world = World::new().await;
    let block = |except: &[&str], except6: &[&str]| {
        web(
            &json!({"ingress": [{"from": [{"ipBlock": {"cidr": "172.30.0.0/24", "except": except}},
            {"ipBlock": {"cidr": "fd00:30::/64", "except": except6}}]}]}),
        )
    };
    world.apply(&block(&[], &[]));
    world.check(
        "all of it",
        &[
            ("stranger", "web", 8080, Udp, true),
            ("client", "web", 8080, Udp, false),
        ],
    );
    world.apply(&block(&["172.30.0.8/29"], &["fd00:30::8/126", "fd00:30::/128"]));
    world.check("excepted", &[("stranger", "web", 8080, Udp, false)]);
    world.apply(&block(&["172.30.0.0/29", "172.30.0.10/32"], &["fd00:30::a/127"]));
    world.check("beside the exceptions", &[("stranger", "web", 8080, Udp, true)]);
    let all = json!([{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]);
    world.apply(&web(&json!({"ingress": [{"from": all}]})));
    world.check(
        "everybody",
        &[("stranger", "web", 8080, Udp, true), ("client", "web", 8080, Udp, true)],
    );
    world.end().await;
}

#[tokio::test]
async fn who_is_isolated_outward_reaches_what_rules_name_and_its_node() {
    let mut world = World::new().await;
    world.apply(&web(
        &json!({"policyTypes": ["Egress"], "egress": [{"to": [app("db")], "ports": [{"port": 8080}]}]}),
    ));
    world.check(
        "only one",
        &[
            ("web", "db", 8080, Tcp, true),
            ("web", "db", 8081, Tcp, false),
            ("web", "db", 8080, Udp, false),
            ("web", "client", 8080, Tcp, false),
            ("web", "stranger", 8080, Tcp, false),
            ("web", "node", 1, Tcp, true),
            ("web", "web", 8081, Tcp, true),
            ("client", "web", 8081, Tcp, true),
            ("stranger", "web", 8081, Udp, true),
        ],
    );
    let blocks = json!([{"ipBlock": {"cidr": "172.30.0.0/24"}}, {"ipBlock": {"cidr": "fd00:30::/64"}}]);
    world.apply(&web(&json!({"policyTypes": ["Egress"],
        "egress": [{"to": blocks}, {"to": [app("client")], "ports": [{"port": "http"}]}]})));
    world.check(
        "blocks, and ports by name",
        &[
            ("web", "stranger", 8080, Udp, true),
            ("web", "client", 8081, Tcp, true),
            ("web", "client", 8080, Tcp, false),
            ("web", "db", 8081, Tcp, false),
        ],
    );
    world.update(vec![policy(
        "q",
        &json!({"podSelector": {"matchLabels": {"app": "client"}}}),
    )]);
    world.check("both ends must allow it", &[("web", "client", 8081, Tcp, false)]);
    world.end().await;
}

#[tokio::test]
async fn services_and_ports_of_the_node_are_no_way_around() {
    let mut world = World::new().await;
    let ports = json!([{"port": 80, "nodePort": 30080}]);
    let spec = json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": ports});
    world.lab.service("web", &spec, &["web"]);
    let spec = AttachSpec {
        sandbox_id: "hosted".to_owned(),
        ports: vec![PortMapping {
            host_port: 8443,
            container_port: 8080,
            protocol: "TCP".to_owned(),
            host_address: None,
        }],
        ..AttachSpec::default()
    };
    let hosted = world.lab.network.attach(spec).await.unwrap();
    let addresses: Vec<IpAddr> = hosted.addresses.iter().map(|held| held.address).collect();
    for address in &addresses {
        let at = SocketAddr::from((*address, 8080));
        answer(inside(&hosted, move || bind(at)), "hosted");
    }
    world.update(vec![labeled("hosted", "web", addresses, "n1")]);
    let ways = [
        ("client", "10.96.0.20:80"),
        ("client", "[fd96::20]:80"),
        ("client", "172.30.0.1:30080"),
        ("stranger", "172.30.0.1:30080"),
        ("stranger", "[fd00:30::1]:30080"),
        ("client", "172.30.0.1:8443"),
        ("stranger", "172.30.0.1:8443"),
        ("stranger", "[fd00:30::1]:8443"),
    ];
    let try_all = |world: &World, expected: bool| {
        for (from, to) in ways {
            assert_eq!(
                world.reaches(from, to.parse().unwrap(), Tcp, expected),
                expected,
                "{from} {to}\n{}",
                list()
            );
        }
    };
    try_all(&world, true);
    world.apply(&web(&json!({})));
    try_all(&world, false);
    assert!(
        world.reaches("node", "10.96.0.20:80".parse().unwrap(), Tcp, true),
        "the node itself"
    );
    let blocks =
        json!([{"ipBlock": {"cidr": "172.30.0.9/32"}}, {"ipBlock": {"cidr": "fd00:30::9/128"}}, app("client")]);
    world.apply(&web(&json!({"ingress": [{"from": blocks, "ports": [{"port": 8080}]}]})));
    try_all(&world, true);
    world.apply(&web(
        &json!({"ingress": [{"ports": [{"port": 80}, {"port": 30080}, {"port": 8443}]}]}),
    ));
    try_all(&world, false);
    let egress = json!({"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"]});
    world.apply(&egress);
    assert!(
        !world.asks("client", "10.96.0.20:80".parse().unwrap(), Tcp),
        "outward by a Service"
    );
    world.lab.network.detach("hosted").await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_policy_ends_connections_that_it_forbids_and_no_others() {
    let mut world = World::new().await;
    for v6 in [false, true] {
        let to = SocketAddr::from((world.address("web", v6).unwrap(), 7000));
        let listener = inside(&world.lab.pods["web"], move || std::net::TcpListener::bind(to).unwrap());
        let mut client = world.lab.run(From::Pod("client"), move || {
            TcpStream::connect_timeout(&to, TIMEOUT * 10).unwrap()
        });
        let (mut served, _) = listener.accept().unwrap();
        for stream in [&client, &served] {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
        let at = SocketAddr::from((world.address("web", v6).unwrap(), 8080));
        let datagrams = world.lab.run(From::Pod("client"), move || udp(at));
        // An answer may come late.
        let answered = || (0..10).any(|_| sends(&datagrams, 3));
        assert!(answered());
        let mut said = [0; 2];
        let mut passes = || {
            client.write_all(b"go").unwrap();
            served.read_exact(&mut said).is_ok()
        };
        assert!(passes());
        world.apply(&web(
            &json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [app("client")]}]}),
        ));
        assert!(passes(), "it is allowed, and answers need no rule");
        assert!(answered());
        world.apply(&web(&json!({})));
        assert!(!passes(), "forbidden now");
        assert!(!sends(&datagrams, 3));
        world.remove();
        assert!(answered(), "free again");
    }
    world.end().await;
}

#[tokio::test]
async fn fragments_are_judged_by_the_ports_of_the_whole() {
    let mut world = World::new().await;
    let rule = json!({"from": [app("client")], "ports": [{"port": 8080, "protocol": "UDP"}]});
    world.apply(&web(&json!({"ingress": [rule]})));
    for v6 in [false, true] {
        let address = world.address("web", v6).unwrap();
        for (port, expected) in [(8080, true), (8090, false)] {
            let at = SocketAddr::from((address, port));
            // An answer may come late.
            let tries = if expected { 10 } else { 1 };
            let passed = (0..tries).any(|_| world.lab.run(From::Pod("client"), move || sends(&udp(at), 3000)));
            assert_eq!(passed, expected, "{at}");
        }
    }
    world.end().await;
}

#[tokio::test]
async fn pods_that_plugins_connect_are_isolated_too() {
    let mut world = World::on(Lab::with_plugins().await);
    world.check("free", &[("client", "web", 8080, Tcp, true)]);
    world.apply(&web(&json!({"ingress": [{"from": [app("db")]}]})));
    world.check(
        "by label",
        &[
            ("client", "web", 8080, Tcp, false),
            ("stranger", "web", 8080, Udp, false),
            ("db", "web", 8080, Tcp, true),
            ("node", "web", 8080, Tcp, true),
        ],
    );
    world.end().await;
}

/// Parts of the table, sorted.
fn parts() -> Vec<String> {
    let listed = list();
    let mut parts: Vec<String> = listed
        .split([',', '\n', '{', '}'])
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect();
    parts.sort();
    parts
}

#[tokio::test]
async fn small_changes_lead_where_filling_anew_leads() {
    let mut world = World::new().await;
    let addresses = |last: u8| vec![[10, 88, 0, last].into(), format!("fd88::{last}").parse().unwrap()];
    let rules = json!([{"from": [app("client"), {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
        "ports": [{"port": 80}, {"port": 90, "endPort": 95}, {"port": "http"}]}, {"from": [{"namespaceSelector": {}}]}]);
    let out = json!([{"to": [app("db")], "ports": [{"port": "http"}, {"protocol": "UDP"}]}, {"to": [app("x")]}]);
    let steps = [
        vec![policy("p", &web(&json!({"ingress": rules, "egress": out})))],
        vec![
            labeled("r1", "client", addresses(1), "n2"),
            labeled("r2", "db", addresses(2), "n2"),
        ],
        vec![policy(
            "q",
            &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": rules}),
        )],
        vec![
            labeled("r1", "db", addresses(3), "n2"),
            labeled("l1", "web", addresses(4), "n1"),
        ],
        vec![
            labeled("l1", "db", addresses(4), "n1"),
            policy("p", &web(&json!({"ingress": [{}]}))),
        ],
        vec![
            Input::Pod("r2".to_owned(), None),
            Input::Namespace("t".to_owned(), None),
        ],
        vec![
            Input::Policy(("t".to_owned(), "q".to_owned()), None),
            Input::Pod("l1".to_owned(), None),
        ],
        vec![Input::Policy(("t".to_owned(), "p".to_owned()), None)],
    ];
    for (number, step) in steps.into_iter().enumerate() {
        world.update(step);
        let changed = parts();
        world.tables.refill(&world.plan.all()).unwrap();
        assert_eq!(changed, parts(), "step {number}");
    }
    world.end().await;
}
