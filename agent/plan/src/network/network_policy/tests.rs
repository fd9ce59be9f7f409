//! Tables of policies and pods, and the changes that follow from them.

use std::fmt::Write as _;
use std::sync::Arc;

use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};

use super::{Change, Direction, Element, Input, Labels, Pod, Policies, Policy, Rule};

/// `UID NAMESPACE ADDRESSES LABEL=VALUE… NAME:PORT/PROTOCOL… [here] [host] [ended]`
fn pod(text: &str) -> Input {
    let mut words = text.split(' ');
    let (uid, namespace, addresses) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    let words: Vec<&str> = words.collect();
    let labels: Json = words.iter().filter_map(|word| word.split_once('=')).collect();
    let ports = words.iter().filter_map(|word| {
        let (name, port) = word.split_once(':')?;
        let (port, protocol) = port.split_once('/')?;
        Some(json!({"name": name, "containerPort": port.parse::<u16>().unwrap(), "protocol": protocol}))
    });
    let addresses = addresses.split(',').filter(|address| *address != "-");
    let has = |word: &str| words.contains(&word);
    let object = json!({
        "metadata": {"namespace": namespace, "name": uid, "uid": uid, "labels": labels},
        "spec": {"nodeName": if has("here") { "n1" } else { "n2" }, "hostNetwork": has("host"),
            "containers": [{"name": "c", "ports": ports.collect::<Vec<_>>()}]},
        "status": {"podIPs": addresses.map(|address| json!({"ip": address})).collect::<Vec<_>>(),
            "phase": if has("ended") { "Succeeded" } else { "Running" }},
    });
    let kept = Pod::new(&serde_json::from_value(object).unwrap(), "n1");
    Input::Pod(uid.to_owned(), kept.map(Arc::new))
}

fn namespace(name: &str, labels: &[(&str, &str)]) -> Input {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Input::Namespace(name.to_owned(), Some(labels.collect::<Labels>()))
}

fn policy(name: &str, spec: &Json) -> Input {
    let object = json!({"metadata": {"namespace": "team", "name": name}, "spec": spec});
    let (name, policy) = Policy::new(&serde_json::from_value(object).unwrap());
    Input::Policy(name, Some(Arc::new(policy)))
}

/// Web and its database on this node, a client on another node, and a pod in another namespace.
fn world() -> Policies {
    let mut policies = Policies::default();
    let changes = policies.update(vec![
        namespace("team", &[("who", "us")]),
        namespace("other", &[("who", "them")]),
        pod("web team 10.0.1.2,fd00::2 app=web http:8080/TCP dns:53/UDP here"),
        pod("db team 10.0.1.3 app=db http:9090/TCP here"),
        pod("client team 10.0.2.2 app=client http:7070/TCP"),
        pod("stranger other 10.0.2.3 app=client"),
        pod("ended team 10.0.2.4 app=client ended"),
        pod("node team 172.30.0.1 app=client host here"),
    ]);
    assert_eq!(tell(&changes), "", "nothing without policies");
    policies
}

fn tell(changes: &[Change]) -> String {
    let mut all = String::new();
    for change in changes {
        match change {
            Change::AddSet(number, shape) => writeln!(all, "+ set {number} {shape:?}"),
            Change::AddChain(number, direction, rules) => {
                let rules: Vec<String> = rules.iter().map(rule).collect();
                writeln!(all, "+ chain {number} {direction:?}: {}", rules.join(" | "))
            }
            Change::Remove(own) => writeln!(all, "- {}", element(*own)),
            Change::Add(own) => writeln!(all, "+ {}", element(*own)),
            Change::RemoveChain(direction, number) => writeln!(all, "- chain {number} {direction:?}"),
            Change::RemoveSet(number) => writeln!(all, "- set {number}"),
        }
        .unwrap();
    }
    all
}

fn rule(rule: &Rule) -> String {
    if rule.0.is_empty() {
        return "all".to_owned();
    }
    let sets: Vec<String> = rule
        .0
        .iter()
        .map(|(shape, number)| format!("{shape:?} {number}"))
        .collect();
    sets.join(" . ")
}

fn element(element: Element) -> String {
    match element {
        Element::Isolated(Direction::In, address, chain) => format!("in {address}: {chain}"),
        Element::Isolated(Direction::Out, address, chain) => format!("out {address}: {chain}"),
        Element::Itself(address) => format!("itself {address}"),
        Element::Address(set, address) => format!("{set}: {address}"),
        Element::Range(set, first, last) => format!("{set}: {first}-{last}"),
        Element::Ports(set, protocol, first, last) => format!("{set}: {} {first}-{last}", protocol.name()),
        Element::Endpoint(set, address, protocol, port) => format!("{set}: {address} {} {port}", protocol.name()),
    }
}

