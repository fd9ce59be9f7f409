use expect_test::expect;
use k8s_openapi::{
    api::autoscaling::v2::HorizontalPodAutoscaler,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::{Value, json};

use super::{Measured, Memory, Next, Sample, Samples, Scale, Unknown, begin};
use crate::{pod::Pod, world::now};

/// An autoscaler of 1 to 10 replicas at 50% CPU utilization, whose spec has `more`.
fn autoscaler(more: &Value) -> HorizontalPodAutoscaler {
    let mut spec = json!({
        "minReplicas": 1, "maxReplicas": 10, "scaleTargetRef": { "kind": "Deployment", "name": "web" },
        "metrics": [{ "type": "Resource", "resource": {
            "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 },
        } }],
    });
    api::patch::merge::apply(&mut spec, more).unwrap();
    let metadata = json!({ "name": "web", "namespace": "default", "uid": "h" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// Pods that request 100m each, with their usage: `50`, `-` for one without a sample, `unready`,
/// `pending`, `gone`.
fn pods(uses: &[&str]) -> (Vec<Pod>, Samples) {
    let mut samples = Samples::new();
    let pods = uses.iter().enumerate().map(|(index, used)| {
        let name = format!("web-{index}");
        let ready = if *used == "unready" { "False" } else { "True" };
        let phase = if *used == "pending" { "Pending" } else { "Running" };
        let deleted = (*used == "gone").then_some("2026-01-01T00:59:00Z");
        if *used != "-" {
            let milli = used.parse().unwrap_or(100);
            let window = SignedDuration::from_secs(15);
            samples.insert(
                name.clone(),
                Sample {
                    milli,
                    at: now(),
                    window,
                },
            );
        }
        let started = "2026-01-01T00:00:00Z";
        serde_json::from_value(json!({
            "metadata": { "name": name, "deletionTimestamp": deleted },
            "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": "100m" } } }] },
            "status": { "phase": phase, "startTime": started, "conditions": [
                { "type": "Ready", "status": ready, "lastTransitionTime": started },
            ] },
        }))
        .unwrap()
    });
    (pods.collect(), samples)
}

/// The new size and the reasons of the conditions.
fn round(
    autoscaler: &HorizontalPodAutoscaler,
    current: i32,
    measured: Measured,
    pods: &[Pod],
    memory: &mut Memory,
    now: Timestamp,
) -> String {
    let scale = Ok(Scale { wanted: current });
    let mut round = match begin(autoscaler, scale, memory, now) {
        Next::Measure(round) => round.measured(vec![measured], &pods.iter().collect::<Vec<_>>(), memory),
        Next::Decided(round) => round,
    };
    let size = round.rescale.as_ref().map(|(size, why)| format!("{size} ({why})"));
    round.rescaled(Ok(()), memory);
    let conditions = round.status.conditions.clone().unwrap_or_default();
    let reasons = conditions
        .iter()
        .filter(|condition| condition.type_ != "AbleToScale" || size.is_none());
    let reasons: Vec<String> = reasons.filter_map(|condition| condition.reason.clone()).collect();
    format!("{} {}", size.as_deref().unwrap_or("="), reasons.join(" "))
}

fn sized(more: &Value, uses: &[&str]) -> String {
    let (pods, samples) = pods(uses);
    let current = i32::try_from(uses.len()).unwrap();
    round(
        &autoscaler(more),
        current,
        Ok(samples),
        &pods,
        &mut Memory::default(),
        now(),
    )
}

#[test]
fn replicas_follow_the_load() {
    const MORE: &str = "(cpu resource utilization (percentage of request) above target) ValidMetricFound";
    const SAME: &str = "= ReadyForNewScale ValidMetricFound DesiredWithinRange";
    let none = json!({});
    let at_once = json!({ "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0, "policies": [
        { "type": "Percent", "value": 100, "periodSeconds": 15 },
    ] } } });
    let cases: [(&Value, &[&str], String); 13] = [
        (&none, &["100"], format!("2 {MORE} DesiredWithinRange")),
        (&none, &["50", "50"], SAME.to_owned()),
        (&none, &["54", "54"], SAME.to_owned()),
        (&none, &["56", "56"], format!("3 {MORE} DesiredWithinRange")),
        (&none, &["300"], format!("4 {MORE} ScaleUpLimit")),
        (&none, &["900", "900", "900"], format!("6 {MORE} ScaleUpLimit")),
        // A recent recommendation holds against fewer replicas.
        (
            &none,
            &["10", "10", "10"],
            "= ScaleDownStabilized ValidMetricFound DesiredWithinRange".to_owned(),
        ),
        (
            &at_once,
            &["10", "10", "10"],
            "1 (All metrics below target) ValidMetricFound DesiredWithinRange".to_owned(),
        ),
        // Pods without samples damp the change.
        (&none, &["100", "-"], SAME.to_owned()),
        (&none, &["100", "unready"], SAME.to_owned()),
        (&none, &["100", "pending"], SAME.to_owned()),
        (&none, &["100", "gone"], SAME.to_owned()),
        (&at_once, &["10", "-"], SAME.to_owned()),
    ];
    for (more, uses, expected) in cases {
        assert_eq!(sized(more, uses), expected, "{uses:?}");
    }
}

