//! Routes that follow from Nodes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::{Hop, Mode, Peer, Way, asked, plan};

fn node(name: &str, created: &str, addresses: &[&str], ranges: &[&str]) -> Peer {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .chain([json!({"type": "Hostname", "address": "10.0.0.1"})])
        .collect();
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{created}Z")},
        "spec": {"podCIDR": ranges.first(), "podCIDRs": ranges},
        "status": {"addresses": addresses},
    }))
    .unwrap();
    Peer::of(&node)
}

fn way(on_link: bool, mtu: u32) -> Way {
    Way {
        interface: 2,
        on_link,
        has_neighbors: true,
        mtu,
    }
}

fn ways(all: &[(&str, Way)]) -> BTreeMap<IpAddr, Way> {
    all.iter()
        .map(|(address, way)| (address.parse().unwrap(), *way))
        .collect()
}

fn check(own: &Peer, peers: &[Peer], found: &[(&str, Way)], mode: Mode, expected: &Expect) {
    let routes = plan(own, peers, &ways(found), mode);
    let mut text = String::new();
    for (range, hop) in &routes.routes {
        match hop {
            Hop::Direct { gateway, interface } => writeln!(text, "{range} via {gateway} dev {interface}"),
            Hop::Tunnel { gateway } => writeln!(text, "{range} via {gateway} through the tunnel"),
        }
        .unwrap();
    }
    if let Some(tunnel) = &routes.tunnel {
        let (local, hardware, addresses, mtu) = (tunnel.local, tunnel.hardware, &tunnel.addresses, tunnel.mtu);
        writeln!(text, "tunnel from {local}: {hardware:x?} {addresses:?} mtu {mtu}").unwrap();
        for (hardware, node) in &tunnel.forwarding {
            writeln!(text, "  {hardware:x?} is at {node}").unwrap();
        }
        for (address, hardware) in &tunnel.neighbors {
            writeln!(text, "  {address} is {hardware:x?}").unwrap();
        }
    }
    if let Some(mtu) = routes.mtu {
        writeln!(text, "mtu {mtu}").unwrap();
    }
    for (node, why) in &routes.unreached {
        writeln!(text, "{node}: {why}").unwrap();
    }
    expected.assert_eq(&text);
}

