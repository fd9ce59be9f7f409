mod budgets;
mod near;

use std::sync::Arc;

use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::{Claims, Preemption, SchedulerCache};
use crate::objects::name;
use crate::pod::Pod;

fn node(name: &str, cpu: &str, extra: &Value) -> Arc<Node> {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "allocatable": { "cpu": cpu, "memory": "8Gi", "pods": "110" } },
    });
    if let (Some(node), Some(extra)) = (node.as_object_mut(), extra.as_object()) {
        node.extend(extra.clone());
    }
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pod(name: &str, cpu: &str, spec: &Value) -> Arc<Pod> {
    let mut whole = json!({ "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu } } }] });
    if let (Some(whole), Some(spec)) = (whole.as_object_mut(), spec.as_object()) {
        whole.extend(spec.clone());
    }
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": name, "labels": { "app": "web" },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true }],
            },
            "spec": whole,
        }))
        .unwrap(),
    )
}

fn cache(nodes: &[Arc<Node>]) -> SchedulerCache {
    let mut cache = SchedulerCache::default();
    for node in nodes {
        cache.set_node(node);
    }
    cache
}

fn check(cache: &SchedulerCache, pod: &Pod, expected: &Expect) {
    let chosen = cache.choose(pod, &Claims::default());
    let text = chosen.map_or_else(|unplaceable| unplaceable.to_string(), |node| name(&*node).to_owned());
    expected.assert_eq(&text);
}

#[test]
fn of_many_nodes_each_pod_sees_others() {
    let nodes: Vec<_> = (0..300)
        .map(|number| node(&format!("n{number:03}"), "4", &json!({})))
        .collect();
    let cache = cache(&nodes);
    let pod = pod("a", "1", &json!({}));
    for expected in ["n000", "n144", "n000"] {
        let chosen = cache.choose(&pod, &Claims::default()).ok().unwrap();
        assert_eq!(name(&*chosen), expected);
    }
    // One that fits is found wherever it is.
    let large = self::pod(
        "b",
        "4",
        &json!({ "nodeSelector": { "kubernetes.io/hostname": "n140" } }),
    );
    let chosen = cache.choose(&large, &Claims::default()).ok().unwrap();
    assert_eq!(name(&*chosen), "n140");
}

#[test]
fn room_is_made_wherever_the_search_began() {
    let size = |number| if (160..170).contains(&number) { "4" } else { "1" };
    let nodes = (0..300).map(|number| node(&format!("n{number:03}"), size(number), &json!({})));
    let mut cache = cache(&nodes.collect::<Vec<_>>());
    cache.choose(&pod("a", "1", &json!({})), &Claims::default()).unwrap();
    assert_ne!(*cache.next.borrow(), "");
    for number in 160..170 {
        let node = format!("n{number}");
        cache.place(&pod(&node, "2", &json!({})), &node, false);
    }
    let wanting = pod("b", "3", &json!({ "priority": 5 }));
    let why = cache.choose(&wanting, &Claims::default()).unwrap_err();
    let room = cache.displace(&wanting, &Claims::default(), &[], &why).unwrap();
    assert_eq!(room.victims.len(), 1);
    // A node that changes is judged anew.
    let cordoned = node("n200", "8", &json!({ "spec": { "unschedulable": true } }));
    cache.set_node(&node("n200", "8", &json!({})));
    assert_eq!(name(&*cache.choose(&wanting, &Claims::default()).unwrap()), "n200");
    cache.set_node(&cordoned);
    assert!(cache.choose(&wanting, &Claims::default()).is_err());
    let tolerant = pod("c", "3", &json!({ "tolerations": [{ "operator": "Exists" }] }));
    assert_eq!(name(&*cache.choose(&tolerant, &Claims::default()).unwrap()), "n200");
    assert!(cache.choose(&wanting, &Claims::default()).is_err());
}

