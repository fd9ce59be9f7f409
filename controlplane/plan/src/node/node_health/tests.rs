use std::{sync::Arc, time::Duration};

use expect_test::{Expect, expect};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use serde_json::{Value, json};

use super::{Marked, Pace, Pulse, Scheduled, Snapshot, Tainted, Zones, plan};
use crate::{pod::Pod, step::Step};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn node(ready: &str, taints: &Value) -> Node {
    let conditions: Vec<Value> = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"]
        .iter()
        .map(|kind| {
            let status = match (*kind, ready) {
                ("Ready", status) => status,
                (_, "Unknown") => "Unknown",
                _ => "False",
            };
            json!({ "type": kind, "status": status, "lastHeartbeatTime": "2026-01-01T00:00:00Z" })
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": { "name": "n1", "uid": "n1", "resourceVersion": "1" },
        "spec": { "taints": taints }, "status": { "conditions": conditions },
    }))
    .unwrap()
}

fn pod(tolerations: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "a", "namespace": "default", "uid": "a" },
        "spec": { "nodeName": "n1", "containers": [], "tolerations": tolerations },
        "status": { "phase": "Running" },
    }))
    .unwrap()
}

fn check(node: &Node, pod: &Pod, silence: u64, any_ready: bool, expected: &Expect) {
    let pulse = Pulse::next(None, node, None, Duration::ZERO);
    let snapshot = Snapshot {
        node,
        pulse: &pulse,
        tainted: &Tainted::default(),
        pods: &[pod],
        pace: if any_ready { Pace::Free } else { Pace::Halted },
    };
    let memory = (&mut Marked::default(), &mut Scheduled::default());
    expected.assert_eq(&plan(&snapshot, memory, Duration::from_secs(silence), now()).to_string());
}

#[test]
fn a_silent_node_becomes_unknown_then_tainted_then_empty() {
    let calm = pod(&json!([]));
    check(&node("True", &json!(null)), &calm, 10, true, &expect![" again in 40s"]);
    let said = expect!["patch Node n1/status (NodeNotReady: Node n1 status is now: NodeNotReady)"];
    check(&node("True", &json!(null)), &calm, 51, true, &said);
    check(
        &node("Unknown", &json!(null)),
        &calm,
        52,
        true,
        &expect!["patch Node n1"],
    );
    let taints = json!([
        { "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" },
        { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:59:00Z" },
    ]);
    check(
        &node("Unknown", &taints),
        &calm,
        53,
        true,
        &expect!["patch Pod a/status -> delete Pod a (TaintManagerEviction: Marking for deletion Pod default/a)"],
    );
    let patient = pod(
        &json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }]),
    );
    check(
        &node("Unknown", &taints),
        &patient,
        53,
        true,
        &expect![" again in 240s"],
    );
}