#[test]
fn sizes_outside_the_range_are_brought_into_it() {
    expect!["3 (Current number of replicas below Spec.MinReplicas) "]
        .assert_eq(&sized(&json!({ "minReplicas": 3 }), &["50"]));
    expect!["2 (Current number of replicas above Spec.MaxReplicas) "]
        .assert_eq(&sized(&json!({ "maxReplicas": 2 }), &["50", "50", "50"]));
    let found = round(
        &autoscaler(&json!({})),
        0,
        Ok(Samples::new()),
        &[],
        &mut Memory::default(),
        now(),
    );
    expect!["= SucceededGetScale ScalingDisabled"].assert_eq(&found);
}

#[test]
fn policies_bound_the_rate() {
    let slowly = json!({ "behavior": { "scaleUp": { "stabilizationWindowSeconds": 0, "policies": [
        { "type": "Pods", "value": 1, "periodSeconds": 60 },
    ] } } });
    let autoscaler = autoscaler(&slowly);
    let mut memory = Memory::default();
    let (all, samples) = pods(&["400"]);
    let first = round(&autoscaler, 1, Ok(samples), &all, &mut memory, now());
    let (all, samples) = pods(&["400", "400"]);
    let second = round(
        &autoscaler,
        2,
        Ok(samples.clone()),
        &all,
        &mut memory,
        now() + SignedDuration::from_secs(15),
    );
    let third = round(
        &autoscaler,
        2,
        Ok(samples),
        &all,
        &mut memory,
        now() + SignedDuration::from_secs(75),
    );
    expect![[r"
        2 (cpu resource utilization (percentage of request) above target) ValidMetricFound ScaleUpLimit
        = ReadyForNewScale ValidMetricFound ScaleUpLimit
        3 (cpu resource utilization (percentage of request) above target) ValidMetricFound ScaleUpLimit"]]
    .assert_eq(&[first, second, third].join("\n"));
}

#[test]
fn a_recommendation_holds_for_five_minutes() {
    let autoscaler = autoscaler(&json!({}));
    let mut memory = Memory::default();
    let mut sizes = Vec::new();
    for seconds in [0, 15, 200, 299, 316] {
        let (all, samples) = pods(&["10", "10", "10"]);
        let at = now() + SignedDuration::from_secs(seconds);
        sizes.push(format!(
            "{seconds}s {}",
            round(&autoscaler, 3, Ok(samples), &all, &mut memory, at)
        ));
    }
    expect![[r"
        0s = ScaleDownStabilized ValidMetricFound DesiredWithinRange
        15s = ScaleDownStabilized ValidMetricFound DesiredWithinRange
        200s = ScaleDownStabilized ValidMetricFound DesiredWithinRange
        299s = ScaleDownStabilized ValidMetricFound DesiredWithinRange
        316s 1 (All metrics below target) ValidMetricFound DesiredWithinRange"]]
    .assert_eq(&sizes.join("\n"));
}

#[test]
fn what_cannot_be_measured_is_told() {
    let told = |more: &Value, measured: Measured| {
        let autoscaler = autoscaler(more);
        let mut memory = Memory::default();
        let (pods, _) = pods(&["50"]);
        let Next::Measure(round) = begin(&autoscaler, Ok(Scale { wanted: 1 }), &mut memory, now()) else {
            panic!("it is to be measured");
        };
        let metrics = autoscaler.spec.metrics.as_ref().map_or(0, Vec::len);
        let round = round.measured(vec![measured; metrics], &pods.iter().collect::<Vec<_>>(), &mut memory);
        let notes = round
            .notes
            .iter()
            .map(|note| format!("{}: {}", note.reason, note.message));
        notes.collect::<Vec<_>>().join("\n")
    };
    let fetch = Err(Unknown::Fetch(
        "no metrics returned from resource metrics API".to_owned(),
    ));
    let metric = |metric: Value| json!({ "metrics": [metric] });
    let external = metric(json!({ "type": "External", "external": {
        "metric": { "name": "queue", "selector": { "matchLabels": { "a": "b" } } },
        "target": { "type": "Value", "value": "1" },
    } }));
    let custom = metric(json!({ "type": "Pods", "pods": {
        "metric": { "name": "hits" }, "target": { "type": "AverageValue", "averageValue": "1" },
    } }));
    let object = metric(json!({ "type": "Object", "object": {
        "describedObject": { "kind": "Ingress", "name": "i" }, "metric": { "name": "hits" },
        "target": { "type": "Value", "value": "1" },
    } }));
    let memory = metric(json!({ "type": "Resource", "resource": {
        "name": "memory", "target": { "type": "Utilization", "averageUtilization": 50 },
    } }));
    let (_, samples) = pods(&["50"]);
    let all = [
        told(&json!({}), fetch),
        told(&external, Ok(Samples::new())),
        told(&custom, Ok(Samples::new())),
        told(&object, Ok(Samples::new())),
        told(&memory, Ok(samples)),
    ];
    expect![[r"
        FailedGetResourceMetric: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API
        FailedGetExternalMetric: unable to get external metric default/queue/&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get queue external metric value: unable to get external metric default/queue/&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)
        FailedGetPodsMetric: unable to get metric hits: unable to fetch metrics from custom metrics API: no known available metric versions found
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get pods metric value: unable to get metric hits: unable to fetch metrics from custom metrics API: no known available metric versions found
        FailedGetObjectMetric: unable to get metric hits: Ingress on default i/unable to fetch metrics from custom metrics API: no known available metric versions found
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get object metric value: unable to get metric hits: Ingress on default i/unable to fetch metrics from custom metrics API: no known available metric versions found
        FailedGetResourceMetric: failed to get memory utilization: missing request for memory in container main of Pod web-0
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get memory resource metric value: failed to get memory utilization: missing request for memory in container main of Pod web-0"]].assert_eq(&all.join("\n"));
}
