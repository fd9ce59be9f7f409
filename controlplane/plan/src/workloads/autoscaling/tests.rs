use expect_test::expect;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Measure, Measured, Memory, Next, Sample, Samples, Scale, Unfit, Unknown, begin};
use crate::pod::Pod;
use crate::world::now;

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
/// `pending`, `gone`, `done`.
fn pods(uses: &[&str]) -> (Vec<Pod>, Samples) {
    let mut samples = Samples::new();
    let pods = uses.iter().enumerate().map(|(index, used)| {
        let name = format!("web-{index}");
        let ready = if *used == "unready" { "False" } else { "True" };
        let phase = match *used {
            "pending" => "Pending",
            "done" => "Succeeded",
            _ => "Running",
        };
        let deleted = (*used == "gone").then_some("2026-01-01T00:59:00Z");
        if !["-", "done"].contains(used) {
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
    let scale = Ok(Scale {
        wanted: current,
        existing: current,
    });
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
        Ok(Measure::Samples(samples)),
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
    let tolerant = json!({ "behavior": { "scaleUp": { "tolerance": "300m" } } });
    let cases: [(&Value, &[&str], String); 15] = [
        (&none, &["100"], format!("2 {MORE} DesiredWithinRange")),
        (&none, &["50", "50"], SAME.to_owned()),
        (&none, &["54", "54"], SAME.to_owned()),
        (&tolerant, &["64", "64"], SAME.to_owned()),
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
        // A finished pod has no part in it.
        (
            &at_once,
            &["10", "done"],
            "1 (All metrics below target) ValidMetricFound DesiredWithinRange".to_owned(),
        ),
    ];
    for (more, uses, expected) in cases {
        assert_eq!(sized(more, uses), expected, "{uses:?}");
    }
}

#[test]
fn a_runtimes_overhead_is_no_request() {
    let (mut all, samples) = pods(&["100"]);
    let started = "2026-01-01T00:00:00Z";
    all[0] = serde_json::from_value(json!({
        "metadata": { "name": "web-0" },
        "spec": { "containers": [{ "name": "main" }], "resources": { "requests": { "cpu": "100m" } },
            "overhead": { "cpu": "100m" } },
        "status": { "phase": "Running", "startTime": started, "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": started },
        ] },
    }))
    .unwrap();
    let found = round(
        &autoscaler(&json!({})),
        1,
        Ok(Measure::Samples(samples)),
        &all,
        &mut Memory::default(),
        now(),
    );
    expect!["2 (cpu resource utilization (percentage of request) above target) ValidMetricFound DesiredWithinRange"]
        .assert_eq(&found);
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
        Ok(Measure::Samples(Samples::new())),
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
    let first = round(&autoscaler, 1, Ok(Measure::Samples(samples)), &all, &mut memory, now());
    let (all, samples) = pods(&["400", "400"]);
    let second = round(
        &autoscaler,
        2,
        Ok(Measure::Samples(samples.clone())),
        &all,
        &mut memory,
        now() + SignedDuration::from_secs(15),
    );
    let third = round(
        &autoscaler,
        2,
        Ok(Measure::Samples(samples)),
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
fn policies_of_any_percentage_shrink_any_size() {
    let freely = json!({ "maxReplicas": 500, "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0, "policies": [
        { "type": "Percent", "value": i32::MAX, "periodSeconds": 15 },
    ] } } });
    expect!["40 (All metrics below target) ValidMetricFound DesiredWithinRange"]
        .assert_eq(&sized(&freely, &["10"; 200]));
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
            round(&autoscaler, 3, Ok(Measure::Samples(samples)), &all, &mut memory, at)
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

/// An autoscaler with only this metric, whose target has pods with the given uses.
fn told(metric: &Value, measured: Measured, uses: &[&str]) -> (String, Value) {
    let autoscaler = autoscaler(&json!({ "metrics": [metric] }));
    let (pods, _) = pods(uses);
    let mut memory = Memory::default();
    let size = i32::try_from(uses.len()).unwrap();
    let scale = Ok(Scale {
        wanted: size,
        existing: size,
    });
    let Next::Measure(round) = begin(&autoscaler, scale, &mut memory, now()) else {
        panic!("it is to be measured");
    };
    let mut round = round.measured(vec![measured], &pods.iter().collect::<Vec<_>>(), &mut memory);
    let size = round.rescale.as_ref().map(|(size, why)| format!("{size} ({why})"));
    round.rescaled(Ok(()), &mut memory);
    let notes = round.notes.iter().filter(|note| note.reason != "SuccessfulRescale");
    let notes = notes.map(|note| format!("{}: {}", note.reason, note.message));
    let lines: Vec<String> = size.into_iter().chain(notes).collect();
    let mut current = json!(round.status.current_metrics);
    (lines.join("\n"), current[0].take())
}

fn pods_metric() -> Value {
    json!({ "type": "Pods", "pods": {
        "metric": { "name": "hits" }, "target": { "type": "AverageValue", "averageValue": "10" },
    } })
}

fn object_metric(target: &Value) -> Value {
    let object = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "i" });
    json!({ "type": "Object", "object": { "describedObject": object, "metric": { "name": "hits" }, "target": target } })
}

