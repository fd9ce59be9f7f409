//! Cost of changes, and the relation of Services and endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use expect_test::expect;
use serde_json::json;

use super::super::{Change, HealthCheck, Key, Name, Protocol, Proxy, Service, Value};
use super::{address, name, named, node, said, service, slice, tell, update};

#[test]
fn hints_count_where_every_endpoint_has_some_and_one_is_ours() {
    let chosen = |endpoints: &[&str]| {
        let mut proxy = Proxy::new(node());
        let service = service(&json!({}), &json!({}));
        update(&mut proxy, name(), Some(service), vec![slice(1, endpoints)]);
        let slots = proxy.all().filter_map(|(_, value)| match value {
            Value::Endpoint(address, _) => Some(address.to_string()),
            Value::Nothing | Value::Mark(_) | Value::Seconds(_) => None,
        });
        slots.collect::<Vec<_>>().join(" ")
    };
    for (endpoints, expected) in [
        (["1.0.0.1 n1 zone=z1", "1.0.0.2 n2 zone=z2"], "1.0.0.1"),
        (["1.0.0.1 n1 zone=z1", "1.0.0.2 n2"], "1.0.0.1 1.0.0.2"),
        (["1.0.0.1 n1 zone=z3", "1.0.0.2 n2 zone=z2"], "1.0.0.1 1.0.0.2"),
        (["1.0.0.1 n1 zone=z2", "1.0.0.2 n2 unready"], "1.0.0.1"),
        (["1.0.0.1 n1 node=n2 zone=z1", "1.0.0.2 n2 node=n1 zone=z2"], "1.0.0.2"),
        (["1.0.0.1 n1 node=n2 zone=z1", "1.0.0.2 n2 node=n3 zone=z2"], "1.0.0.1"),
        // The only one with a hint for this node is not ready.
        (["1.0.0.1 n1 zone=z1 unready", "1.0.0.2 n2 zone=z2"], "1.0.0.2"),
    ] {
        assert_eq!(chosen(&endpoints), expected, "{endpoints:?}");
    }
}