#[test]
fn the_first_toleration_of_a_taint_counts() {
    let taints = json!([
        { "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" },
        { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:59:00Z" },
    ]);
    let (always, shortly) = (
        json!({ "operator": "Exists" }),
        json!({ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 10 }),
    );
    let evicted =
        expect!["patch Pod a/status -> delete Pod a (TaintManagerEviction: Marking for deletion Pod default/a)"];
    for (tolerations, expected) in [
        (json!([always, shortly]), &expect![""]),
        (json!([shortly, always]), &evicted),
    ] {
        check(&node("Unknown", &taints), &pod(&tolerations), 53, true, expected);
    }
}

#[test]
fn nobody_is_evicted_when_no_node_at_all_is_ready() {
    let taints = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" }]);
    check(&node("Unknown", &taints), &pod(&json!([])), 60, false, &expect![""]);
}

#[test]
fn a_node_that_has_to_wait_gets_no_pods_and_keeps_its_own() {
    let taints = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" }]);
    for (taints, expected) in [(json!(null), "patch Node n1 again in 7s"), (taints, " again in 7s")] {
        let node = node("Unknown", &taints);
        let pulse = Pulse::next(None, &node, None, Duration::ZERO);
        let snapshot = Snapshot {
            node: &node,
            pulse: &pulse,
            tainted: &Tainted::default(),
            pods: &[],
            pace: Pace::Waiting(Duration::from_secs(7)),
        };
        let memory = (&mut Marked::default(), &mut Scheduled::default());
        let plan = plan(&snapshot, memory, Duration::from_mins(1), now());
        assert_eq!(plan.to_string(), expected);
        for step in plan.stages.iter().flatten() {
            let Step::Patch { body, .. } = step else {
                panic!("{step}")
            };
            assert_eq!(body["spec"]["taints"].as_array().unwrap().len(), 1);
            assert_eq!(body["spec"]["taints"][0]["effect"], "NoSchedule");
        }
    }
}

#[test]
fn nodes_that_fail_together_are_emptied_one_by_one_or_not_at_all() {
    let (good, bad) = (node("True", &json!(null)), node("Unknown", &json!(null)));
    let mut zones = Zones::default();
    let mut pace = |node: &Node, (ready, others): (usize, usize), at: u64| {
        let all = || -> Vec<Arc<Node>> {
            let ready = std::iter::repeat_n(&good, ready);
            let others = std::iter::repeat_n(&bad, others);
            ready.chain(others).cloned().map(Arc::new).collect()
        };
        zones.pace(node, &all, Duration::from_secs(at))
    };
    let waiting = |seconds| Pace::Waiting(Duration::from_secs(seconds));
    assert_eq!(pace(&bad, (3, 2), 0), Pace::Free);
    assert_eq!(pace(&bad, (3, 2), 4), waiting(6));
    assert_eq!(pace(&good, (3, 2), 4), Pace::Free);
    assert_eq!(pace(&bad, (3, 2), 10), Pace::Free);
    // Most of a small zone.
    assert_eq!(pace(&bad, (2, 3), 100), waiting(10));
    let mut excluded = good.clone();
    excluded.metadata.labels = Some([("node.kubernetes.io/exclude-disruption".to_owned(), String::new())].into());
    let few = || {
        [&excluded, &excluded, &good, &bad, &bad, &bad]
            .map(|node| Arc::new(node.clone()))
            .to_vec()
    };
    assert_eq!(Zones::default().pace(&bad, &few, Duration::ZERO), waiting(10));
    assert_eq!(pace(&bad, (1, 2), 100), Pace::Free);
    // Most of a large one.
    assert_eq!(pace(&bad, (20, 40), 120), waiting(80));
    assert_eq!(pace(&bad, (20, 40), 200), Pace::Free);
    // All of a zone, while others have nodes that are ready.
    assert_eq!(pace(&bad, (0, 5), 210), Pace::Free);
    // One that was tainted before keeps that at once.
    let taints = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoExecute" }]);
    assert_eq!(pace(&node("Unknown", &taints), (2, 3), 211), Pace::Free);
}

#[test]
fn a_node_that_came_back_loses_our_taints_and_keeps_others() {
    let taints = json!([
        { "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" }, { "key": "mine", "effect": "NoSchedule" },
    ]);
    check(
        &node("True", &taints),
        &pod(&json!([])),
        1,
        true,
        &expect!["patch Node n1 again in 49s"],
    );
}

#[test]
fn our_keys_with_a_users_effect_stay() {
    let check = |key: &str, effect: &str, expected: &Expect| {
        let taints = json!([{ "key": key, "effect": effect }]);
        let patient = pod(&json!([{ "operator": "Exists" }]));
        check(&node("True", &taints), &patient, 1, true, expected);
    };
    let (kept, lost) = (expect![" again in 49s"], expect!["patch Node n1 again in 49s"]);
    check("node.kubernetes.io/memory-pressure", "NoExecute", &kept);
    check("node.kubernetes.io/unschedulable", "NoExecute", &kept);
    check("node.kubernetes.io/not-ready", "PreferNoSchedule", &kept);
    check("node.kubernetes.io/memory-pressure", "NoSchedule", &lost);
    check("node.kubernetes.io/not-ready", "NoExecute", &lost);
}

/// Only the node controller sets `timeAdded`: a user's taint counts from when it was first seen.
#[test]
fn a_pod_bears_a_users_taint_for_as_long_as_it_says() {
    let taint = json!([{ "key": "out", "value": "now", "effect": "NoExecute" }]);
    let (tainted, clean) = (node("True", &taint), node("True", &json!(null)));
    let patience = json!([{ "key": "out", "operator": "Exists", "tolerationSeconds": 5 }]);
    let (mut old, mut young) = (pod(&patience), pod(&patience));
    old.metadata.created = Some("2026-01-01T00:00:00Z".parse().unwrap());
    young.metadata.created = Some("2026-01-01T00:59:59Z".parse().unwrap());
    let since = Duration::from_secs;
    let seen = Tainted::default().next(&tainted, since(10)).next(&tainted, since(12));
    let gone_between = seen.clone().next(&clean, since(13)).next(&tainted, since(14));
    let check = |seen: &Tainted, pod: &Pod, at: u64, expected: &Expect| {
        let pulse = Pulse::next(None, &tainted, None, since(at));
        let snapshot = Snapshot {
            node: &tainted,
            pulse: &pulse,
            tainted: seen,
            pods: &[pod],
            pace: Pace::Free,
        };
        let memory = (&mut Marked::default(), &mut Scheduled::default());
        expected.assert_eq(&plan(&snapshot, memory, since(at), now()).to_string());
    };
    check(&seen, &old, 12, &expect![" again in 3s"]);
    let evicted = expect![
        "patch Pod a/status -> delete Pod a (TaintManagerEviction: Marking for deletion Pod default/a) again in 50s"
    ];
    check(&seen, &old, 15, &evicted);
    check(&seen, &young, 15, &expect![" again in 4s"]);
    check(&gone_between, &old, 15, &expect![" again in 4s"]);
}

#[test]
fn a_pod_that_stays_after_all_is_told_so_once() {
    let taint = json!([{ "key": "out", "effect": "NoExecute", "timeAdded": "2026-01-01T00:59:59Z" }]);
    let (tainted, clean) = (node("True", &taint), node("True", &json!(null)));
    let patient = pod(&json!([{ "key": "out", "operator": "Exists", "tolerationSeconds": 5 }]));
    let mut scheduled = Scheduled::default();
    let mut check = |node: &Node, expected: &Expect| {
        let pulse = Pulse::next(None, node, None, Duration::ZERO);
        let snapshot = Snapshot {
            node,
            pulse: &pulse,
            tainted: &Tainted::default(),
            pods: &[&patient],
            pace: Pace::Free,
        };
        let memory = (&mut Marked::default(), &mut scheduled);
        expected.assert_eq(&plan(&snapshot, memory, Duration::ZERO, now()).to_string());
    };
    check(&clean, &expect![" again in 50s"]);
    check(&tainted, &expect![" again in 4s"]);
    let stays = expect!["event TaintManagerEviction: Cancelling deletion of Pod default/a again in 50s"];
    check(&clean, &stays);
    check(&clean, &expect![" again in 50s"]);
}

#[test]
fn a_pod_that_says_again_that_it_is_ready_is_believed() {
    let taints = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }]);
    let troubled = node("False", &taints);
    let ready = |version: u32| -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "default", "uid": "a", "resourceVersion": version.to_string() },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .unwrap()
    };
    let mut marked = Marked::default();
    let mut marks = |node: &Node, version| !marked.steps(node, &[&ready(version)], now()).is_empty();
    // The same version again: the mark was not written.
    assert_eq!((0..5).filter(|_| marks(&troubled, 7)).count(), 5);
    // Others write, and the agent sets ready again.
    assert_eq!((8..100).filter(|version| marks(&troubled, *version)).count(), 2);
    assert!(!marks(&node("True", &json!(null)), 100));
    assert_eq!((101..200).filter(|version| marks(&troubled, *version)).count(), 3);
}

#[test]
fn a_pod_that_is_not_ready_any_more_says_of_which_version_of_it_that_is() {
    let mut pod = pod(&json!([]));
    pod.status.ready = true;
    pod.metadata.generation = 4;
    let steps = Marked::default().steps(&node("False", &json!(null)), &[&pod], now());
    let [Step::Patch { body, .. }, Step::Event(_)] = steps.as_slice() else {
        panic!("{steps:?}");
    };
    expect![[r#"
        {"lastTransitionTime":"2026-01-01T01:00:00Z","observedGeneration":4,"status":"False","type":"Ready"}"#]]
    .assert_eq(&body["status"]["conditions"][0].to_string());
}