#[test]
fn spreads_the_pods_of_one_owner() {
    let mut cache = cache(&[
        node("n1", "4", &json!({})),
        node("n2", "4", &json!({})),
        node("n3", "4", &json!({})),
    ]);
    let mut chosen = Vec::new();
    for own in ["a", "b", "c", "d"] {
        let pod = pod(own, "100m", &json!({}));
        let node = cache.choose(&pod, &Claims::default()).unwrap();
        cache.place(&pod, name(&*node), true);
        chosen.push(name(&*node).to_owned());
    }
    assert_eq!(chosen, ["n1", "n2", "n3", "n1"]);
}

#[test]
fn a_pod_counts_for_its_owner_even_if_that_changes() {
    let mut cache = cache(&[node("n1", "4", &json!({}))]);
    let owned = |owner: &str| {
        let mut own = Pod::clone(&pod("a", "1", &json!({})));
        let owner =
            json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner, "controller": true });
        own.metadata = serde_json::from_value(json!({ "uid": "a", "ownerReferences": [owner] })).unwrap();
        Arc::new(own)
    };
    let counted = |cache: &SchedulerCache| json!(cache.places["n1"].siblings);
    cache.place(&owned("r"), "n1", false);
    cache.renew(&owned("s"));
    assert_eq!(counted(&cache), json!({ "s": 1 }));
    cache.lift("a");
    assert_eq!(counted(&cache), json!({}));
}

#[test]
fn says_why_in_upstreams_words() {
    let tainted = json!({ "spec": { "taints": [{ "key": "k", "value": "v", "effect": "NoSchedule" }] } });
    let cache = cache(&[
        node("n1", "1", &json!({})),
        node("n2", "4", &tainted),
        node("n3", "4", &tainted),
    ]);
    check(
        &cache,
        &pod("a", "2", &json!({})),
        &expect![
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        ],
    );
    check(
        &cache,
        &pod(
            "a",
            "1",
            &json!({ "nodeSelector": { "disk": "ssd" }, "preemptionPolicy": "Never" }),
        ),
        &expect![
            "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 node(s) had untolerated taint(s). no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        ],
    );
    check(
        &SchedulerCache::default(),
        &pod("a", "1", &json!({})),
        &expect!["no nodes available to schedule pods"],
    );
}

#[test]
fn pods_that_restart_as_a_whole_need_a_node_that_can() {
    let cache = cache(&[node("n1", "1", &json!({}))]);
    let rule = json!({ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [1] } });
    let restarts = json!({ "preemptionPolicy": "Never", "initContainers": [
        { "name": "i", "restartPolicy": "Never", "restartPolicyRules": [rule] },
    ] });
    let status = json!({
        "allocatable": { "cpu": "1", "memory": "8Gi", "pods": "110" },
        "declaredFeatures": ["RestartAllContainersOnContainerExits"],
    });
    let declaring = node("n4", "1", &json!({ "status": status }));
    let mut able = SchedulerCache::default();
    able.set_node(&declaring);
    check(&able, &pod("a", "1", &restarts), &expect!["n4"]);
    check(
        &cache,
        &pod("a", "1", &restarts),
        &expect![
            "0/1 nodes are available: 1 node(s) didn't match Pod's required features. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        ],
    );
}

#[test]
fn counts_what_is_placed_until_it_is_lifted() {
    let mut cache = cache(&[node("n1", "1", &json!({}))]);
    cache.place(&pod("a", "800m", &json!({})), "n1", true);
    let b = pod("b", "300m", &json!({}));
    check(
        &cache,
        &b,
        &expect![
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
        ],
    );
    assert!(cache.lift("a"));
    check(&cache, &b, &expect!["n1"]);
    assert!(!cache.lift("a"));
}

#[test]
fn prefers_the_node_that_has_the_image() {
    let image = |name: &str| {
        json!({ "status": {
            "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" },
            "images": [{ "names": ["web@sha256:1", name], "sizeBytes": 500_000_000 }],
        } })
    };
    let cache = cache(&[
        node("n1", "4", &json!({})),
        node("n2", "4", &image("web:1")),
        node("n3", "4", &image("web:latest")),
    ]);
    let of = |image: &str| pod("a", "1", &json!({ "containers": [{ "name": "main", "image": image }] }));
    check(&cache, &of("web:1"), &expect!["n2"]);
    check(&cache, &of("web"), &expect!["n3"]);
    check(&cache, &of("other"), &expect!["n1"]);
}