/// Checks the changes of a policy with this spec, without the isolated pods themselves.
fn check(spec: &Json, expected: &Expect) {
    let mut policies = world();
    let changes = policies.update(vec![policy("p", spec)]);
    let told = tell(&changes);
    let lines = told
        .lines()
        .filter(|line| !line.starts_with("+ i") && !line.starts_with("+ out"));
    expected.assert_eq(&lines.collect::<Vec<_>>().join("\n"));
    let gone = policies.update(vec![Input::Policy(("team".to_owned(), "p".to_owned()), None)]);
    let came = changes
        .iter()
        .filter(|change| matches!(change, Change::AddSet(..) | Change::AddChain(..)));
    let left = gone
        .iter()
        .filter(|change| matches!(change, Change::RemoveSet(_) | Change::RemoveChain(..)));
    assert_eq!(came.count(), left.count(), "{}", tell(&gone));
    assert_eq!(tell(&policies.all()), "", "nothing is left");
}

const WEB: &str = r#"{"matchLabels": {"app": "web"}}"#;

fn selecting_web(rest: &Json) -> Json {
    let mut spec = json!({"podSelector": serde_json::from_str::<Json>(WEB).unwrap()});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}

fn ingress(rules: &Json) -> Json {
    selecting_web(&json!({"policyTypes": ["Ingress"], "ingress": rules}))
}

fn egress(rules: &Json) -> Json {
    selecting_web(&json!({"policyTypes": ["Egress"], "egress": rules}))
}

