mod histories;

use expect_test::{Expect, expect};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::{Backoff, Failure, Snapshot, plan};
use crate::objects::Meta as _;
use crate::pod::Pod;
use crate::step::{Plan, Step};
use crate::world::{World, created, now};

fn template(version: u32) -> Value {
    json!({
        "metadata": { "labels": { "app": "log" } },
        "spec": { "containers": [{ "name": "main", "image": format!("nginx:{version}") }] },
    })
}

fn unavailable(most: u32) -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": most, "maxSurge": 0 } })
}

fn surge(most: u32) -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": most } })
}

/// A set and nodes: `a`, `b label`, `c NoSchedule`, `d NoExecute`.
fn set(strategy: &Value, nodes: &[&str]) -> World {
    let mut world = World::default();
    let metadata = json!({
        "name": "log", "uid": "d", "generation": 1,
        "annotations": { "deprecated.daemonset.template.generation": "1" },
    });
    let spec = json!({
        "selector": { "matchLabels": { "app": "log" } }, "revisionHistoryLimit": 10, "updateStrategy": strategy,
        "template": template(1),
    });
    world.put(
        "DaemonSet",
        json!({ "metadata": metadata, "spec": spec, "status": null }),
    );
    for text in nodes {
        let words: Vec<&str> = text.split(' ').collect();
        let labels = if words.contains(&"label") {
            json!({ "disk": "ssd" })
        } else {
            json!({})
        };
        let effects = words.iter().filter(|word| word.starts_with("No"));
        let taints: Vec<Value> = effects.map(|effect| json!({ "key": "k", "effect": effect })).collect();
        world.put(
            "Node",
            json!({ "metadata": { "name": words[0], "labels": labels }, "spec": { "taints": taints } }),
        );
    }
    world
}

/// The same with its revision and pods: `a1 ready`, `b1 pending old`, `c1 failed`; the first letter
/// is the node.
fn with_pods(strategy: &Value, nodes: &[&str], pods: &[&str]) -> World {
    let mut world = set(strategy, nodes);
    let mut first = planned(&world, &mut Backoff::default(), None);
    first.stages.truncate(1);
    world.perform(&first);
    let revision = world.all::<ControllerRevision>("ControllerRevision").swap_remove(0);
    let hash = revision.metadata.labels().unwrap()["controller-revision-hash"].clone();
    for text in pods {
        let words: Vec<&str> = text.split(' ').collect();
        let is = |word: &str| words.contains(&word);
        let labels = json!({
            "app": "log", "controller-revision-hash": if is("old") { "old" } else { &hash },
            "pod-template-generation": if is("old") { "0" } else { "1" },
        });
        let owner =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "d", "controller": true }]);
        let deleted = is("deleted").then_some("2026-01-01T00:59:00Z");
        let metadata = json!({
            "name": words[0], "labels": labels, "ownerReferences": owner, "deletionTimestamp": deleted,
        });
        let mut spec = json!({ "containers": [] });
        if is("waiting") {
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [&words[0][..1]] });
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] });
        } else {
            spec["nodeName"] = words[0][..1].into();
        }
        world.put("Pod", json!({ "metadata": metadata, "spec": spec }));
        match () {
            () if is("failed") => world.phase(words[0], "Failed", false),
            () if is("succeeded") => world.phase(words[0], "Succeeded", false),
            () if is("pending") || is("waiting") => {}
            () => world.phase(words[0], "Running", is("ready")),
        }
    }
    world
}

fn planned(world: &World, backoff: &mut Backoff, failure: Option<&Failure>) -> Plan {
    let sets: Vec<DaemonSet> = world.all("DaemonSet");
    let pods: Vec<Pod> = world.all("Pod");
    let (revisions, nodes): (Vec<ControllerRevision>, Vec<Node>) = (world.all("ControllerRevision"), world.all("Node"));
    let snapshot = Snapshot {
        set: &sets[0],
        revisions: &revisions.iter().collect::<Vec<_>>(),
        pods: &pods.iter().collect::<Vec<_>>(),
        nodes: &nodes.iter().collect::<Vec<_>>(),
        failure,
    };
    plan(&snapshot, backoff, now())
}

/// The plan without the status: `+a` for a new pod of a node, `-a1` for a deletion.
fn summary(plan: &Plan) -> String {
    let steps = plan.stages.iter().flatten().filter_map(|step| match step {
        Step::Create { resource, body, .. } if resource.kind == "Pod" => {
            let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
            let node = body.pointer(&format!("{terms}/0/matchFields/0/values/0"));
            Some(format!("+{}", node.and_then(Value::as_str).unwrap_or("?")))
        }
        Step::Delete { target, .. } if target.resource.kind == "Pod" => Some(format!("-{}", target.name)),
        Step::Patch {
            subresource: Some("status"),
            ..
        } => None,
        Step::Create { .. }
        | Step::Patch { .. }
        | Step::Delete { .. }
        | Step::Look(_)
        | Step::Measure(_)
        | Step::Event(_) => Some(step.to_string()),
    });
    let mut words: Vec<String> = steps.collect();
    words.extend(plan.again.map(|delay| format!("again in {}s", delay.as_secs())));
    words.join(" ")
}