fn external_metric(target: &Value) -> Value {
    let metric = json!({ "name": "queue", "selector": { "matchLabels": { "a": "b" } } });
    json!({ "type": "External", "external": { "metric": metric, "target": target } })
}

/// Checks the new size with its reason, and the current value in the status.
fn check(metric: &Value, measured: Measured, uses: &[&str], expected: &str, current: &str) {
    let (lines, status) = told(metric, measured, uses);
    assert_eq!(lines, expected, "{metric}");
    let kind = metric["type"].as_str().unwrap().to_lowercase();
    assert_eq!(status["type"], metric["type"]);
    let shown = &status[&kind]["current"];
    let shown = shown.get("value").or(shown.get("averageValue"));
    assert_eq!(shown, Some(&json!(current)), "{metric}");
    assert_eq!(status[&kind]["metric"], metric[&kind]["metric"]);
}

#[test]
fn replicas_follow_a_custom_metric_of_the_pods() {
    let samples = |milli: i64| {
        let sample = Sample {
            milli,
            at: now(),
            window: SignedDuration::from_mins(1),
        };
        let all = ["web-0", "web-1"].map(|name| (name.to_owned(), sample));
        Ok(Measure::Samples(all.into()))
    };
    let (metric, more) = (pods_metric(), "3 (pods metric hits above target)");
    check(&metric, samples(15_000), &["50", "50"], more, "15");
    // Readiness does not matter: it is no measure of the processor.
    check(&metric, samples(15_000), &["unready", "50"], more, "15");
    check(&metric, samples(10_500), &["50", "50"], "", "10500m");
}

#[test]
fn replicas_follow_one_container() {
    let metric = |container: &str, target: &Value| {
        let source = json!({ "name": "cpu", "container": container, "target": target });
        json!({ "type": "ContainerResource", "containerResource": source })
    };
    let share = json!({ "type": "Utilization", "averageUtilization": 50 });
    let average = json!({ "type": "AverageValue", "averageValue": "50m" });
    let uses = ["100", "100"];
    let samples = || Ok(Measure::Samples(pods(&uses).1));
    let (lines, status) = told(&metric("main", &share), samples(), &uses);
    assert_eq!(
        lines,
        "4 (cpu container resource utilization (percentage of request) above target)"
    );
    let current = json!({ "averageUtilization": 100, "averageValue": "100m" });
    let container = json!({ "name": "cpu", "container": "main", "current": current });
    assert_eq!(
        status,
        json!({ "type": "ContainerResource", "containerResource": container })
    );
    assert_eq!(
        told(&metric("main", &average), samples(), &uses).0,
        "4 (cpu resource above target)"
    );
    expect![[r"
        FailedGetContainerResourceMetric: failed to get cpu utilization: container side not found in Pod web-0
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get side container metric value: failed to get cpu utilization: container side not found in Pod web-0"]]
    .assert_eq(&told(&metric("side", &share), samples(), &uses).0);
}

#[test]
fn replicas_follow_a_single_value() {
    let total = json!({ "type": "Value", "value": "100" });
    let share = json!({ "type": "AverageValue", "averageValue": "10" });
    let (objects, object) = (object_metric(&total), object_metric(&share));
    let (externals, external) = (external_metric(&total), external_metric(&share));
    let queue = "(external metric queue(&LabelSelector{MatchLabels:map[string]string{a: b,},\
                 MatchExpressions:[]LabelSelectorRequirement{},}) above target)";
    let (three, four) = (format!("3 {queue}"), format!("4 {queue}"));
    let ingress = "(Ingress metric hits above target)";
    let (two, one): (&[&str], &[&str]) = (&["50", "50"], &["unready", "50"]);
    for (metric, value, uses, expected, current) in [
        (&objects, 150, two, format!("3 {ingress}"), "150"),
        (&objects, 105, two, String::new(), "105"),
        // Only ready pods carry the load.
        (&objects, 400, one, format!("4 {ingress}"), "400"),
        (
            &object,
            35,
            two,
            "4 (external metric hits(nil) above target)".to_owned(),
            "17500m",
        ),
        (&externals, 150, two, three, "150"),
        (&external, 35, two, four, "17500m"),
        (&external, 21, two, String::new(), "10500m"),
    ] {
        check(metric, Ok(Measure::Value(value * 1000)), uses, &expected, current);
    }
}

#[test]
fn a_target_with_an_unfit_selector_is_not_scaled() {
    let autoscaler = autoscaler(&json!({}));
    let refused = |unfit: &Unfit<'_>| {
        let scale = Ok(Scale { wanted: 1, existing: 1 });
        let Next::Measure(round) = begin(&autoscaler, scale, &mut Memory::default(), now()) else {
            panic!("it is to be measured");
        };
        let round = round.unselected(unfit);
        let notes = round
            .notes
            .iter()
            .map(|note| format!("{}: {}", note.reason, note.message));
        let active = round
            .status
            .conditions
            .iter()
            .flatten()
            .find(|own| own.type_ == "ScalingActive");
        let active = active.map(|own| format!("{:?} {:?}", own.reason, own.message));
        notes.chain(active).collect::<Vec<_>>().join("\n")
    };
    let all = vec!["default/a".to_owned(), "default/web".to_owned()];
    expect![[r#"
        SelectorRequired: selector is required
        FailedComputeMetricsReplicas: selector is required
        Some("InvalidSelector") Some("the HPA target's scale is missing a selector")
        InvalidSelector: couldn't convert selector into a corresponding internal selector object: found ')'
        FailedComputeMetricsReplicas: couldn't convert selector into a corresponding internal selector object: found ')'
        Some("InvalidSelector") Some("couldn't convert selector into a corresponding internal selector object: found ')'")
        AmbiguousSelector: pods by selector app=web are controlled by multiple HPAs: [default/a default/web]
        FailedComputeMetricsReplicas: pods by selector app=web are controlled by multiple HPAs: [default/a default/web]
        Some("AmbiguousSelector") Some("pods by selector app=web are controlled by multiple HPAs: [default/a default/web]")"#]].assert_eq(
        &[
            Unfit::Missing,
            Unfit::Invalid("found ')'".to_owned()),
            Unfit::Ambiguous("app=web", all),
        ]
        .map(|unfit| refused(&unfit))
        .join("\n"),
    );
}

