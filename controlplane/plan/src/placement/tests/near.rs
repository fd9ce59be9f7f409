use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};

use super::{cache, check, node};
use crate::objects::name;
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
    let mut cache = cache(&[zone("n1"), zone("n2")]);
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
    check(&cache, &own, &expect!["n1"]);
    cache.place(&friend("db", "default", "db", &json!([])), "n2", false);
    let both = friend(
        "both",
        "default",
        "own",
        &json!([term("db", "zone"), term("own", "zone")]),
    );
    check(&cache, &both, &none);
    let one = friend("one", "default", "own", &json!([term("db", "kubernetes.io/hostname")]));
    check(&cache, &one, &expect!["n2"]);
}

#[test]
fn affinity_finds_namespaces_by_their_labels() {
    let mut cache = cache(&[node("n1", "4", &json!({})), node("n2", "4", &json!({}))]);
    let team = json!({ "team": "a" });
    cache.set_namespace("near", serde_json::from_value(team.clone()).ok().as_ref());
    cache.set_namespace("far", None);
    let wanted = friend(
        "x",
        "default",
        "x",
        &json!([{
            "labelSelector": { "matchLabels": { "app": "db" } }, "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": { "matchLabels": team }, "namespaces": ["listed"],
        }]),
    );
    cache.place(&friend("a", "far", "db", &json!([])), "n1", false);
    assert!(cache.choose(&wanted, &Claims::default()).is_err());
    cache.place(&friend("b", "near", "db", &json!([])), "n2", false);
    check(&cache, &wanted, &expect!["n2"]);
    cache.set_namespace("near", None);
    assert!(cache.choose(&wanted, &Claims::default()).is_err());
    cache.place(&friend("c", "listed", "db", &json!([])), "n1", false);
    check(&cache, &wanted, &expect!["n1"]);
}

#[test]
fn goes_where_those_who_are_there_want_it() {
    let term = json!({ "labelSelector": { "matchLabels": { "app": "x" } }, "topologyKey": "kubernetes.io/hostname" });
    let preferred =
        json!({ "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 5, "podAffinityTerm": term }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [term] });
    for (affinity, host, expected) in [
        (json!({}), "n1", "n1"),
        (json!({ "podAntiAffinity": preferred }), "n1", "n2"),
        (json!({}), "n2", "n1"),
        (json!({ "podAffinity": preferred }), "n2", "n2"),
        (json!({ "podAffinity": required }), "n2", "n2"),
    ] {
        let mut cache = cache(&[node("n1", "4", &json!({})), node("n2", "4", &json!({}))]);
        for name in ["a", "b"] {
            cache.place(&friend(name, "default", "a", &json!([])), "n2", false);
        }
        let pod = json!({
            "metadata": { "name": "host", "namespace": "default", "uid": "host" },
            "spec": { "containers": [{ "name": "main" }], "affinity": affinity },
        });
        cache.place(&Arc::new(serde_json::from_value(pod).unwrap()), host, false);
        let chosen = cache.choose(&friend("x", "default", "x", &json!([])), &Claims::default());
        assert_eq!(name(&*chosen.unwrap()), expected, "{affinity} on {host}");
    }
}
