//! Routes to other nodes' pods, as root, each test in its own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use agent_plan::network::node_routes::{Mode, Peer};
use common::{attach, inside, ip, machine};
use network::{Bridge, Cidr, Config, Network as _, Nodes};

fn open(folder: &Path, bridge: &str, mode: Mode) -> Bridge {
    Bridge::open(Config {
        state_dir: folder.join(bridge),
        bridge: bridge.to_owned(),
        direct: Vec::new(),
        slots: 2,
        guarded: true,
        routes: Some(mode),
    })
    .unwrap()
}

fn peer(name: &str, addresses: &[&str], ranges: &[(&str, u8)]) -> Peer {
    let parse = |address: &&str| address.parse::<IpAddr>().unwrap();
    Peer {
        name: name.to_owned(),
        created: None,
        addresses: addresses.iter().map(parse).collect(),
        ranges: ranges
            .iter()
            .map(|(address, length)| Cidr::new(parse(address), *length).unwrap())
            .collect(),
    }
}

/// A node on the link, and one behind the router.
fn nodes() -> Nodes {
    Nodes {
        own: peer("own", &["172.30.0.1"], &[]),
        peers: vec![
            peer("near", &["172.30.0.2"], &[("10.77.1.0", 24)]),
            peer("far", &["192.0.2.3"], &[("10.77.2.0", 24), ("fd77:2::", 64)]),
        ],
        id: 77,
    }
}

fn ours() -> String {
    format!("{}{}", ip("route show proto 83"), ip("-6 route show proto 83"))
}

fn fdb() -> String {
    let listed = Command::new("bridge").args(["fdb", "show", "dev", "pods-vx"]).output();
    String::from_utf8(listed.unwrap().stdout).unwrap()
}

fn near() -> String {
    let listed = Command::new("nft")
        .args(["list", "set", "ip", "skiff_pods", "near"])
        .output();
    String::from_utf8(listed.unwrap().stdout).unwrap()
}

fn tunnel() -> String {
    let tunnel = ip("-d link show pods-vx");
    for part in [
        "mtu 1350",
        "vxlan id 77 local 172.30.0.1",
        "nolearning",
        "0a:58:0a:4d:00:00",
    ] {
        assert!(tunnel.contains(part), "{part}: {tunnel}");
    }
    tunnel
}

#[tokio::test]
async fn nodes_are_reached_by_the_link_or_through_the_tunnel_for_as_long_as_they_are_there() {
    let folder = machine();
    let before = ip("-o link").lines().count();
    let network = open(folder.path(), "pods", Mode::Auto);
    network.start("10.77.0.0/24,fd77::/64".parse().unwrap()).await.unwrap();
    let early = attach(&network, "early").await;
    let unreached = network.route(nodes()).await.unwrap();
    assert!(unreached.is_empty(), "{unreached:?}");
    let routes = ours();
    assert!(routes.contains("10.77.1.0/24 via 172.30.0.2 dev up0"), "{routes}");
    assert!(routes.contains("10.77.2.0/24 via 10.77.2.0 dev pods-vx"), "{routes}");
    assert!(routes.contains("fd77:2::/64 via fd77:2:: dev pods-vx"), "{routes}");
    let tunnel = tunnel();
    assert!(ip("addr show pods-vx").contains("inet 10.77.0.0/32"));
    assert!(
        fdb().contains("0a:58:0a:4d:02:00 dst 192.0.2.3 self permanent"),
        "{}",
        fdb()
    );
    let neighbors = ip("neigh show dev pods-vx");
    assert_eq!(
        neighbors.matches("lladdr 0a:58:0a:4d:02:00 PERMANENT").count(),
        2,
        "{neighbors}"
    );
    assert!(
        near().contains("10.77.1.0-10.77.2.255") || near().contains("10.77.0.0-10.77.2.255"),
        "{}",
        near()
    );
    let late = attach(&network, "late").await;
    for pod in [&early, &late] {
        let links = inside(pod, || ip("-o link show eth0"));
        assert!(links.contains("mtu 1350"), "what fits the tunnel: {links}");
    }

    // A new process of the agent does not change them.
    drop(network);
    let network = open(folder.path(), "pods", Mode::Auto);
    network.start("10.77.0.0/24,fd77::/64".parse().unwrap()).await.unwrap();
    assert_eq!(ours(), routes);
    assert!(near().contains("10.77.2.255") && ip("-o link show pods").contains("mtu 1350"));
    network.route(nodes()).await.unwrap();
    assert_eq!(
        (ours(), ip("-d link show pods-vx")),
        (routes, tunnel),
        "not even made anew"
    );
    let news = network.hear_routes().unwrap().unwrap();
    let limit = Duration::from_millis(300);
    while let Ok(Ok(())) = tokio::time::timeout(limit, news.changed()).await {}
    network.route(nodes()).await.unwrap();
    assert!(
        tokio::time::timeout(limit, news.changed()).await.is_err(),
        "what stays is no news"
    );

    let mut less = nodes();
    less.peers.retain(|peer| peer.name == "near");
    network.route(less).await.unwrap();
    assert_eq!(ours().lines().count(), 1, "{}", ours());
    assert!(!ip("-o link").contains("pods-vx"), "nobody needs it");
    assert!(!near().contains("10.77.2"), "{}", near());
    let links = inside(&late, || ip("-o link show eth0"));
    assert!(links.contains("mtu 1400"), "{links}");
    network.route(nodes()).await.unwrap();
    network.stop().await.unwrap();
    assert_eq!(ours(), "");
    assert_eq!(ip("-o link").lines().count(), before);
}