#[test]
fn what_cannot_be_measured_is_told() {
    let fetch = |why: &str| Err(Unknown::Fetch(why.to_owned()));
    let resource = |name: &str| {
        json!({ "type": "Resource", "resource": {
            "name": name, "target": { "type": "Utilization", "averageUtilization": 50 },
        } })
    };
    let custom =
        "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    let external = "unable to fetch metrics from external metrics API: \
                    the server could not find the requested resource (get queue.external.metrics.k8s.io)";
    let total = json!({ "type": "Value", "value": "1" });
    let share = json!({ "type": "AverageValue", "averageValue": "1" });
    let (_, samples) = pods(&["50"]);
    let all = [
        (resource("cpu"), fetch("no metrics returned from resource metrics API")),
        (external_metric(&total), fetch(external)),
        (external_metric(&share), fetch(external)),
        (pods_metric(), fetch(custom)),
        (object_metric(&total), fetch(custom)),
        (object_metric(&share), fetch(custom)),
        (resource("memory"), Ok(Measure::Samples(samples))),
    ];
    let lines = all.map(|(metric, measured)| told(&metric, measured, &["50"]).0);
    expect![[r"
        FailedGetResourceMetric: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: no metrics returned from resource metrics API
        FailedGetExternalMetric: unable to get external metric default/queue/&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get queue external metric value: failed to get external metric queue: unable to get external metric default/queue/&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)
        FailedGetExternalMetric: unable to get external metric default/queue/&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get queue external metric value: failed to get queue external metric: unable to get external metric default/queue/&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)
        FailedGetPodsMetric: unable to get metric hits: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get pods metric value: unable to get metric hits: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered
        FailedGetObjectMetric: unable to get metric hits: Ingress on default i/unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get object metric value: unable to get metric hits: Ingress on default i/unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered
        FailedGetObjectMetric: unable to get metric hits: Ingress on default i/unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get object metric value: failed to get hits object metric: unable to get metric hits: Ingress on default i/unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered
        FailedGetResourceMetric: failed to get memory utilization: missing request for memory in container main of Pod web-0
        FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get memory resource metric value: failed to get memory utilization: missing request for memory in container main of Pod web-0"]].assert_eq(&lines.join("\n"));
}