#[test]
fn families_are_led_apart() {
    let mut proxy = Proxy::new(node());
    let both = service(&json!({"clusterIPs": ["10.96.0.20", "fd96::20"]}), &json!({}));
    let slices = vec![
        slice(8080, &["10.1.0.2 n2"]),
        slice(8080, &["fd00::2 n2", "fd00::3 n2"]),
    ];
    let made = update(&mut proxy, name(), Some(both), slices);
    let v6 = made.changes.iter().filter(|change| {
        let (Change::Add(element, _) | Change::Remove(element)) = change;
        element.v6
    });
    expect![[r"
        + front fd96::20 TCP 80: 0 1 of 2
        + cluster ip fd96::20
        + slot 0.0: fd00::2 8080
        + slot 0.1: fd00::3 8080
    "]]
    .assert_eq(&tell(v6.copied()));
}

#[test]
fn a_replaced_endpoint_is_one_slot() {
    let mut proxy = Proxy::new(node());
    let service = service(&json!({}), &json!({}));
    let with = |endpoints: &[&str]| vec![slice(80, endpoints)];
    update(
        &mut proxy,
        name(),
        Some(Arc::clone(&service)),
        with(&["1.0.0.1 n2", "1.0.0.2 n2"]),
    );
    let replaced = update(
        &mut proxy,
        name(),
        Some(Arc::clone(&service)),
        with(&["1.0.0.1 n2", "1.0.0.3 n2"]),
    );
    expect![[r"
        - slot 0.1
        + slot 0.1: 1.0.0.3 80
    "]]
    .assert_eq(&tell(replaced.changes));
    let more = ["1.0.0.1 n2", "1.0.0.3 n2", "1.0.0.4 n2"];
    let more = update(&mut proxy, name(), Some(Arc::clone(&service)), with(&more));
    expect![[r"
        - front 10.96.0.20 TCP 80
        + front 10.96.0.20 TCP 80: 0 1 of 3
        + slot 0.2: 1.0.0.4 80
    "]]
    .assert_eq(&tell(more.changes));
    let same = ["1.0.0.4 n2", "1.0.0.3 n2", "1.0.0.1 n2"];
    let same = update(&mut proxy, name(), Some(service), with(&same));
    assert!(
        same.changes.is_empty() && same.datagrams.is_none(),
        "{:?}",
        same.changes
    );
}

#[test]
fn the_oldest_service_has_an_address_that_two_want() {
    let mut proxy = Proxy::new(node());
    let slices = || vec![slice(80, &["1.0.0.1 n2"])];
    let wants = |name: &str, cluster_ip: &str, created: i64| {
        let spec = json!({"clusterIP": cluster_ip, "externalIPs": ["198.51.100.1"]});
        let service = Service::clone(&named(name, &spec, &json!({})));
        Some(Arc::new(Service { created, ..service }))
    };
    let named = |name: &str| Name::new("team", name);
    let has = |proxy: &Proxy| {
        let key = Key::Outer(address("198.51.100.1"), Protocol::Tcp, 80);
        let found = proxy.all().find(|(element, _)| element.key == key);
        found.map(|(_, value)| said(value))
    };
    update(&mut proxy, named("b"), wants("b", "10.96.0.2", 1), slices());
    update(&mut proxy, named("a"), wants("a", "10.96.0.1", 2), slices());
    assert_eq!(has(&proxy).as_deref(), Some(": 0 1 of 1 masquerade"), "of b");
    let gone = update(&mut proxy, named("b"), None, Vec::new());
    assert_eq!(has(&proxy).as_deref(), Some(": 2 1 of 1 masquerade"), "of a");
    let told = tell(gone.changes);
    assert!(
        told.contains("+ outer 198.51.100.1 TCP 80: 2 1 of 1 masquerade"),
        "{told}"
    );
}

#[test]
fn datagrams_to_those_who_are_gone_are_stale() {
    let mut proxy = Proxy::new(node());
    let spec = json!({"ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053}]});
    let service = service(&spec, &json!({}));
    let at = |text: &str, port: u16| (address(text), port);
    let (front, node_port) = (at("10.96.0.20", 53), at("172.30.0.1", 30053));
    let both = ["1.0.0.1 n2", "1.0.0.2 n2 unready ending"];
    let made = update(&mut proxy, name(), Some(Arc::clone(&service)), vec![slice(5353, &both)]);
    let made = made.datagrams.unwrap();
    for to in [front, node_port] {
        assert!(
            !made.is_stale(to, at("1.0.0.1", 5353), false) && !made.is_stale(to, at("1.0.0.2", 5353), false),
            "{to:?}"
        );
        assert!(
            made.is_stale(to, at("1.0.0.3", 5353), false) && made.is_stale(to, to, false),
            "{to:?}"
        );
    }
    assert!(
        !made.is_stale(at("10.96.0.21", 53), at("1.0.0.9", 53), false),
        "to somebody else"
    );
    let foreign = at("192.0.2.1", 30053);
    assert!(
        !made.is_stale(foreign, foreign, true) && made.is_stale(front, front, true),
        "a pod's flow to the same port of another host"
    );
    let less = update(&mut proxy, name(), Some(service), vec![slice(5353, &["1.0.0.3 n2"])]);
    assert!(less.datagrams.unwrap().is_stale(front, at("1.0.0.1", 5353), false));
    let gone = update(&mut proxy, name(), None, Vec::new());
    assert!(gone.datagrams.unwrap().is_stale(front, at("1.0.0.3", 5353), false));
}

#[test]
fn load_balancers_are_told_how_many_endpoints_the_node_has() {
    let mut proxy = Proxy::new(node());
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
        "ports": [{"port": 80}, {"port": 443}]});
    let endpoints = ["1.0.0.1 n1", "1.0.0.2 n1 unready", "1.0.0.3 n2"];
    update(
        &mut proxy,
        name(),
        Some(service(&spec, &json!({}))),
        vec![slice(80, &endpoints)],
    );
    let asked = HealthCheck {
        service: name(),
        endpoints: 1,
    };
    assert_eq!(proxy.health_checks(), BTreeMap::from([(32000, asked)]));
    update(&mut proxy, name(), Some(service(&json!({}), &json!({}))), Vec::new());
    assert_eq!(proxy.health_checks(), BTreeMap::new());
}

#[test]
fn large_groups_share_slots_and_no_endpoint_lacks_one() {
    let endpoints: Vec<String> = (0..300)
        .map(|number| format!("1.0.{}.{} n2", number / 250, number % 250))
        .collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let mut proxy = Proxy::new(node());
    let service = service(&json!({}), &json!({}));
    update(&mut proxy, name(), Some(service), vec![slice(1, &endpoints)]);
    let mut times: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for (_, value) in proxy.all() {
        if let Value::Endpoint(address, _) = value {
            *times.entry(address).or_default() += 1;
        }
    }
    assert_eq!((times.len(), times.values().sum::<u32>()), (300, 480));
}

#[test]
fn attack_no_service_takes_the_api_servers_address_from_outside() {
    let mut proxy = Proxy::new(node());
    let ports = json!([{"name": "api", "port": 6443}, {"name": "web", "port": 80}]);
    let spec = json!({"clusterIP": "10.96.0.2", "ports": ports, "externalIPs": ["172.30.0.1"]});
    update(&mut proxy, name(), Some(service(&spec, &json!({}))), Vec::new());
    let has = |port| {
        let key = Key::Outer(address("172.30.0.1"), Protocol::Tcp, port);
        proxy.all().any(|(element, _)| element.key == key)
    };
    assert!(has(80) && !has(6443));
}

#[test]
fn datagrams_to_an_address_that_another_service_has_are_left_alone() {
    let mut proxy = Proxy::new(node());
    let wants = |name: &str, cluster_ip: &str, created: i64| {
        let ports = json!([{"port": 53, "protocol": "UDP"}]);
        let spec = json!({"clusterIP": cluster_ip, "externalIPs": ["198.51.100.1"], "ports": ports});
        let service = Service::clone(&named(name, &spec, &json!({})));
        Some(Arc::new(Service { created, ..service }))
    };
    let named = |name: &str| Name::new("team", name);
    let first = vec![slice(53, &["1.0.0.1 n2"])];
    update(&mut proxy, named("first"), wants("first", "10.96.0.1", 1), first);
    let second = vec![slice(53, &["1.0.0.2 n2"])];
    update(&mut proxy, named("second"), wants("second", "10.96.0.2", 2), second);
    let now = proxy.datagrams();
    let outer = (address("198.51.100.1"), 53);
    assert!(
        !now.is_stale(outer, (address("1.0.0.1"), 53), false),
        "the owner's endpoint"
    );
    assert!(now.is_stale(outer, (address("1.0.0.2"), 53), false), "the other's");
}