fn check(strategy: &Value, nodes: &[&str], pods: &[&str], expected: &Expect) {
    let world = with_pods(strategy, nodes, pods);
    expected.assert_eq(&summary(&planned(&world, &mut Backoff::default(), None)));
}

#[test]
fn each_node_that_fits_has_one_pod() {
    let one = unavailable(1);
    check(&one, &["a", "b"], &[], &expect!["+a +b"]);
    check(&one, &["a", "b"], &["a1 ready"], &expect!["+b"]);
    check(&one, &["a", "b"], &["a1 ready", "b1 waiting"], &expect![""]);
    check(&one, &["a"], &["a1 ready", "a2 ready"], &expect!["-a2"]);
    check(&one, &["a"], &["a1 waiting", "a2 ready"], &expect!["-a1"]);
    // Without surge a pod is created after the previous one is gone.
    check(&one, &["a"], &["a1 ready deleted"], &expect![""]);
    check(&one, &["a"], &["a1 failed deleted"], &expect!["+a"]);
    // A pending pod whose node is gone, and one that ran there.
    check(&one, &["a"], &["a1 ready", "z1 waiting", "y1 ready"], &expect!["-z1"]);
}

#[test]
fn taints_keep_pods_off_and_some_drive_them_away() {
    let one = unavailable(1);
    check(&one, &["a NoSchedule", "b NoExecute"], &[], &expect![""]);
    check(
        &one,
        &["a NoSchedule", "b NoExecute"],
        &["a1 ready", "b1 ready"],
        &expect!["-b1"],
    );
    check(&one, &["a PreferNoSchedule"], &[], &expect!["+a"]);
}

#[test]
fn a_node_that_loses_its_label_loses_its_pod() {
    let mut world = with_pods(&unavailable(1), &["a label", "b"], &[]);
    let selector = json!({ "spec": { "template": { "spec": { "nodeSelector": { "disk": "ssd" } } } } });
    world.patch("DaemonSet", "log", &selector);
    let gist = |world: &World| summary(&planned(world, &mut Backoff::default(), None));
    assert!(gist(&world).ends_with("+a"), "{}", gist(&world));
    let plan = planned(&world, &mut Backoff::default(), None);
    world.perform(&plan);
    assert_eq!(gist(&world), "");
    world.patch("Node", "a", &json!({ "metadata": { "labels": { "disk": null } } }));
    let pod = world.names("Pod").swap_remove(0);
    assert_eq!(gist(&world), format!("-{pod}"));
}

#[test]
fn pods_that_have_ended_are_replaced() {
    let one = unavailable(1);
    check(
        &one,
        &["a"],
        &["a1 failed"],
        &expect!["event FailedDaemonPod: Found failed daemon pod default/a1 on node a, will try to kill it -a1"],
    );
    check(
        &one,
        &["a"],
        &["a1 succeeded"],
        &expect![
            "event SucceededDaemonPod: Found succeeded daemon pod default/a1 on node a, will try to delete it -a1"
        ],
    );
}

#[test]
fn pods_that_fail_again_and_again_are_deleted_less_and_less_often() {
    let mut backoff = Backoff::default();
    let mut at = now();
    let delays: Vec<u64> = (0..13)
        .map(|_| {
            assert_eq!(backoff.next("d", 1, "a", at), None);
            let delay = backoff.next("d", 1, "a", at).unwrap();
            assert!(backoff.next("d", 1, "b", at).is_none(), "another node");
            at += delay;
            delay.as_secs()
        })
        .collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]);
    let world = with_pods(&unavailable(1), &["a"], &["a1 failed"]);
    let mut backoff = Backoff::default();
    planned(&world, &mut backoff, None);
    assert_eq!(summary(&planned(&world, &mut backoff, None)), "again in 1s");
}

