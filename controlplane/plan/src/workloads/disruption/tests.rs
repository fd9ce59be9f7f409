use expect_test::expect;
use serde_json::from_value;

use super::*;

/// `members`: names; those in lower case are ready.
fn check(spec: &Value, status: &Value, members: &str, replicas: i32) -> String {
    let budget = json!({ "metadata": { "name": "b", "generation": 2 }, "spec": spec, "status": status });
    let budget: PodDisruptionBudget = from_value(budget).unwrap();
    let pods: Vec<Pod> = members
        .chars()
        .map(|name| {
            let ready = if name.is_lowercase() { "True" } else { "False" };
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            let pod = json!({ "metadata": { "name": name.to_string() }, "status": { "conditions": conditions } });
            from_value(pod).unwrap()
        })
        .collect();
    let members = pods.iter().map(|pod| Member {
        pod,
        manager: Manager::Scaled("uid".to_owned(), replicas),
    });
    let members: Vec<_> = members.collect();
    let plan = plan(&budget, &members, "2026-01-01T00:10:00Z".parse().unwrap());
    let again = plan.again.map(|again| again.as_secs());
    let Some(Step::Patch { body, .. }) = plan.stages.last().and_then(|stage| stage.last()) else {
        return "nothing".to_owned();
    };
    let status = &body["status"];
    format!(
        "healthy {} of {}, needs {}, may lose {}: {} {} {again:?}",
        status["currentHealthy"],
        status["expectedPods"],
        status["desiredHealthy"],
        status["disruptionsAllowed"],
        status["conditions"][0]["reason"].as_str().unwrap(),
        status["disruptedPods"],
    )
}

#[test]
fn how_many_may_go() {
    let none = json!({});
    for (spec, members, expected) in [
        (
            json!({ "minAvailable": 2 }),
            "abc",
            "healthy 3 of 3, needs 2, may lose 1: SufficientPods",
        ),
        (
            json!({ "minAvailable": 2 }),
            "abC",
            "healthy 2 of 3, needs 2, may lose 0: InsufficientPods",
        ),
        (
            json!({ "maxUnavailable": 1 }),
            "abc",
            "healthy 3 of 4, needs 3, may lose 0: InsufficientPods",
        ),
        (
            json!({ "maxUnavailable": "50%" }),
            "abc",
            "healthy 3 of 4, needs 2, may lose 1: SufficientPods",
        ),
        (
            json!({ "minAvailable": "60%" }),
            "abcd",
            "healthy 4 of 4, needs 3, may lose 1: SufficientPods",
        ),
        (
            json!({ "minAvailable": 0 }),
            "",
            "healthy 0 of 0, needs 0, may lose 0: InsufficientPods",
        ),
    ] {
        assert_eq!(
            check(&spec, &none, members, 4),
            format!("{expected} null None"),
            "{spec} {members}"
        );
    }
}

#[test]
fn an_eviction_counts_until_it_shows_or_is_given_up() {
    let spec = json!({ "minAvailable": 1 });
    let status = json!({ "disruptedPods": {
        "a": "2026-01-01T00:09:00Z", "b": "2026-01-01T00:07:00Z", "gone": "2026-01-01T00:09:30Z",
    } });
    assert_eq!(
        check(&spec, &status, "abc", 3),
        "healthy 2 of 3, needs 1, may lose 1: SufficientPods {\"a\":\"2026-01-01T00:09:00Z\",\"b\":null,\"gone\":null} \
         Some(60)"
    );
}