#[test]
fn keeps_apart_what_wants_to_be_apart() {
    let mut cache = cache(&[node("n1", "4", &json!({})), node("n2", "4", &json!({}))]);
    let apart = json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": { "matchLabels": { "app": "web" } }, "topologyKey": "kubernetes.io/hostname",
    }] } } });
    cache.place(&pod("a", "1m", &apart), "n1", false);
    check(&cache, &pod("b", "1m", &apart), &expect!["n2"]);
    check(&cache, &pod("c", "1m", &json!({})), &expect!["n2"]);
    cache.place(&pod("b", "1m", &apart), "n2", false);
    check(
        &cache,
        &pod("c", "1m", &apart),
        &expect![
            "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
        ],
    );
}

#[test]
fn spreads_over_zones_as_far_as_asked() {
    let zoned = |name: &str, zone: &str| {
        node(
            name,
            "4",
            &json!({ "metadata": { "name": name, "labels": { "zone": zone } } }),
        )
    };
    let mut cache = cache(&[zoned("n1", "a"), zoned("n2", "b")]);
    let even = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    }] });
    cache.place(&pod("a", "1m", &even), "n1", false);
    check(&cache, &pod("b", "1m", &even), &expect!["n2"]);
}

#[test]
fn an_empty_selector_spreads_nothing() {
    let mut cache = cache(&[node("n1", "4", &json!({})), node("n2", "0", &json!({}))]);
    let even = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {},
    }] });
    cache.place(&pod("a", "1m", &even), "n1", false);
    check(&cache, &pod("b", "1m", &even), &expect!["n1"]);
}

#[test]
fn a_node_without_a_zone_does_not_count_in_the_spread() {
    let labeled =
        |name: &str, labels: Value| node(name, "4", &json!({ "metadata": { "name": name, "labels": labels } }));
    let mut cache = cache(&[labeled("n1", json!({ "zone": "a" })), labeled("n2", json!({}))]);
    let spread = |mode: &str, keys: &[&str]| {
        let constraint = |key: &&str| {
            json!({
                "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": mode,
                "labelSelector": { "matchLabels": { "app": "web" } },
            })
        };
        let constraints: Vec<Value> = keys.iter().map(constraint).collect();
        json!({ "topologySpreadConstraints": constraints })
    };
    cache.place(&pod("a", "1m", &json!({})), "n1", false);
    let hard = spread("DoNotSchedule", &["zone", "kubernetes.io/hostname"]);
    check(&cache, &pod("b", "1m", &hard), &expect!["n1"]);
    let soft = spread("ScheduleAnyway", &["zone"]);
    check(&cache, &pod("c", "1m", &soft), &expect!["n1"]);
}