#[tokio::test]
async fn what_others_take_is_told_and_made_again() {
    let folder = machine();
    let network = open(folder.path(), "pods", Mode::Auto);
    network.start("10.77.0.0/24".parse().unwrap()).await.unwrap();
    network.route(nodes()).await.unwrap();
    let (routes, entries, neighbors) = (ours(), fdb(), ip("neigh show dev pods-vx"));
    for harm in [
        "route del 10.77.1.0/24",
        "link del pods-vx",
        "link set pods-vx down",
        "link set up0 down",
    ] {
        let news = network.hear_routes().unwrap().unwrap();
        ip(harm);
        tokio::time::timeout(Duration::from_secs(20), news.changed())
            .await
            .unwrap_or_else(|_| panic!("{harm} is told"))
            .unwrap();
        if harm.contains("up0") {
            ip("link set up0 up");
            ip("route replace default via 172.30.0.254");
        }
        network.route(nodes()).await.unwrap();
        assert_eq!(ours(), routes, "{harm}");
        assert_eq!(fdb(), entries, "{harm}");
    }
    ip("neigh del 10.77.2.0 dev pods-vx");
    Command::new("bridge")
        .args([
            "fdb",
            "replace",
            "0a:58:0a:4d:02:00",
            "dev",
            "pods-vx",
            "dst",
            "192.0.2.66",
        ])
        .status()
        .unwrap();
    ip("route replace 10.77.1.0/24 via 172.30.0.9 proto 83 metric 7");
    network.route(nodes()).await.unwrap();
    assert_eq!((fdb(), ip("neigh show dev pods-vx")), (entries, neighbors));
    assert!(
        ours().contains("via 172.30.0.9"),
        "another's route of the same protocol stays"
    );
    network.stop().await.unwrap();
    assert!(ours().contains("via 172.30.0.9"));
}

#[tokio::test]
async fn two_clusters_have_routes_and_tunnels_of_their_own() {
    let folder = machine();
    let (one, two) = (
        open(folder.path(), "pods", Mode::Auto),
        open(folder.path(), "other", Mode::Auto),
    );
    one.start("10.77.0.0/24".parse().unwrap()).await.unwrap();
    two.start("10.78.0.0/24".parse().unwrap()).await.unwrap();
    one.route(nodes()).await.unwrap();
    let before = ours();
    let others = Nodes {
        peers: vec![peer("far", &["192.0.2.3"], &[("10.78.2.0", 24)])],
        id: 78,
        ..nodes()
    };
    two.route(others).await.unwrap();
    assert!(ours().contains("10.78.2.0/24 via 10.78.2.0 dev other-vx"), "{}", ours());
    two.stop().await.unwrap();
    assert_eq!(ours(), before);

    // The name is taken.
    ip("link add other-vx type veth peer name strange");
    two.start("10.78.0.0/24".parse().unwrap()).await.unwrap();
    let mixed = Nodes {
        peers: vec![
            peer("far", &["192.0.2.3"], &[("10.78.2.0", 24)]),
            peer("near", &["172.30.0.2"], &[("10.78.1.0", 24)]),
        ],
        id: 78,
        ..nodes()
    };
    let refused = two.route(mixed).await.unwrap_err().to_string();
    assert!(refused.contains("other-vx is there already"), "{refused}");
    assert!(
        ours().contains("10.78.1.0/24 via 172.30.0.2 dev up0"),
        "straight ones go on: {}",
        ours()
    );
    two.stop().await.unwrap();
    assert!(ip("-o link").contains("other-vx"));
    one.stop().await.unwrap();
    assert_eq!(ours(), "");
}