#[test]
fn nodes_on_the_link_are_reached_straight_and_others_through_the_tunnel() {
    let own = node("a", "01", &["192.0.2.1"], &["10.244.0.0/24"]);
    let peers = [
        own.clone(),
        node("b", "02", &["192.0.2.2"], &["10.244.1.0/24"]),
        node("c", "03", &["198.51.100.3"], &["10.244.2.0/24"]),
    ];
    let found = [("192.0.2.2", way(true, 1500)), ("198.51.100.3", way(false, 1500))];
    check(
        &own,
        &peers,
        &found,
        Mode::Auto,
        &expect![[r"
            10.244.1.0/24 via 192.0.2.2 dev 2
            10.244.2.0/24 via 10.244.2.0 through the tunnel
            tunnel from 192.0.2.1: [a, 58, a, f4, 0, 0] [10.244.0.0] mtu 1450
              [a, 58, a, f4, 2, 0] is at 198.51.100.3
              10.244.2.0 is [a, 58, a, f4, 2, 0]
            mtu 1450
        "]],
    );
    check(
        &own,
        &peers,
        &found,
        Mode::Direct,
        &expect![[r"
            10.244.1.0/24 via 192.0.2.2 dev 2
            mtu 1500
        "]],
    );
    let asked: Vec<String> = asked(&own, &peers).iter().map(ToString::to_string).collect();
    assert_eq!(asked, ["192.0.2.2", "198.51.100.3"], "never for itself");
}

#[test]
fn a_network_that_carries_no_addresses_of_pods_carries_the_tunnel() {
    let own = node("a", "01", &["192.0.2.1"], &["10.244.0.0/24"]);
    let peers = [node("b", "02", &["192.0.2.2"], &["10.244.1.0/24"])];
    check(
        &own,
        &peers,
        &[("192.0.2.2", way(true, 9000))],
        Mode::Tunnel,
        &expect![[r"
            10.244.1.0/24 via 10.244.1.0 through the tunnel
            tunnel from 192.0.2.1: [a, 58, a, f4, 0, 0] [10.244.0.0] mtu 8950
              [a, 58, a, f4, 1, 0] is at 192.0.2.2
              10.244.1.0 is [a, 58, a, f4, 1, 0]
            mtu 8950
        "]],
    );
}

#[test]
fn a_vpn_carries_the_tunnel() {
    let own = node("a", "01", &["100.64.0.1"], &["10.244.0.0/24"]);
    let peers = [node("b", "02", &["100.64.0.2"], &["10.244.1.0/24"])];
    let vpn = Way {
        has_neighbors: false,
        ..way(true, 1420)
    };
    let found = [("100.64.0.2", vpn)];
    check(
        &own,
        &peers,
        &found,
        Mode::Auto,
        &expect![[r"
            10.244.1.0/24 via 10.244.1.0 through the tunnel
            tunnel from 100.64.0.1: [a, 58, a, f4, 0, 0] [10.244.0.0] mtu 1370
              [a, 58, a, f4, 1, 0] is at 100.64.0.2
              10.244.1.0 is [a, 58, a, f4, 1, 0]
            mtu 1370
        "]],
    );
    check(
        &own,
        &peers,
        &found,
        Mode::Direct,
        &expect![[r"
            10.244.1.0/24 via 100.64.0.2 dev 2
            mtu 1420
        "]],
    );
}

#[test]
fn each_family_goes_its_own_way() {
    let both = ["10.244.0.0/24", "fd00:1::/64"];
    let own = node("a", "01", &["192.0.2.1", "2001:db8::1"], &both);
    let peers = [
        node(
            "b",
            "02",
            &["192.0.2.2", "2001:db8::2"],
            &["10.244.1.0/24", "fd00:2::/64"],
        ),
        node("c", "03", &["198.51.100.3"], &["10.244.2.0/24", "fd00:3::/64"]),
    ];
    let found = [
        ("192.0.2.2", way(true, 9000)),
        ("2001:db8::2", way(true, 9000)),
        ("198.51.100.3", way(false, 1500)),
    ];
    check(
        &own,
        &peers,
        &found,
        Mode::Auto,
        &expect![[r"
            10.244.1.0/24 via 192.0.2.2 dev 2
            10.244.2.0/24 via 10.244.2.0 through the tunnel
            fd00:2::/64 via 2001:db8::2 dev 2
            fd00:3::/64 via fd00:3:: through the tunnel
            tunnel from 192.0.2.1: [a, 58, a, f4, 0, 0] [10.244.0.0, fd00:1::] mtu 1450
              [a, 58, a, f4, 2, 0] is at 198.51.100.3
              10.244.2.0 is [a, 58, a, f4, 2, 0]
              fd00:3:: is [a, 58, a, f4, 2, 0]
            mtu 1450
        "]],
    );
    let own = node("a", "01", &["2001:db8::1"], &["fd00:1::/64"]);
    let peers = [node("b", "02", &["2001:db8:1::2"], &["fd00:2::/64"])];
    check(
        &own,
        &peers,
        &[("2001:db8:1::2", way(false, 1500))],
        Mode::Auto,
        &expect![[r"
            fd00:2::/64 via fd00:2:: through the tunnel
            tunnel from 2001:db8::1: [a, 58, ca, 16, f8, 5b] [fd00:1::] mtu 1430
              [a, 58, 1, 2b, 95, 7e] is at 2001:db8:1::2
              fd00:2:: is [a, 58, 1, 2b, 95, 7e]
            mtu 1430
        "]],
    );
}

#[test]
fn a_node_takes_no_addresses_of_others() {
    let own = node("a", "01", &["192.0.2.1"], &["10.244.0.0/24"]);
    let found =
        ["192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6"].map(|address| (address, way(true, 1500)));
    let peers = [
        node("late", "09", &["192.0.2.3"], &["10.244.1.128/25"]),
        node("b", "02", &["192.0.2.2"], &["10.244.1.0/24"]),
        node("nodes", "03", &["192.0.2.4"], &["192.0.2.0/24"]),
        node("all", "04", &["192.0.2.5"], &["0.0.0.0/0"]),
        node("own", "00", &["192.0.2.6"], &["10.244.0.7/32"]),
        node("new", "05", &[], &["10.244.9.0/24"]),
        node("gone", "06", &["203.0.113.1"], &["10.244.8.0/24"]),
        node("lo", "07", &["203.0.113.2"], &["127.0.0.0/8"]),
    ];
    check(
        &own,
        &peers,
        &found,
        Mode::Auto,
        &expect![[r"
            10.244.1.0/24 via 192.0.2.2 dev 2
            mtu 1500
            all: 0.0.0.0/0: another node has addresses of it
            gone: 10.244.8.0/24: this node has no way to its address
            late: 10.244.1.128/25: another node has addresses of it
            lo: 127.0.0.0/8: it is no range of pods
            new: 10.244.9.0/24: the node has no address yet
            nodes: 192.0.2.0/24: it has addresses of nodes themselves
            own: 10.244.0.7/32: another node has addresses of it
        "]],
    );
}