#[test]
fn ports_of_the_node_are_taken_once() {
    let mut cache = cache(&[node("n1", "4", &json!({}))]);
    let port = json!({ "hostNetwork": true, "containers": [{ "name": "main", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] });
    cache.place(&pod("a", "1m", &port), "n1", false);
    check(
        &cache,
        &pod("b", "1m", &port),
        &expect![
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
        ],
    );
}

/// `n1: a b`, or nothing.
fn displaced(cache: &SchedulerCache, pod: &Pod, budgets: &[Value]) -> String {
    let budgets = budgets
        .iter()
        .map(|budget| serde_json::from_value(budget.clone()).unwrap());
    let budgets: Vec<_> = budgets.map(Arc::new).collect();
    let why = cache.choose(pod, &Claims::default()).unwrap_err();
    let found = cache.displace(pod, &Claims::default(), &budgets, &why);
    found.map_or_else(String::new, |found| {
        let victims: Vec<&str> = found.victims.iter().map(|victim| name(&**victim)).collect();
        format!("{}: {}", found.node, victims.join(" "))
    })
}

fn ranked(name: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    pod(name, cpu, &json!({ "priority": priority }))
}

#[test]
fn displaces_the_least_important_where_that_costs_least() {
    let mut cache = cache(&[node("n1", "3", &json!({})), node("n2", "3", &json!({}))]);
    let aged = |name, priority, hour: u8| {
        let mut pod = Arc::unwrap_or_clone(ranked(name, "1", priority));
        pod.metadata.created = Some(format!("2026-01-01T{hour:02}:00:00Z").parse().unwrap());
        Arc::new(pod)
    };
    cache.place(&aged("a", 5, 1), "n1", false);
    cache.place(&aged("b", 1, 2), "n1", false);
    cache.place(&aged("c", 1, 3), "n1", true);
    cache.place(&aged("d", 5, 1), "n2", false);
    cache.place(&aged("e", 5, 2), "n2", false);
    cache.place(&aged("f", 5, 3), "n2", false);
    assert_eq!(displaced(&cache, &ranked("x", "1", 9), &[]), "n1: c");
    // With the nodes' verdicts.
    let before = format!("{cache:?}");
    assert_eq!(displaced(&cache, &ranked("x", "2", 9), &[]), "n1: b c");
    assert_eq!(displaced(&cache, &ranked("x", "3", 9), &[]), "n1: a b c");
    assert_eq!(displaced(&cache, &ranked("x", "4", 9), &[]), "");
    assert_eq!(displaced(&cache, &ranked("x", "1", 1), &[]), "");
    let guard = json!({
        "metadata": { "name": "g", "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
        "status": { "currentHealthy": 6, "desiredHealthy": 6, "expectedPods": 6, "disruptionsAllowed": 1, "disruptedPods": { "c": "2026-01-01T00:00:00Z" } },
    });
    // The budget allows another disruption and has already counted one: the third pod stays, though
    // its priority is the lowest.
    assert_eq!(displaced(&cache, &ranked("x", "2", 9), &[guard]), "n1: a c");
    assert_eq!(format!("{cache:?}"), before);
}

#[test]
fn displaces_those_that_keep_it_away() {
    let zoned = |name: &str, zone: &str| {
        node(
            name,
            "4",
            &json!({ "metadata": { "name": name, "labels": { "zone": zone } } }),
        )
    };
    let mut cache = cache(&[zoned("n1", "a"), zoned("n2", "a"), zoned("n3", "b")]);
    let far = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": { "matchLabels": { "app": "web" } }, "topologyKey": "zone",
    }] } });
    let with = |name: &str, spec: Value, priority: i32| {
        let mut spec = spec;
        spec["priority"] = priority.into();
        pod(name, "1m", &spec)
    };
    cache.place(&with("a", json!({}), 1), "n1", false);
    cache.place(&with("b", json!({}), 2), "n1", false);
    cache.place(&with("c", json!({}), 1), "n3", false);
    cache.place(&with("d", json!({}), 9), "n3", false);
    let apart = with("x", json!({ "affinity": far }), 9);
    assert_eq!(displaced(&cache, &apart, &[]), "n1: b a", "n2's zone is n1's; d stays");
    cache.place(&with("e", json!({}), 1), "n2", false);
    assert_eq!(displaced(&cache, &apart, &[]), "", "no one node's pods are enough");
    let even = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    }], "nodeSelector": { "zone": "a" } });
    // The zone that the node selector excludes does not count.
    assert!(cache.choose(&with("y", even, 9), &Claims::default()).is_ok());
    let uneven = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    }], "containers": [{ "name": "main", "resources": { "requests": { "cpu": "3999m" } } }] });
    assert_eq!(displaced(&cache, &with("y", uneven, 9), &[]), "n1: a");
    cache.place(&pod("z", "1m", &json!({ "priority": 1, "affinity": far })), "n3", false);
    assert_eq!(
        displaced(&cache, &with("f", json!({ "nodeSelector": { "zone": "b" } }), 9), &[]),
        "n3: z"
    );
}