#[test]
fn an_update_takes_no_more_than_may_be_unavailable() {
    let nodes = ["a", "b", "c"];
    let all_old = ["a1 ready old", "b1 ready old", "c1 ready old"];
    check(&unavailable(1), &nodes, &all_old, &expect!["-a1"]);
    check(&unavailable(2), &nodes, &all_old, &expect!["-a1 -b1"]);
    check(
        &unavailable(1),
        &nodes,
        &["a1 running", "b1 ready old", "c1 ready old"],
        &expect![""],
    );
    check(
        &unavailable(1),
        &nodes,
        &["a1 ready", "b1 ready old", "c1 ready old"],
        &expect!["-b1"],
    );
    check(
        &unavailable(1),
        &nodes,
        &["a1 ready old deleted", "b1 ready old", "c1 ready old"],
        &expect![""],
    );
    // Unavailable pods may always be deleted.
    check(
        &unavailable(1),
        &nodes,
        &["a1 running old", "b1 running old", "c1 ready old"],
        &expect!["-a1 -b1"],
    );
    let half = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "50%" } });
    check(&half, &nodes, &all_old, &expect!["-a1 -b1"]);
    check(&json!({ "type": "OnDelete" }), &nodes, &all_old, &expect![""]);
    // Every node gets its pod first.
    check(
        &unavailable(1),
        &nodes,
        &["a1 ready old", "b1 ready old"],
        &expect!["+c"],
    );
}

#[test]
fn a_surge_makes_the_new_pod_first() {
    let nodes = ["a", "b", "c"];
    let all_old = ["a1 ready old", "b1 ready old", "c1 ready old"];
    check(&surge(1), &nodes, &all_old, &expect!["+a"]);
    check(&surge(2), &nodes, &all_old, &expect!["+a +b"]);
    let one_new = |state: &str| {
        [
            format!("a2 {state}"),
            "a1 ready old".to_owned(),
            "b1 ready old".to_owned(),
            "c1 ready old".to_owned(),
        ]
    };
    let pods = |state: &str| one_new(state);
    let check_new = |state: &str, expected: &Expect| {
        let pods = pods(state);
        check(
            &surge(1),
            &nodes,
            &pods.iter().map(String::as_str).collect::<Vec<_>>(),
            expected,
        );
    };
    check_new("running", &expect![""]);
    check_new("ready", &expect!["-a1"]);
    check(
        &surge(1),
        &nodes,
        &["a1 running old", "b1 running old", "c1 ready old"],
        &expect!["+a +b +c"],
    );
    check(
        &surge(1),
        &["a"],
        &["a1 ready", "a2 ready", "a3 ready old"],
        &expect!["-a2 -a3"],
    );
    check(&surge(1), &["a"], &["a1 running", "a2 running old"], &expect!["-a2"]);
    check(&surge(1), &["a"], &["a1 ready deleted"], &expect!["+a"]);
    // A pod on a node that it no longer fits is deleted once all others are available.
    check(
        &surge(1),
        &["a", "b NoSchedule"],
        &["a1 ready", "b1 ready old"],
        &expect!["-b1"],
    );
    check(
        &surge(1),
        &["a", "b NoSchedule"],
        &["a1 running", "b1 ready old"],
        &expect![""],
    );
}

#[test]
fn a_pod_waits_for_its_node_and_tolerates_what_nodes_suffer() {
    let plan = planned(&set(&unavailable(1), &["a"]), &mut Backoff::default(), None);
    let pod = created(&plan, "Pod").swap_remove(0);
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    let keys: Vec<String> = tolerations
        .iter()
        .map(|one| format!("{}:{}", one["key"].as_str().unwrap(), one["effect"].as_str().unwrap()))
        .collect();
    expect![[r"
        node.kubernetes.io/not-ready:NoExecute
        node.kubernetes.io/unreachable:NoExecute
        node.kubernetes.io/disk-pressure:NoSchedule
        node.kubernetes.io/memory-pressure:NoSchedule
        node.kubernetes.io/pid-pressure:NoSchedule
        node.kubernetes.io/unschedulable:NoSchedule"]]
    .assert_eq(&keys.join("\n"));
    assert_eq!(pod["metadata"]["generateName"], "log-");
    assert_eq!(pod["metadata"]["labels"]["pod-template-generation"], "1");
    assert!(pod["metadata"]["labels"]["controller-revision-hash"].is_string());
}

#[test]
fn the_status_counts_nodes() {
    let nodes = ["a", "b", "c", "d NoSchedule"];
    let world = with_pods(
        &unavailable(1),
        &nodes,
        &["a1 ready", "b1 running", "c1 ready old", "d1 ready"],
    );
    let plan = planned(&world, &mut Backoff::default(), None);
    let status = plan.stages.iter().flatten().find_map(|step| {
        let Step::Patch {
            subresource: Some("status"),
            body,
            ..
        } = step
        else {
            return None;
        };
        Some(body["status"].clone())
    });
    assert_eq!(plan.tolerant, Some(0), "it is told whatever becomes of the pods");
    assert_eq!(
        status.unwrap(),
        json!({
            "observedGeneration": 1, "desiredNumberScheduled": 3, "currentNumberScheduled": 3, "numberMisscheduled": 1,
            "numberReady": 2, "updatedNumberScheduled": 2, "numberAvailable": 2, "numberUnavailable": 1,
        })
    );
}