#[test]
fn a_status_that_is_right_stays() {
    let status = json!({
        "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0, "observedGeneration": 2,
        "conditions": [{ "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 2 }],
    });
    assert_eq!(check(&json!({ "minAvailable": 1 }), &status, "a", 1), "nothing");
    // The status after the last eviction has shown.
    let mut status = status;
    status["disruptedPods"] = json!({});
    assert_eq!(check(&json!({ "minAvailable": 1 }), &status, "a", 1), "nothing");
}

/// Events and conditions of a budget whose pods have these controllers.
fn told(spec: &Value, status: &Value, managers: &[Manager]) -> String {
    let metadata = json!({ "name": "b", "namespace": "ns", "generation": 2 });
    let budget = json!({ "metadata": metadata, "spec": spec, "status": status });
    let budget: PodDisruptionBudget = from_value(budget).unwrap();
    let pod = json!({ "metadata": { "name": "a", "namespace": "ns" } });
    let pod: Pod = from_value(pod).unwrap();
    let members: Vec<_> = managers
        .iter()
        .cloned()
        .map(|manager| Member { pod: &pod, manager })
        .collect();
    let plan = plan(&budget, &members, "2026-01-01T00:10:00Z".parse().unwrap());
    let steps = plan.stages.iter().flatten().map(|step| match step {
        Step::Event(note) => format!(
            "{} {}: {}",
            note.about.kind.as_deref().unwrap(),
            note.reason,
            note.message
        ),
        Step::Patch { body, .. } => {
            let status = &body["status"];
            format!(
                "{} {} {} {}",
                status["disruptionsAllowed"],
                status["observedGeneration"],
                status["conditions"][0]["reason"],
                status["conditions"][0]["message"]
            )
        }
        Step::Create { .. } | Step::Delete { .. } | Step::Look(_) | Step::Measure(_) => step.to_string(),
    });
    steps.collect::<Vec<_>>().join("\n")
}

#[test]
fn pods_that_cannot_be_counted_are_told() {
    let selector = json!({
        "matchLabels": { "app": "web" },
        "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] }],
    });
    let spec = |name: &str, number: Value| json!({ "selector": selector, name: number });
    let unknown = || Manager::Unknown("jobs.batch does not implement the scale subresource".to_owned());
    let seen = json!({ "observedGeneration": 1, "disruptionsAllowed": 1, "conditions": [] });
    let late = json!({ "observedGeneration": 2, "disruptedPods": { "a": "2026-01-01T00:07:00Z" } });
    let lines = [
        told(&spec("minAvailable", json!(1)), &json!({}), &[]),
        told(&spec("maxUnavailable", json!(1)), &json!({}), &[Manager::None]),
        told(&spec("minAvailable", json!(1)), &json!({}), &[Manager::None]),
        told(&spec("minAvailable", json!("50%")), &seen, &[unknown()]),
        told(&spec("minAvailable", json!(1)), &json!({}), &[unknown()]),
        told(&spec("minAvailable", json!(1)), &late, &[unknown()]),
    ];
    expect![[r#"
        PodDisruptionBudget NoPods: No matching pods found
        0 2 "InsufficientPods" ""
        PodDisruptionBudget UnmanagedPods: Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:tier,Operator:In,Values:[a b],},},}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an integer value.
        0 2 "InsufficientPods" ""
        0 2 "InsufficientPods" ""
        PodDisruptionBudget CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: jobs.batch does not implement the scale subresource
        0 1 "SyncFailed" "jobs.batch does not implement the scale subresource"
        0 2 "InsufficientPods" ""
        Pod NotDeleted: Pod was expected by PDB ns/ns to be deleted but it wasn't
        0 2 "InsufficientPods" """#]].assert_eq(&lines.join("\n"));
}

#[test]
fn the_disruption_of_a_pod_that_was_not_deleted_is_stale() {
    let planned = |more: &Value, status: &str, reason: &str| {
        let condition = json!({
            "type": "DisruptionTarget", "status": status, "reason": reason,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut pod = json!({
            "metadata": { "name": "a" }, "status": { "phase": "Running", "conditions": [condition] },
        });
        api::patch::merge::apply(&mut pod, more).unwrap();
        let pod: Pod = from_value(pod).unwrap();
        let at = |time: &str| stale_disruption(&pod, time.parse().unwrap()).to_string();
        format!("{}; {}", at("2026-01-01T00:01:00Z"), at("2026-01-01T00:02:00Z"))
    };
    let none = json!({});
    let gone = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let ended = json!({ "status": { "phase": "Failed" } });
    let preempted = "PreemptionByScheduler";
    assert_eq!(planned(&none, "True", preempted), " again in 60s; patch Pod a/status");
    for (more, status, reason) in [
        (&none, "False", preempted),
        (&none, "True", "TerminationByKubelet"),
        (&gone, "True", preempted),
        (&ended, "True", preempted),
    ] {
        assert_eq!(planned(more, status, reason), "; ", "{more} {status} {reason}");
    }
}