#[test]
fn a_policy_isolates_the_pods_of_this_node_that_it_selects() {
    let mut policies = world();
    let all = policies.update(vec![policy("p", &json!({"podSelector": {}}))]);
    expect![[r"
        + chain 1 In: 
        + itself 10.0.1.2
        + itself 10.0.1.3
        + itself fd00::2
        + in 10.0.1.2: 1
        + in 10.0.1.3: 1
        + in fd00::2: 1
    "]]
    .assert_eq(&sorted(&all));
    let both = policies.update(vec![policy(
        "p",
        &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
    )]);
    assert!(tell(&both).contains("+ out 10.0.1.3: "), "{}", tell(&both));
    let none = policies.update(vec![policy("p", &selecting_web(&json!({"policyTypes": ["Egress"]})))]);
    let told = tell(&none);
    assert!(
        told.contains("- in 10.0.1.3: 1") && told.contains("- itself 10.0.1.3"),
        "{told}"
    );
    assert!(!told.contains("10.0.1.2: 2"), "web keeps its chain: {told}");
}

/// Elements by kind, since sets are unordered.
fn sorted(changes: &[Change]) -> String {
    let told = tell(changes);
    let rank = |line: &&str| {
        let ranks = ["+ set", "+ chain", "- ", "+ itself"];
        ranks
            .iter()
            .position(|begin| line.starts_with(begin))
            .unwrap_or(ranks.len())
    };
    let mut lines: Vec<&str> = told.lines().collect();
    lines.sort_by_key(rank);
    lines.join("\n") + "\n"
}

#[test]
fn types_are_as_upstream_has_them_where_they_are_not_said() {
    for (spec, isolated) in [
        (json!({"podSelector": {}}), "in"),
        (json!({"podSelector": {}, "egress": []}), "in"),
        (json!({"podSelector": {}, "egress": [{}]}), "in out"),
        (json!({"podSelector": {}, "policyTypes": ["Egress"]}), "out"),
        (
            json!({"podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}]}),
            "out",
        ),
    ] {
        let mut policies = world();
        let told = tell(&policies.update(vec![policy("p", &spec)]));
        let directions = ["in", "out"].into_iter();
        let found: Vec<_> = directions
            .filter(|direction| told.contains(&format!("+ {direction} 10.0.1.3")))
            .collect();
        assert_eq!(found.join(" "), isolated, "{spec}");
    }
}

#[test]
fn peers_are_pods_by_their_labels_and_namespaces() {
    let client = json!({"matchLabels": {"app": "client"}});
    let them = json!({"matchLabels": {"who": "them"}});
    for (peer, found) in [
        (json!({"podSelector": client}), "10.0.2.2"),
        (json!({"podSelector": {}}), "10.0.1.2 10.0.1.3 10.0.2.2 fd00::2"),
        (json!({"namespaceSelector": them}), "10.0.2.3"),
        (
            json!({"namespaceSelector": {}}),
            "10.0.1.2 10.0.1.3 10.0.2.2 10.0.2.3 fd00::2",
        ),
        (
            json!({"namespaceSelector": {}, "podSelector": client}),
            "10.0.2.2 10.0.2.3",
        ),
        (
            json!({"namespaceSelector": them, "podSelector": {"matchLabels": {"app": "web"}}}),
            "",
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web", "db"]}]}}),
            "10.0.2.2",
        ),
    ] {
        for spec in [ingress(&json!([{"from": [peer]}])), egress(&json!([{"to": [peer]}]))] {
            let mut policies = world();
            let changes = policies.update(vec![policy("p", &spec)]);
            let addresses = changes.iter().filter_map(|change| {
                let Change::Add(Element::Address(_, address)) = change else {
                    return None;
                };
                Some(address.to_string())
            });
            assert_eq!(addresses.collect::<Vec<_>>().join(" "), found, "{spec}");
        }
    }
}

#[test]
fn rules_look_into_sets() {
    let client = json!({"podSelector": {"matchLabels": {"app": "client"}}});
    check(&ingress(&json!([{}])), &expect![["+ chain 1 In: all"]]);
    check(&egress(&json!([{}])), &expect![["+ chain 1 Out: all"]]);
    check(
        &ingress(&json!([{"from": [], "ports": []}])),
        &expect![["+ chain 1 In: all"]],
    );
    let ports = json!([{"port": 80}, {"port": 81, "endPort": 90, "protocol": "TCP"}, {"port": 85, "endPort": 95},
        {"protocol": "UDP"}, {"port": 5000, "protocol": "SCTP"}]);
    check(
        &ingress(&json!([{"from": [client], "ports": ports}])),
        &expect![[r"
            + set 1 Addresses
            + set 2 Ports
            + chain 3 In: Addresses 1 . Ports 2
            + 1: 10.0.2.2
            + 2: TCP 80-95
            + 2: UDP 0-65535
            + 2: SCTP 5000-5000"]],
    );
    let block = json!({"ipBlock": {"cidr": "172.16.0.0/24", "except": ["172.16.0.0/30", "172.16.0.128/25"]}});
    let block6 = json!({"ipBlock": {"cidr": "fd01::/64", "except": ["fd01::/128"]}});
    check(
        &egress(&json!([{"to": [client, block, block6, {"ipBlock": {"cidr": "172.16.0.120/29"}}]}])),
        &expect![[r"
            + set 1 Addresses
            + set 2 Ranges
            + chain 3 Out: Addresses 1 | Ranges 2
            + 1: 10.0.2.2
            + 2: 172.16.0.4-172.16.0.127
            + 2: fd01::1-fd01::ffff:ffff:ffff:ffff"]],
    );
    check(
        &egress(
            &json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, {"to": [{"ipBlock": {"cidr": "::/0", "except": ["::/0"]}}]}]),
        ),
        &expect![[r"
            + set 1 Ranges
            + chain 2 Out: Ranges 1
            + 1: 0.0.0.0-255.255.255.255"]],
    );
}

#[test]
fn named_ports_are_those_of_the_pod_that_is_sent_to() {
    let named = json!([{"port": "http"}, {"port": "dns", "protocol": "UDP"}, {"port": 80}]);
    check(
        &ingress(&json!([{"ports": named}])),
        &expect![[r"
            + set 1 Ports
            + chain 2 In: Ports 1
            + 1: TCP 80-80
            + 1: TCP 8080-8080
            + 1: UDP 53-53"]],
    );
    check(
        &ingress(&json!([{"ports": [{"port": "https"}]}])),
        &expect![["+ chain 1 In: "]],
    );
    check(
        &ingress(&json!([{"ports": [{"port": "http", "protocol": "UDP"}]}])),
        &expect![["+ chain 1 In: "]],
    );
    check(
        &egress(&json!([{"to": [{"podSelector": {}}], "ports": named}])),
        &expect![[r"
            + set 1 Addresses
            + set 2 Ports
            + set 3 Endpoints
            + chain 4 Out: Addresses 1 . Ports 2 | Endpoints 3
            + 1: 10.0.1.2
            + 1: 10.0.1.3
            + 1: 10.0.2.2
            + 1: fd00::2
            + 2: TCP 80-80
            + 3: 10.0.1.2 TCP 8080
            + 3: 10.0.1.2 UDP 53
            + 3: 10.0.1.3 TCP 9090
            + 3: 10.0.2.2 TCP 7070
            + 3: fd00::2 TCP 8080
            + 3: fd00::2 UDP 53"]],
    );
    check(
        &egress(&json!([{"to": [{"ipBlock": {"cidr": "10.0.2.0/24"}}], "ports": [{"port": "http"}]}])),
        &expect![[r"
            + set 1 Endpoints
            + chain 2 Out: Endpoints 1
            + 1: 10.0.2.2 TCP 7070"]],
    );
    let mut policies = world();
    policies.update(vec![policy(
        "p",
        &json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}),
    )]);
    let chains = policies.all();
    let chains = chains.iter().filter(|change| matches!(change, Change::AddChain(..)));
    assert_eq!(chains.count(), 2, "each pod has its own number");
}

/// Both policies admit clients, one of them only at port 80.
fn two_policies() -> Policies {
    let mut policies = world();
    let client = json!([{"podSelector": {"matchLabels": {"app": "client"}}}]);
    policies.update(vec![
        policy(
            "a",
            &json!({"podSelector": {}, "ingress": [{"from": client, "ports": [{"port": 80}]}]}),
        ),
        policy(
            "b",
            &ingress(&json!([{"from": client}, {"from": [{"namespaceSelector": {"matchLabels": {"who": "them"}}}]}])),
        ),
    ]);
    policies
}

#[test]
fn a_pod_that_comes_and_goes_costs_an_element_for_each_set() {
    let policies = two_policies();
    expect![[r"
        + set 1 Addresses
        + set 4 Addresses
        + set 2 Ports
        + chain 5 In: Addresses 1 | Addresses 1 . Ports 2 | Addresses 4
        + chain 3 In: Addresses 1 . Ports 2
        + itself 10.0.1.2
        + itself 10.0.1.3
        + itself fd00::2
        + 1: 10.0.2.2
        + 4: 10.0.2.3
        + 2: TCP 80-80
        + in 10.0.1.2: 5
        + in 10.0.1.3: 3
        + in fd00::2: 5
    "]]
    .assert_eq(&sorted(&policies.all()));
}

#[test]
fn changes_of_pods_and_namespaces_move_elements_alone() {
    let mut policies = two_policies();
    for (input, expected) in [
        (pod("new team 10.0.2.9 app=client"), expect!["+ 1: 10.0.2.9"]),
        (pod("new team 10.0.2.9 app=client"), expect![""]),
        (pod("new team 10.0.2.9,fd00::9 app=client"), expect!["+ 1: fd00::9"]),
        (
            pod("new team 10.0.2.10,fd00::9 app=client"),
            expect![[r"
            - 1: 10.0.2.9
            + 1: 10.0.2.10"]],
        ),
        (
            pod("new team 10.0.2.10,fd00::9 app=other"),
            expect![[r"
            - 1: 10.0.2.10
            - 1: fd00::9"]],
        ),
        (Input::Pod("client".to_owned(), None), expect!["- 1: 10.0.2.2"]),
        (namespace("other", &[("who", "nobody")]), expect!["- 4: 10.0.2.3"]),
        (
            pod("late team 10.0.1.4 app=late here"),
            expect![[r"
            + in 10.0.1.4: 3
            + itself 10.0.1.4"]],
        ),
        (
            pod("late team 10.0.1.4 app=web here"),
            expect![[r"
            - in 10.0.1.4: 3
            + in 10.0.1.4: 5"]],
        ),
        (
            pod("late team 10.0.1.4 app=web here ended"),
            expect![[r"
            - in 10.0.1.4: 5
            - itself 10.0.1.4"]],
        ),
    ] {
        let changes = policies.update(vec![input]);
        assert!(
            changes
                .iter()
                .all(|change| matches!(change, Change::Add(_) | Change::Remove(_))),
            "{}",
            tell(&changes)
        );
        expected.assert_eq(tell(&changes).trim_end());
    }
}

#[test]
fn an_address_is_a_peers_for_as_long_as_one_pod_that_has_it_is() {
    let mut policies = two_policies();
    let changes = policies.update(vec![pod("next team 10.0.2.2 app=client")]);
    assert_eq!(tell(&changes), "", "its last holder is still there");
    let changes = policies.update(vec![Input::Pod("client".to_owned(), None)]);
    assert_eq!(tell(&changes), "");
    let changes = policies.update(vec![pod("next team 10.0.2.2 app=other")]);
    assert_eq!(tell(&changes), "- 1: 10.0.2.2\n");
}

#[test]
fn a_thousand_pods_share_a_chain() {
    let mut policies = Policies::default();
    let all = (0..1000).map(|number| {
        let (high, low) = (number / 250, number % 250);
        pod(&format!("p{number} team 10.9.{high}.{low} app=web here"))
    });
    policies.update(all.chain([namespace("team", &[])]).collect());
    let changes = policies.update(vec![policy("p", &ingress(&json!([{"from": [{"podSelector": {}}]}])))]);
    let rules = changes.iter().filter(|change| !matches!(change, Change::Add(_)));
    assert_eq!(rules.count(), 2, "a set and a chain");
    assert_eq!(changes.len(), 2 + 3 * 1000, "its set, the map and itself");
}
