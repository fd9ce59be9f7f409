use std::sync::Arc;

use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Graph, Item};
use crate::step::{DEPLOYMENTS, NODES, PODS, REPLICA_SETS, Resource, Step};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn owner(resource: Resource, name: &str) -> Value {
    json!({
        "apiVersion": resource.api_version(), "kind": resource.kind, "name": name, "uid": name, "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn item(resource: Resource, name: &str, owners: &[Value], finalizer: Option<&str>) -> Item {
    let metadata = json!({
        "name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "ownerReferences": owners,
        "finalizers": finalizer.into_iter().collect::<Vec<_>>(),
        "deletionTimestamp": finalizer.map(|_| "2026-01-01T00:00:00Z"),
    });
    // The object's other fields do not matter.
    let object: ConfigMap = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    Item::of(&Arc::new(resource), Arc::new(object))
}

fn check(graph: &mut Graph, uid: &str, expected: &Expect) {
    let resolve = |_: &str, kind: &str| {
        [PODS, REPLICA_SETS, DEPLOYMENTS]
            .into_iter()
            .find(|known| known.kind == kind)
    };
    expected.assert_eq(&graph.plan(uid, resolve, now()).to_string());
}

#[test]
fn nothing_is_deleted_before_its_owners_absence_is_proven() {
    let mut graph = Graph::default();
    graph.observe(item(PODS, "pod", &[owner(REPLICA_SETS, "set")], None));
    check(&mut graph, "pod", &expect!["look for ReplicaSet set"]);
    graph.learn("set", true, now());
    check(&mut graph, "pod", &expect![" again in 11s"]);
    graph.learn("set", false, now());
    graph.forget("set");
    check(&mut graph, "pod", &expect!["delete Pod pod"]);
}

#[test]
fn a_solid_owner_keeps_it_and_absent_ones_are_struck() {
    let mut graph = Graph::default();
    graph.observe(item(REPLICA_SETS, "set", &[], None));
    graph.observe(item(PODS, "pod", &[owner(REPLICA_SETS, "set")], None));
    check(&mut graph, "pod", &expect![""]);
    graph.observe(item(
        PODS,
        "pod",
        &[owner(REPLICA_SETS, "set"), owner(REPLICA_SETS, "gone")],
        None,
    ));
    graph.learn("gone", false, now());
    check(&mut graph, "pod", &expect!["patch Pod pod"]);
}

#[test]
fn foreground_deletion_takes_dependents_first() {
    let mut graph = Graph::default();
    graph.observe(item(PODS, "pod", &[owner(REPLICA_SETS, "set")], None));
    graph.observe(item(REPLICA_SETS, "set", &[owner(DEPLOYMENTS, "web")], None));
    let woken = graph.observe(item(DEPLOYMENTS, "web", &[], Some("foregroundDeletion")));
    assert!(woken.contains(&"set".to_owned()));
    check(&mut graph, "web", &expect![""]);
    check(&mut graph, "set", &expect!["delete ReplicaSet set"]);
    assert_eq!(graph.forget("pod"), Vec::<String>::new());
    assert_eq!(
        graph.forget("set"),
        ["pod", "web"]
            .into_iter()
            .filter(|uid| *uid == "web")
            .collect::<Vec<_>>()
    );
    check(&mut graph, "web", &expect!["patch Deployment web"]);
}

#[test]
fn orphans_are_set_free_before_their_owner_goes() {
    let mut graph = Graph::default();
    graph.observe(item(PODS, "pod", &[owner(REPLICA_SETS, "set")], None));
    graph.observe(item(REPLICA_SETS, "set", &[], Some("orphan")));
    check(&mut graph, "set", &expect!["patch Pod pod"]);
    let woken = graph.observe(item(PODS, "pod", &[], None));
    assert!(woken.contains(&"set".to_owned()));
    check(&mut graph, "set", &expect!["patch ReplicaSet set"]);
}

#[test]
fn a_circle_of_owners_does_not_wait_for_itself() {
    let mut graph = Graph::default();
    graph.observe(item(PODS, "a", &[owner(PODS, "c")], Some("foregroundDeletion")));
    graph.observe(item(PODS, "b", &[owner(PODS, "a")], None));
    graph.observe(item(PODS, "c", &[owner(PODS, "b")], None));
    check(&mut graph, "b", &expect!["delete Pod b"]);
    graph.observe(item(PODS, "b", &[owner(PODS, "a")], Some("foregroundDeletion")));
    // The others would wait for the last one: it stops blocking first.
    check(&mut graph, "c", &expect!["patch Pod c"]);
    let mut free = owner(PODS, "b");
    free["blockOwnerDeletion"] = false.into();
    let concerned = graph.observe(item(PODS, "c", &[free], None));
    assert!(concerned.contains(&"b".to_owned()), "{concerned:?}");
    check(&mut graph, "c", &expect!["delete Pod c"]);
    check(&mut graph, "b", &expect!["patch Pod b"]);
}

/// Number of plans until one has no steps, if every owner that is looked up is absent.
fn looks(graph: &mut Graph, uid: &str) -> Option<usize> {
    let resolve = |_: &str, _: &str| Some(REPLICA_SETS);
    (1..10).find(|_| {
        let steps: Vec<_> = graph.plan(uid, resolve, now()).stages.concat();
        let looked: Vec<String> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Look(target) => Some(target.uid.clone()),
                Step::Create { .. } | Step::Patch { .. } | Step::Delete { .. } | Step::Measure(_) | Step::Event(_) => {
                    None
                }
            })
            .collect();
        for uid in &looked {
            graph.learn(uid, false, now());
        }
        looked.is_empty()
    })
}

