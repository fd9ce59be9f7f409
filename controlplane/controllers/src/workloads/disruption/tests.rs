use serde_json::{Value, from_value, json};

use super::*;

/// Plan of a budget for a pod with this controller, whose size is then told.
fn planned(kind: &str, version: &str, size: Option<Size>) -> String {
    let caches = Caches::new();
    let definition = |kind: &str, plural: &str, parts: Value| {
        let version = json!({ "name": "v1", "served": true, "storage": true, "subresources": parts });
        let names = json!({ "kind": kind, "plural": plural });
        let spec = json!({ "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version] });
        let status = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
        json!({ "metadata": { "name": format!("{plural}.example.com") }, "spec": spec, "status": status })
    };
    let scale = json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" });
    for definition in [
        definition("Shop", "shops", json!({ "scale": scale })),
        definition("Stall", "stalls", json!({})),
    ] {
        caches.definitions.apply(from_value(definition).unwrap(), false);
    }
    let selector = json!({ "matchLabels": { "app": "a" } });
    let budget = json!({ "metadata": { "name": "b", "namespace": "ns" }, "spec": { "maxUnavailable": 1, "selector": selector } });
    caches.budgets.apply(from_value(budget).unwrap(), false);
    let owner = json!({ "apiVersion": version, "kind": kind, "name": "one", "uid": "u", "controller": true });
    let metadata =
        json!({ "name": "p", "namespace": "ns", "uid": "p", "labels": { "app": "a" }, "ownerReferences": [owner] });
    caches
        .pods
        .apply(from_value(json!({ "metadata": metadata })).unwrap(), false);
    let disruption = Disruption::new(Arc::new(caches));
    let plan = || disruption.plan(&Key::new("ns", "b"), None, Timestamp::UNIX_EPOCH);
    let first = plan();
    let Some(size) = size else { return first.to_string() };
    let Some(Step::Measure(target)) = first.stages.into_iter().flatten().next() else {
        panic!("it is measured");
    };
    disruption.measured(&target, &size);
    let plan = plan().stages.into_iter().flatten().map(|step| match step {
        Step::Patch { body, .. } => body["status"]["expectedPods"].to_string(),
        Step::Create { .. } | Step::Delete { .. } | Step::Look(_) | Step::Measure(_) | Step::Event(_) => {
            step.to_string()
        }
    });
    plan.collect::<Vec<_>>().join(", ")
}

#[test]
fn controllers_of_any_kind_count_by_their_scale() {
    let failed = "event CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods:";
    for (kind, version, size, expected) in [
        ("Shop", "example.com/v1", None, "measure Shop one".to_owned()),
        ("Shop", "example.com/v1", Some(Ok(Some(3))), "3".to_owned()),
        (
            "Shop",
            "example.com/v1",
            Some(Ok(None)),
            format!("{failed} found no controllers for pod \"p\", null"),
        ),
        (
            "Shop",
            "example.com/v1",
            Some(Err("forbidden".to_owned())),
            format!("{failed} forbidden, null"),
        ),
        ("ReplicaSet", "apps/v1", None, "measure ReplicaSet one".to_owned()),
        (
            "Stall",
            "example.com/v1",
            None,
            format!(
                "{failed} stalls.example.com does not implement the scale subresource -> patch PodDisruptionBudget b/status"
            ),
        ),
        (
            "Job",
            "batch/v1",
            None,
            format!(
                "{failed} jobs.batch does not implement the scale subresource -> patch PodDisruptionBudget b/status"
            ),
        ),
        (
            "Node",
            "v1",
            None,
            format!("{failed} nodes does not implement the scale subresource -> patch PodDisruptionBudget b/status"),
        ),
        (
            "Tent",
            "example.com/v1",
            None,
            format!(
                "{failed} no matches for kind \"Tent\" in version \"example.com/v1\" -> patch PodDisruptionBudget b/status"
            ),
        ),
    ] {
        assert_eq!(planned(kind, version, size), expected, "{kind}");
    }
}

#[test]
fn a_pod_of_several_budgets_is_told_once() {
    let caches = Caches::new();
    for (name, labels) in [("a", json!({ "app": "p" })), ("b", json!({}))] {
        let spec = json!({ "minAvailable": 0, "selector": { "matchLabels": labels } });
        let budget = json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec });
        caches.budgets.apply(from_value(budget).unwrap(), false);
    }
    for name in ["p", "q"] {
        let metadata = json!({ "name": name, "namespace": "ns", "uid": name, "labels": { "app": name } });
        let pod = json!({ "metadata": metadata });
        caches.pods.apply(from_value(pod).unwrap(), false);
    }
    let disruption = Disruption::new(Arc::new(caches));
    let plan = |budget: &str| {
        let plan = disruption.plan(&Key::new("ns", budget), None, Timestamp::UNIX_EPOCH);
        plan.to_string()
    };
    assert_eq!(
        plan("b"),
        "event MultiplePodDisruptionBudgets: Pod \"ns\"/\"p\" matches multiple PodDisruptionBudgets.  Chose \"a\" \
         arbitrarily. -> patch PodDisruptionBudget b/status"
    );
    for budget in ["a", "b"] {
        assert_eq!(plan(budget), format!("patch PodDisruptionBudget {budget}/status"));
    }
}
