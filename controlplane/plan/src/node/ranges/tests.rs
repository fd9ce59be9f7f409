use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use serde_json::json;

use super::{PodRange, Ranges, Recorded, SENT};
use crate::pod::Pod;
use crate::step::Step;

fn node(name: &str, ranges: &[&str]) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.spec = Some(NodeSpec {
        pod_cidr: ranges.first().map(ToString::to_string),
        pod_cidrs: Some(ranges.iter().map(ToString::to_string).collect()),
        ..NodeSpec::default()
    });
    node
}

fn pools(texts: &[(&str, u8)]) -> Ranges {
    let pool = |(text, node_prefix): &(&str, u8)| PodRange {
        range: text.parse().unwrap(),
        node_prefix: *node_prefix,
    };
    Ranges::new(texts.iter().map(pool).collect())
}

fn given(ranges: &mut Ranges, to: &Node, nodes: &[&Node]) -> String {
    given_beside(ranges, to, nodes, &[])
}

fn given_beside(ranges: &mut Ranges, to: &Node, nodes: &[&Node], pods: &[&Pod]) -> String {
    for node in nodes {
        ranges.has(node);
    }
    match ranges.give(to, nodes, pods) {
        Some(Step::Patch { body, .. }) => {
            assert_eq!(body["spec"]["podCIDR"], body["spec"]["podCIDRs"][0]);
            body["spec"]["podCIDRs"].to_string()
        }
        Some(other) => panic!("{other:?}"),
        None => "nothing".to_owned(),
    }
}

#[test]
fn a_node_gets_a_part_of_each_range_once() {
    let mut ranges = pools(&[("10.244.0.0/16", 24), ("fd00:10:244::/48", 64)]);
    let (a, b) = (node("a", &[]), node("b", &[]));
    let first = "[\"10.244.0.0/24\",\"fd00:10:244::/64\"]";
    assert_eq!(given(&mut ranges, &a, &[&a, &b]), first);
    assert_eq!(
        given(&mut ranges, &a, &[&a, &b]),
        first,
        "it was given, and is not seen yet"
    );
    let second = "[\"10.244.1.0/24\",\"fd00:10:244:1::/64\"]";
    assert_eq!(given(&mut ranges, &b, &[&a, &b]), second);
    let has = node("b", &["10.244.1.0/24", "fd00:10:244:1::/64"]);
    assert!(ranges.has(&has) && !ranges.has(&a));
    let c = node("c", &[]);
    let third = "[\"10.244.2.0/24\",\"fd00:10:244:2::/64\"]";
    assert_eq!(
        given(&mut ranges, &c, &[&b, &c]),
        third,
        "not that of a node which is gone"
    );
    let mut six = pools(&[("fd00:10:244::/48", 64)]);
    assert_eq!(given(&mut six, &a, &[&a]), "[\"fd00:10:244::/64\"]");
    assert_eq!(given(&mut pools(&[]), &a, &[&a]), "nothing");
}

