use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};

use super::{board, check, node};
use crate::placement::Claims;
use crate::pod::Pod;

/// A pod of a namespace with a label and pod affinity.
fn friend(name: &str, namespace: &str, app: &str, near: &Value) -> Arc<Pod> {
    let near = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": near } });
    let pod = json!({
        "metadata": { "name": name, "namespace": namespace, "uid": name, "labels": { "app": app } },
        "spec": { "containers": [{ "name": "main" }], "affinity": near },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

#[test]
fn is_near_those_who_are_all_that_it_wants() {
    let zone = |name: &str| {
        node(
            name,
            "4",
            &json!({ "metadata": { "name": name, "labels": { "zone": "z" } } }),
        )
    };
    let mut board = board(&[zone("n1"), zone("n2")]);
    let term = |app: &str, key: &str| json!({ "labelSelector": { "matchLabels": { "app": app } }, "topologyKey": key });
    let none = expect![
        "0/2 nodes are available: 2 node(s) didn't match pod affinity rules. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    ];
    let own = friend(
        "own",
        "default",
        "own",
        &json!([term("own", "zone"), term("own", "kubernetes.io/hostname")]),
    );
    check(&board, &own, &expect!["n1"]);
    board.place(&friend("db", "default", "db", &json!([])), "n2", false);
    let both = friend(
        "both",
        "default",
        "own",
        &json!([term("db", "zone"), term("own", "zone")]),
    );
    check(&board, &both, &none);
    let one = friend("one", "default", "own", &json!([term("db", "kubernetes.io/hostname")]));
    check(&board, &one, &expect!["n2"]);
}

#[test]
fn affinity_finds_namespaces_by_their_labels() {
    let mut board = board(&[node("n1", "4", &json!({})), node("n2", "4", &json!({}))]);
    let team = json!({ "team": "a" });
    board.set_namespace("near", serde_json::from_value(team.clone()).ok().as_ref());
    board.set_namespace("far", None);
    let wanted = friend(
        "x",
        "default",
        "x",
        &json!([{
            "labelSelector": { "matchLabels": { "app": "db" } }, "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": { "matchLabels": team }, "namespaces": ["listed"],
        }]),
    );
    board.place(&friend("a", "far", "db", &json!([])), "n1", false);
    assert!(board.choose(&wanted, &Claims::default()).is_err());
    board.place(&friend("b", "near", "db", &json!([])), "n2", false);
    check(&board, &wanted, &expect!["n2"]);
    board.set_namespace("near", None);
    assert!(board.choose(&wanted, &Claims::default()).is_err());
    board.place(&friend("c", "listed", "db", &json!([])), "n1", false);
    check(&board, &wanted, &expect!["n1"]);
}
