//! Proxy rules of Services and their endpoints.

mod changes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};

use super::{
    Address, Change, DROP, Element, GROUP, Input, Key, Name, Node, Proxy, REFUSE, Service, Slice, Update, Value, flags,
    slots,
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node() -> Node {
    Node {
        name: "n1".to_owned(),
        zone: Some("z1".to_owned()),
        addresses: vec![address("172.30.0.1")],
        reserved: [(address("172.30.0.1"), 6443)].into(),
    }
}

fn name() -> Name {
    Name::new("team", "web")
}

/// A Service `10.96.0.20`, port 80 of TCP, with other fields of its `spec` and its `status`.
fn service(spec: &Json, status: &Json) -> Arc<Service> {
    named("web", spec, status)
}

fn named(name: &str, spec: &Json, status: &Json) -> Arc<Service> {
    let mut whole = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]});
    let fields = spec.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(fields);
    let object = json!({"metadata": {"namespace": "team", "name": name}, "spec": whole, "status": status});
    let (_, service) = Service::new(&serde_json::from_value(object).unwrap());
    Arc::new(service)
}

/// Endpoints as `ADDRESS NODE CONDITIONS`, with only those conditions that differ from the
/// defaults.
fn slice(port: u16, endpoints: &[&str]) -> Arc<Slice> {
    let endpoint = |text: &&str| {
        let mut words = text.split(' ');
        let (address, node) = (words.next().unwrap(), words.next().unwrap());
        let words: Vec<&str> = words.collect();
        let has = |word: &str| words.contains(&word);
        let hint = |kind: &str| {
            let named = words.iter().filter_map(|word| word.strip_prefix(kind));
            named.map(|name| json!({"name": name})).collect::<Vec<_>>()
        };
        let mut endpoint = json!({
            "addresses": [address],
            "conditions": {"ready": !has("unready"), "serving": !has("dead"), "terminating": has("ending")},
            "hints": {"forZones": hint("zone="), "forNodes": hint("node=")},
        });
        if node != "-" {
            endpoint
                .as_object_mut()
                .unwrap()
                .insert("nodeName".to_owned(), node.into());
        }
        endpoint
    };
    let v6 = endpoints.first().is_some_and(|endpoint| endpoint.contains("::"));
    let slice = json!({
        "metadata": {"namespace": "team", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": [{"port": port}, {"port": port, "protocol": "UDP"}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    });
    let (own, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
    assert_eq!((own.namespace(), own.name(), &*slice.name), ("team", "web", "web-1"));
    Arc::new(slice)
}

fn tell(changes: impl IntoIterator<Item = Change>) -> String {
    let line = |change: Change| match change {
        Change::Remove(element) => format!("- {}\n", key(element)),
        Change::Add(element, value) => format!("+ {}{}\n", key(element), said(value)),
    };
    changes.into_iter().map(line).collect()
}

fn key(element: Element) -> String {
    let at = |kind: &str, (address, protocol, port): Address| format!("{kind} {address} {} {port}", protocol.name());
    match element.key {
        Key::Front(address, protocol, port) => at("front", (address, protocol, port)),
        Key::Outer(address, protocol, port) => at("outer", (address, protocol, port)),
        Key::OuterLocal(address, protocol, port) => at("outer local", (address, protocol, port)),
        Key::NodePort(protocol, port) => format!("node port {} {port}", protocol.name()),
        Key::NodePortLocal(protocol, port) => format!("node port local {} {port}", protocol.name()),
        Key::ClusterIp(address) => format!("cluster ip {address}"),
        Key::Slot(group, number) => format!("slot {}.{number}", group >> 8),
        Key::Hairpin(group, address) => format!("hairpin {} {address}", group >> 8),
        Key::Source(group, first, last) => format!("source {} {first}-{last}", group >> 8),
        Key::Member(group, address, port) => format!("member {} {address} {port}", group >> 8),
        Key::Timeout(group) => format!("timeout {}", group >> 8),
    }
}

fn said(value: Value) -> String {
    match value {
        Value::Nothing => String::new(),
        Value::Endpoint(address, port) => format!(": {address} {port}"),
        Value::Seconds(seconds) => format!(": {seconds}s"),
        Value::Mark(mark) => {
            let class = match u8::try_from(mark & 0xff).unwrap() {
                REFUSE => "refuse".to_owned(),
                DROP => "drop".to_owned(),
                class => format!("1 of {}", slots(class)),
            };
            let names = [
                (flags::MASQUERADE, " masquerade"),
                (flags::LOCAL, " local"),
                (flags::AFFINITY, " affinity"),
                (flags::RANGES, " ranges"),
            ];
            let flags = names.iter().filter(|(flag, _)| mark & flag != 0).map(|(_, name)| *name);
            format!(": {} {class}{}", (mark & GROUP) >> 8, flags.collect::<String>())
        }
    }
}

fn update(proxy: &mut Proxy, name: Name, service: Option<Arc<Service>>, slices: Vec<Arc<Slice>>) -> Update {
    let slices = slices.into();
    proxy.update(BTreeMap::from([(name, Input { service, slices })]))
}

fn check(spec: &Json, status: &Json, endpoints: &[&str], expected: &Expect) {
    let mut proxy = Proxy::new(node());
    let service = service(spec, status);
    let made = update(&mut proxy, name(), Some(service), vec![slice(8080, endpoints)]);
    expected.assert_eq(&tell(made.changes.iter().copied()));
    let all = proxy.all().map(|(element, value)| Change::Add(element, value));
    assert_eq!(tell(all), tell(made.changes), "what a start fills");
    let gone = update(&mut proxy, name(), None, Vec::new());
    let gone = gone.changes.iter().all(|change| matches!(change, Change::Remove(_)));
    assert!(gone && proxy.all().next().is_none(), "nothing is left");
}

#[test]
fn a_cluster_address_leads_to_every_ready_endpoint() {
    let endpoints = ["10.1.0.2 n1", "10.2.0.2 n2", "10.2.0.3 n2 unready dead", "10.9.0.9 -"];
    check(
        &json!({}),
        &json!({}),
        &endpoints,
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 3
            + cluster ip 10.96.0.20
            + slot 0.0: 10.1.0.2 8080
            + slot 0.1: 10.2.0.2 8080
            + slot 0.2: 10.9.0.9 8080
            + hairpin 0 10.1.0.2
            + hairpin 0 10.9.0.9
        "]],
    );
}

#[test]
fn without_endpoints_a_service_refuses() {
    check(
        &json!({"ports": [{"port": 80, "nodePort": 30080}], "externalTrafficPolicy": "Local"}),
        &json!({}),
        &["10.1.0.2 n1 unready dead"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 refuse
            + node port TCP 30080: 0 refuse
            + cluster ip 10.96.0.20
        "]],
    );
}

#[test]
fn slices_labelled_headless_are_for_names_alone() {
    let mut headless = Slice::clone(&slice(8080, &["10.1.0.3 n2"]));
    headless.headless = true;
    let slices = vec![slice(8080, &["10.1.0.2 n2"]), Arc::new(headless)];
    let made = update(
        &mut Proxy::new(node()),
        name(),
        Some(service(&json!({}), &json!({}))),
        slices,
    );
    expect![[r"
        + front 10.96.0.20 TCP 80: 0 1 of 1
        + cluster ip 10.96.0.20
        + slot 0.0: 10.1.0.2 8080
    "]]
    .assert_eq(&tell(made.changes));
    let labels = json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""});
    let labelled = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": []});
    let (_, labelled) = Slice::new(&serde_json::from_value(labelled).unwrap(), "n1").unwrap();
    assert!(labelled.headless);
}

#[test]
fn endpoints_that_end_stand_in_where_none_is_ready() {
    check(
        &json!({}),
        &json!({}),
        &["10.1.0.2 n2 unready ending", "10.1.0.3 n2 unready dead ending"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 1
            + cluster ip 10.96.0.20
            + slot 0.0: 10.1.0.2 8080
        "]],
    );
    check(
        &json!({}),
        &json!({}),
        &["10.1.0.2 n2 unready ending", "10.1.0.3 n2"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 1
            + cluster ip 10.96.0.20
            + slot 0.0: 10.1.0.3 8080
        "]],
    );
    // Another pod has the address by now.
    check(
        &json!({}),
        &json!({}),
        &["10.1.0.2 n2 unready ending", "10.1.0.2 n2 unready dead"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 refuse
            + cluster ip 10.96.0.20
        "]],
    );
}

#[test]
fn neither_headless_nor_external_names_nor_other_proxies_concern_us() {
    for spec in [
        json!({"clusterIP": "None"}),
        json!({"type": "ExternalName", "clusterIP": "", "externalName": "example.org"}),
    ] {
        check(&spec, &json!({}), &["10.1.0.2 n1"], &expect![""]);
    }
    let other = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}},
        "spec": {"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}});
    let (_, other) = Service::new(&serde_json::from_value(other).unwrap());
    assert!(!other.proxied && !other.cluster_ips.is_empty());
}

#[test]
fn an_internal_policy_of_local_keeps_to_the_node() {
    let spec = json!({"internalTrafficPolicy": "Local"});
    check(
        &spec,
        &json!({}),
        &["10.1.0.2 n1", "10.2.0.2 n2"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 1 1 of 1
            + cluster ip 10.96.0.20
            + slot 1.0: 10.1.0.2 8080
            + hairpin 1 10.1.0.2
        "]],
    );
    check(
        &spec,
        &json!({}),
        &["10.2.0.2 n2"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 1 drop
            + cluster ip 10.96.0.20
        "]],
    );
}

#[test]
fn from_outside_the_policy_decides_who_sees_the_client() {
    let balancer =
        json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}, {"ip": "203.0.113.8", "ipMode": "Proxy"}]}});
    let endpoints = ["10.1.0.2 n1", "10.2.0.2 n2"];
    let ports = json!([{"port": 80, "nodePort": 30080}]);
    check(
        &json!({"ports": ports, "externalIPs": ["198.51.100.1"]}),
        &balancer,
        &endpoints,
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 2
            + outer 198.51.100.1 TCP 80: 0 1 of 2 masquerade
            + outer 203.0.113.7 TCP 80: 0 1 of 2 masquerade
            + node port TCP 30080: 0 1 of 2 masquerade
            + cluster ip 10.96.0.20
            + slot 0.0: 10.1.0.2 8080
            + slot 0.1: 10.2.0.2 8080
            + hairpin 0 10.1.0.2
        "]],
    );
    let local = json!({"ports": ports, "type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    check(
        &local,
        &balancer,
        &endpoints,
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 2
            + outer 203.0.113.7 TCP 80: 0 1 of 2 local
            + outer local 203.0.113.7 TCP 80: 1 1 of 1 local
            + node port TCP 30080: 0 1 of 2 local
            + node port local TCP 30080: 1 1 of 1 local
            + cluster ip 10.96.0.20
            + slot 0.0: 10.1.0.2 8080
            + slot 0.1: 10.2.0.2 8080
            + slot 1.0: 10.1.0.2 8080
            + hairpin 0 10.1.0.2
            + hairpin 1 10.1.0.2
        "]],
    );
    check(
        &local,
        &json!({}),
        &["10.2.0.2 n2"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 1
            + node port TCP 30080: 0 1 of 1 local
            + node port local TCP 30080: 1 drop local
            + cluster ip 10.96.0.20
            + slot 0.0: 10.2.0.2 8080
        "]],
    );
}

#[test]
fn source_ranges_hold_for_balancers_and_let_the_node_pass_by_their_address() {
    let balancer = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}});
    let with = |ranges: Json| json!({"externalIPs": ["198.51.100.1"], "loadBalancerSourceRanges": ranges});
    check(
        &with(json!([
            "192.168.0.0/24",
            " 192.168.0.128/25 ",
            "172.30.0.0/16",
            "fd00::/64"
        ])),
        &balancer,
        &["10.2.0.2 n2"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 1
            + outer 198.51.100.1 TCP 80: 0 1 of 1 masquerade
            + outer 203.0.113.7 TCP 80: 0 1 of 1 masquerade ranges
            + cluster ip 10.96.0.20
            + slot 0.0: 10.2.0.2 8080
            + source 0 172.30.0.0-172.30.255.255
            + source 0 192.168.0.0-192.168.0.255
            + source 0 203.0.113.7-203.0.113.7
        "]],
    );
    let all = with(json!(["192.168.0.0/24", "0.0.0.0/0"]));
    let everybody = service(&all, &balancer);
    assert_eq!(everybody.external.as_ref().unwrap().ranges, []);
}

#[test]
fn clients_stay_for_as_long_as_the_service_says() {
    check(
        &json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}),
        &json!({}),
        &["10.1.0.2 n1", "10.2.0.2 n2"],
        &expect![[r"
            + front 10.96.0.20 TCP 80: 0 1 of 2 affinity
            + cluster ip 10.96.0.20
            + slot 0.0: 10.1.0.2 8080
            + slot 0.1: 10.2.0.2 8080
            + hairpin 0 10.1.0.2
            + member 0 10.1.0.2 8080
            + member 0 10.2.0.2 8080
            + timeout 0: 60s
        "]],
    );
    let unsaid = service(&json!({"sessionAffinity": "ClientIP"}), &json!({}));
    assert_eq!(unsaid.affinity.map(u32::from), Some(10_800));
}

#[test]
fn names_are_sorted_and_written_as_pairs() {
    let pairs = [("a", "b"), ("a", "b-1"), ("a-b", "a"), ("ab", "a")];
    let names = pairs.map(|(namespace, name)| Name::new(namespace, name));
    assert!(names.is_sorted(), "{names:?}");
    let text = serde_json::to_string(&names).unwrap();
    assert_eq!(text, r#"[["a","b"],["a","b-1"],["a-b","a"],["ab","a"]]"#);
    let read: Vec<Name> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, names);
    assert!(read.iter().map(Name::parts).eq(pairs));
}
