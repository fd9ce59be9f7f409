use std::sync::Arc;

use serde_json::{Value, json};

use super::{cache, displaced, node, ranked};
use crate::pod::Pod;

/// A pod without labels.
fn bare(name: &str, namespace: &str, priority: i32) -> Arc<Pod> {
    let mut pod = Arc::unwrap_or_clone(ranked(name, "1", priority));
    let metadata = json!({ "name": name, "namespace": namespace, "uid": name });
    pod.metadata = serde_json::from_value(metadata).unwrap();
    Arc::new(pod)
}

/// A budget that allows no disruption.
fn guard(selector: &Value) -> Value {
    json!({
        "metadata": { "name": "g", "namespace": "default" }, "spec": { "selector": selector },
        "status": { "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0 },
    })
}

#[test]
fn spares_those_whose_budgets_want_it() {
    let mut cache = cache(&[node("n1", "2", &json!({}))]);
    cache.place(&ranked("a", "1", 1), "n1", false);
    cache.place(&bare("b", "default", 2), "n1", false);
    let high = ranked("x", "1", 9);
    let of = |app: &str| guard(&json!({ "matchLabels": { "app": app } }));
    assert_eq!(displaced(&cache, &high, &[]), "n1: a");
    assert_eq!(displaced(&cache, &high, &[of("web")]), "n1: b");
    assert_eq!(displaced(&cache, &high, &[of("db")]), "n1: a");
}

#[test]
fn a_budget_with_an_empty_selector_guards_all_pods_of_its_namespace() {
    let mut cache = cache(&[node("n1", "1", &json!({})), node("n2", "1", &json!({}))]);
    cache.place(&bare("a", "default", 1), "n1", false);
    cache.place(&bare("b", "other", 2), "n2", false);
    let high = ranked("x", "1", 9);
    assert_eq!(displaced(&cache, &high, &[guard(&Value::Null)]), "n1: a");
    assert_eq!(displaced(&cache, &high, &[guard(&json!({}))]), "n2: b");
}