#[test]
fn a_promise_is_taken_up_again() {
    let mut cache = cache(&[node("n1", "1", &json!({})), node("n2", "1", &json!({}))]);
    let mut going = Arc::unwrap_or_clone(ranked("low", "1", 1));
    going.metadata = serde_json::from_value(json!({
        "name": "low", "namespace": "default", "uid": "low", "deletionTimestamp": "2026-01-01T00:00:00Z",
    }))
    .unwrap();
    let (high, rival) = (ranked("x", "1", 9), ranked("y", "1", 9));
    cache.remember(&high, "n1");
    cache.place(&ranked("other", "1", 0), "n2", false);
    assert!(!cache.awaits(&high, &Claims::default()), "nobody goes");
    cache.place(&Arc::new(going), "n1", false);
    assert!(cache.awaits(&high, &Claims::default()) && !cache.awaits(&rival, &Claims::default()));
    assert!(cache.lift("low"));
    assert!(cache.choose(&rival, &Claims::default()).is_err(), "it is the other's");
    check(&cache, &high, &expect!["n1"]);
}

/// Time for 100 nodes of 100 pods: for pods that preemption does not help, and for pods that it
/// does.
#[test]
fn looks_for_room_only_where_it_could_be() {
    let nodes: Vec<_> = (0..100).map(|at| node(&format!("n{at}"), "10", &json!({}))).collect();
    let mut cache = cache(&nodes);
    for at in 0..10_000 {
        cache.place(
            &ranked(&format!("low-{at}"), "100m", 1),
            &format!("n{}", at % 100),
            false,
        );
    }
    for (pods, cpu, victims) in [(200, "9999", 0), (20, "10", 2000)] {
        #[expect(clippy::disallowed_methods, reason = "measures itself")]
        let began = std::time::Instant::now();
        let mut sum = 0;
        for at in 0..pods {
            let pod = ranked(&format!("high-{at}"), cpu, 9);
            let why = cache.choose(&pod, &Claims::default()).unwrap_err();
            let found = cache.displace(&pod, &Claims::default(), &[], &why);
            sum += found.map_or(0, |found| found.victims.len());
        }
        assert_eq!(sum, victims);
        println!("{pods} pods of {cpu} cpus: {:?}", began.elapsed());
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}

#[test]
fn what_a_pod_is_promised_is_kept_for_it() {
    let mut cache = cache(&[node("n1", "1", &json!({}))]);
    cache.place(&ranked("low", "1", 1), "n1", false);
    let (high, rival, higher) = (ranked("x", "1", 9), ranked("y", "1", 9), ranked("z", "1", 10));
    let mut why = cache.choose(&high, &Claims::default()).unwrap_err();
    assert!(why.is_resolvable());
    let displacement = cache.displace(&high, &Claims::default(), &[], &why).unwrap();
    cache.promise(&high, &displacement);
    why.preemption = Preemption::Begun;
    assert_eq!(why.to_string(), "0/1 nodes are available: 1 Insufficient cpu.");
    assert!(cache.awaits(&high, &Claims::default()) && !cache.awaits(&rival, &Claims::default()));
    assert!(cache.lift("low"));
    assert!(!cache.awaits(&high, &Claims::default()));
    assert!(cache.choose(&rival, &Claims::default()).is_err());
    check(&cache, &higher, &expect!["n1"]);
    check(&cache, &high, &expect!["n1"]);
    assert!(cache.lift("x"), "what it was promised is free");
    check(&cache, &rival, &expect!["n1"]);
}