#[test]
fn more_absent_owners_than_are_remembered_come_to_an_end() {
    let mut graph = Graph::default();
    let owners: Vec<Value> = (0..1200)
        .map(|number| owner(REPLICA_SETS, &format!("gone-{number}")))
        .collect();
    graph.observe(item(PODS, "pod", &owners, None));
    assert_eq!(looks(&mut graph, "pod"), Some(2));
    check(&mut graph, "pod", &expect!["delete Pod pod"]);
    graph.forget("pod");
    graph.observe(item(PODS, "next", &[owner(REPLICA_SETS, "other")], None));
    graph.learn("other", false, now());
    assert_eq!(graph.absent.len(), 500, "what nobody names is forgotten");
}

#[test]
fn owners_of_kinds_that_are_not_there_are_left_alone() {
    let mut graph = Graph::default();
    let mut unknown = owner(PODS, "widget");
    unknown["kind"] = "Widget".into();
    graph.observe(item(PODS, "pod", &[unknown, owner(REPLICA_SETS, "gone")], None));
    graph.learn("gone", false, now());
    check(&mut graph, "pod", &expect![""]);
}

#[test]
fn names_that_would_lead_elsewhere_are_not_looked_for() {
    for name in ["set/proxy/x", "set%2fproxy", ".."] {
        let mut graph = Graph::default();
        graph.observe(item(PODS, "pod", &[owner(REPLICA_SETS, name)], None));
        check(&mut graph, "pod", &expect![""]);
    }
}

#[test]
fn an_owner_in_another_namespace_is_told_of_once() {
    let mut graph = Graph::default();
    let clustered = |owners: &[Value]| {
        let metadata = json!({ "name": "n", "uid": "n", "resourceVersion": "1", "ownerReferences": owners });
        let object: ConfigMap = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        Item::of(&Arc::new(NODES), Arc::new(object))
    };
    graph.observe(item(REPLICA_SETS, "set", &[], None));
    graph.observe(clustered(&[owner(REPLICA_SETS, "set")]));
    check(
        &mut graph,
        "n",
        &expect![[
            r#"event OwnerRefInvalidNamespace: ownerRef [apps/v1/ReplicaSet, namespace: , name: set, uid: set] does not exist in namespace """#
        ]],
    );
    check(&mut graph, "n", &expect![""]);
    graph.observe(clustered(&[owner(REPLICA_SETS, "set")]));
    check(&mut graph, "n", &expect![""]);
}