fn pod(node: &str, address: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": node, "containers": []},
        "status": {"podIPs": [{"ip": address}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn using(name: &str, ranges: &str) -> Node {
    let mut node = node(name, &[]);
    node.metadata.annotations = Some([(super::USED.to_owned(), ranges.to_owned())].into());
    node
}

#[test]
fn a_range_is_that_of_one_node_while_its_pods_may_live() {
    let range = |part: u8| format!("10.9.0.{}/27", part * 32);
    let known = ["a", "b", "c"];
    let pods = [pod("b", "10.9.0.40"), pod("gone", "10.9.0.100")];
    // The nodes a, b and c had the first three of eight CIDRs; the requesting node reports a
    // CIDR or none.
    for (case, asks, says, present, with_pods, expected) in [
        ("the lowest that was never given", "new", "", "abc", false, 3),
        ("not that of a pod whose node is gone", "new", "", "abc", true, 4),
        ("nor one whose node has just gone", "new", "", "ac", false, 3),
        ("its own that it had before", "b", "", "ac", true, 1),
        ("its own although its pods are gone", "b", "", "ac", false, 1),
        ("the one that it uses", "new", "10.9.0.160/27", "ab", false, 5),
        ("unless another node has it", "new", "10.9.0.0/27", "abc", false, 3),
        ("or pods of another", "new", "10.9.0.96/27", "abc", true, 4),
        ("or it is none of the cluster's", "new", "10.8.0.0/27", "abc", false, 3),
        ("or is no part", "new", "10.9.0.0/24,x", "abc", false, 3),
    ] {
        let mut ranges = pools(&[("10.9.0.0/24", 27)]);
        let had = (0..).zip(known).map(|(part, name)| node(name, &[&range(part)]));
        let had: Vec<Node> = had.collect();
        for node in &had {
            assert!(ranges.has(node));
        }
        let asks = using(asks, says);
        let there = had.iter().zip(known).filter(|(_, name)| present.contains(name));
        let there: Vec<&Node> = there.map(|(node, _)| node).chain([&asks]).collect();
        let pods: Vec<&Pod> = pods.iter().filter(|_| with_pods).collect();
        let given = given_beside(&mut ranges, &asks, &there, &pods);
        assert_eq!(given, format!("[\"{}\"]", range(expected)), "{case}");
    }
}

#[test]
fn what_is_left_of_nodes_that_are_gone_comes_last() {
    let mut ranges = pools(&[("10.9.0.0/30", 31)]);
    let (a, b) = (node("a", &["10.9.0.0/31"]), node("b", &["10.9.0.2/31"]));
    let (c, d) = (node("c", &[]), node("d", &[]));
    ranges.has(&a);
    ranges.has(&b);
    assert_eq!(given(&mut ranges, &c, &[&a, &b, &c]), "nothing");
    let left = pod("b", "10.9.0.3");
    assert_eq!(
        given_beside(&mut ranges, &c, &[&a, &c], &[&left]),
        "nothing",
        "a pod may live"
    );
    assert_eq!(given(&mut ranges, &c, &[&a, &c]), "[\"10.9.0.2/31\"]", "none can");
    assert_eq!(given(&mut ranges, &d, &[&c, &d]), "[\"10.9.0.0/31\"]");
}

const ZERO: Duration = Duration::ZERO;

fn version(version: &str) -> ObjectMeta {
    ObjectMeta {
        resource_version: Some(version.to_owned()),
        ..ObjectMeta::default()
    }
}

#[test]
fn nodes_that_register_together_share_a_change_of_the_record() {
    let mut ranges = pools(&[("10.9.0.0/24", 27)]);
    let all = ["a", "b", "c"].map(|name| node(name, &[]));
    let [a, b, c] = &all;
    let mut kept = BTreeMap::new();
    let one = version("1");
    given(&mut ranges, a, &[a, b, c]);
    assert!(matches!(ranges.record(a, Some((&one, &kept)), ZERO), Recorded::By(_)));
    given(&mut ranges, b, &[a, b, c]);
    given(&mut ranges, c, &[a, b, c]);
    let late = |ranges: &mut Ranges, node, at| ranges.record(node, Some((&one, &BTreeMap::new())), at);
    assert_eq!(late(&mut ranges, b, ZERO), Recorded::Later);
    assert_eq!(late(&mut ranges, c, ZERO), Recorded::Later);
    assert!(matches!(late(&mut ranges, a, ZERO), Recorded::By(_)), "it failed");
    kept.insert("a".to_owned(), "10.9.0.0/27".to_owned());
    let two = version("2");
    let Recorded::By(Step::Patch { body, .. }) = ranges.record(c, Some((&two, &kept)), ZERO) else {
        panic!("the first change is there");
    };
    assert_eq!(body["data"], json!({"b": "10.9.0.32/27", "c": "10.9.0.64/27"}));
    assert_eq!(ranges.record(b, Some((&two, &kept)), ZERO), Recorded::Later);
    assert!(
        matches!(ranges.record(b, Some((&two, &kept)), SENT), Recorded::By(_)),
        "it never came"
    );
    assert_eq!(ranges.record(a, Some((&two, &kept)), SENT), Recorded::Yes);
}

#[test]
fn what_nodes_had_outlives_the_control_plane() {
    let (a, b) = (node("a", &["10.9.0.0/27"]), node("b", &["10.9.0.32/27"]));
    let mut before = pools(&[("10.9.0.0/24", 27)]);
    assert!(before.has(&a) && before.has(&b));
    let Recorded::By(Step::Create { body, .. }) = before.record(&a, None, ZERO) else {
        panic!("nothing is recorded");
    };
    let mut kept: BTreeMap<String, String> = serde_json::from_value(body["data"].clone()).unwrap();
    assert_eq!(before.record(&a, Some((&version("1"), &kept)), ZERO), Recorded::Yes);

    // Both are gone when the next control plane sees a new node and b again.
    let mut ranges = pools(&[("10.9.0.0/24", 27)]);
    ranges.recall(Some(&kept));
    let (c, b) = (node("c", &[]), node("b", &[]));
    assert_eq!(given(&mut ranges, &c, &[&b, &c]), "[\"10.9.0.64/27\"]");
    assert_eq!(given(&mut ranges, &b, &[&b, &c]), "[\"10.9.0.32/27\"]");
    let Recorded::By(Step::Patch { body, .. }) = ranges.record(&c, Some((&version("1"), &kept)), ZERO) else {
        panic!("nothing is recorded");
    };
    assert_eq!(body["data"], json!({"c": "10.9.0.64/27"}));
    kept.insert("c".to_owned(), "10.9.0.64/27".to_owned());

    // A CIDR that another node got is removed from the record of the node that had it before.
    let d = node("d", &["10.9.0.0/27"]);
    assert!(ranges.has(&d));
    let Recorded::By(Step::Patch { body, .. }) = ranges.record(&d, Some((&version("2"), &kept)), ZERO) else {
        panic!("nothing is recorded");
    };
    assert_eq!(body["data"], json!({"a": null, "d": "10.9.0.0/27"}));
}

#[test]
fn a_part_that_another_node_comes_with_is_not_given_again() {
    let mut ranges = pools(&[("10.244.0.0/16", 24)]);
    let (a, b) = (node("a", &[]), node("b", &["10.244.0.0/23"]));
    assert_eq!(given(&mut ranges, &a, &[&a]), "[\"10.244.0.0/24\"]");
    for _ in 0..2 {
        assert_eq!(given(&mut ranges, &a, &[&a, &b]), "[\"10.244.2.0/24\"]");
    }
}

#[test]
fn no_part_has_a_machine_in_it() {
    let at = |name: &str, address: &str| {
        let mut node = node(name, &[]);
        let addresses = json!([{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]);
        node.status = Some(serde_json::from_value(json!({"addresses": addresses})).unwrap());
        node
    };
    let (a, b) = (at("a", "10.244.0.11"), at("b", "10.244.1.12"));
    let mut ranges = pools(&[("10.244.0.0/16", 24)]);
    assert_eq!(given(&mut ranges, &b, &[&a, &b]), "[\"10.244.2.0/24\"]");
    let mut ranges = pools(&[("10.9.0.0/16", 24)]);
    assert_eq!(given(&mut ranges, &b, &[&a, &b]), "[\"10.9.0.0/24\"]");
    // A machine that was deleted as a node does not get the range back that it is in.
    let mut ranges = pools(&[("10.244.0.0/16", 24)]);
    ranges.has(&node("b", &["10.244.1.0/24"]));
    assert_eq!(given(&mut ranges, &b, &[&a, &b]), "[\"10.244.2.0/24\"]");
}

#[test]
fn no_new_part_is_a_machines_network() {
    let on = |name: &str, links: &str| {
        let mut node = node(name, &[]);
        node.metadata.annotations = Some([(super::LINKS.to_owned(), links.to_owned())].into());
        node
    };
    let a = on("a", "192.168.1.0/24,10.244.0.0/25");
    let b = on("b", "10.244.2.0/23,10.0.0.0/8");
    let mut ranges = pools(&[("10.244.0.0/16", 24)]);
    assert_eq!(given(&mut ranges, &a, &[&a, &b]), "[\"10.244.1.0/24\"]");
    assert_eq!(given(&mut ranges, &b, &[&a, &b]), "[\"10.244.4.0/24\"]");
    // The bridge of its own pods may be a link.
    let again = on("a", "10.244.1.0/24");
    assert_eq!(given(&mut ranges, &again, &[&again, &b]), "[\"10.244.1.0/24\"]");
}

#[test]
fn parts_have_no_address_in_common() {
    let wide = node("wide", &["10.244.0.0/23"]);
    let narrow = node("narrow", &["10.244.2.128/25"]);
    let a = node("a", &[]);
    let mut ranges = pools(&[("10.244.0.0/16", 24)]);
    assert_eq!(given(&mut ranges, &a, &[&a, &wide, &narrow]), "[\"10.244.3.0/24\"]");
    let mut small = pools(&[("10.244.0.0/23", 24)]);
    assert_eq!(given(&mut small, &a, &[&a, &wide]), "nothing", "all are taken");
    let mut whole = pools(&[("fd00::/64", 64)]);
    assert_eq!(given(&mut whole, &a, &[&a]), "[\"fd00::/64\"]");
    let b = node("b", &["fd00::/64"]);
    assert_eq!(given(&mut pools(&[("fd00::/64", 64)]), &a, &[&a, &b]), "nothing");
}
