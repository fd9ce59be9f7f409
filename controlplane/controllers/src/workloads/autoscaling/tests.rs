use std::sync::{Mutex, PoisonError};

use controlplane_plan::workloads::autoscaling::{Measure, Measured};
use k8s_openapi::api::autoscaling::v2::MetricSpec;
use serde_json::from_value;

use super::*;
use crate::machinery::driver::testing::context_on;

const POD: &str = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/%2A/hits?labelSelector=app%3Dweb";

/// Requests for one metric, and its result, on a server that has these documents.
async fn fetched(metric: &Value, documents: &[(&str, Value)]) -> (Vec<String>, Measured) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (paths, documents) = (
        asked.clone(),
        documents
            .iter()
            .map(|(path, document)| ((*path).to_owned(), document.clone()))
            .collect::<BTreeMap<_, _>>(),
    );
    let context = context_on(Caches::new(), move |_, uri, _| {
        let path = uri.to_string();
        paths.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        match documents.get(&path) {
            Some(document) => (200, document.clone()),
            None => (404, json!("404 page not found")),
        }
    });
    let client = MetricsClient {
        context: &context,
        namespace: "ns",
        selector: "app=web",
    };
    let metric: MetricSpec = from_value(metric.clone()).unwrap();
    let measured = client.measure(&[metric]).await.remove(0);
    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (asked, measured)
}

fn group(versions: &[&str]) -> (&'static str, Value) {
    let versions: Vec<Value> = versions.iter().map(|version| json!({ "version": version })).collect();
    (
        "/apis/custom.metrics.k8s.io",
        json!({ "preferredVersion": versions.first(), "versions": versions }),
    )
}

fn values(values: &[(&str, &str)]) -> Value {
    let items = values.iter().map(|(name, value)| {
        let object = json!({ "kind": "Pod", "name": name });
        json!({ "describedObject": object, "timestamp": "2026-01-01T00:00:00Z", "value": value })
    });
    json!({ "items": items.collect::<Vec<_>>() })
}

#[tokio::test]
async fn custom_metrics_are_asked_for_in_the_preferred_version() {
    let pods = json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": {} } });
    let found = values(&[("web-0", "1500m"), ("web-1", "2")]);
    let (asked, measured) = fetched(&pods, &[group(&["v1beta2", "v1beta1"]), (POD, found)]).await;
    assert_eq!(asked, ["/apis/custom.metrics.k8s.io", POD]);
    let text = format!("{measured:?}");
    assert!(
        text.contains("\"web-0\": Sample { milli: 1500") && text.contains("\"web-1\": Sample { milli: 2000"),
        "{text}"
    );

    let selector = json!({ "matchLabels": { "verb": "GET" } });
    let metric = json!({ "name": "hits", "selector": selector });
    let object = |api_version: &str, kind: &str| {
        let object = json!({ "apiVersion": api_version, "kind": kind, "name": "a/b" });
        json!({ "type": "Object", "object": { "metric": metric, "target": {}, "describedObject": object } })
    };
    let base = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns";
    for (metric, path) in [
        (
            object("networking.k8s.io/v1", "Ingress"),
            "ingresses.networking.k8s.io/a%2Fb/hits",
        ),
        (object("v1", "Service"), "services/a%2Fb/hits"),
        (object("v1", "Namespace"), "metrics/hits"),
    ] {
        let path = format!("{base}/{path}?metricLabelSelector=verb%3DGET");
        let documents = [group(&["v2", "v1beta1"]), (path.as_str(), values(&[("x", "7")]))];
        let (asked, measured) = fetched(&metric, &documents).await;
        assert_eq!(asked.last(), Some(&path));
        assert_eq!(format!("{measured:?}"), "Ok(Value(7000))");
    }
}

#[tokio::test]
async fn an_external_metric_is_the_sum_of_its_series() {
    let metric = json!({ "name": "queue", "selector": { "matchLabels": { "a": "b" } } });
    let metric = json!({ "type": "External", "external": { "metric": metric, "target": {} } });
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue?labelSelector=a%3Db";
    let (asked, measured) = fetched(&metric, &[(path, values(&[("", "3"), ("", "500m")]))]).await;
    assert_eq!(
        (asked, format!("{measured:?}")),
        (vec![path.to_owned()], "Ok(Value(3500))".to_owned())
    );
}

#[tokio::test]
async fn one_container_is_counted_or_all_of_them() {
    let usage = |container: &str, cpu: &str| json!({ "name": container, "usage": { "cpu": cpu } });
    let containers = [usage("main", "100m"), usage("side", "50m")];
    let pod = json!({
        "metadata": { "name": "web-0" }, "timestamp": "2026-01-01T00:00:00Z", "window": "15s", "containers": containers,
    });
    let path = "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Dweb";
    let list = json!({ "items": [pod] });
    let of_container = |container: &str| {
        let source = json!({ "name": "cpu", "container": container, "target": {} });
        json!({ "type": "ContainerResource", "containerResource": source })
    };
    let of_all = json!({ "type": "Resource", "resource": { "name": "cpu", "target": {} } });
    for (metric, expected) in [
        (of_all, Some(150)),
        (of_container("side"), Some(50)),
        (of_container("none"), None),
    ] {
        let (_, measured) = fetched(&metric, &[(path, list.clone())]).await;
        let Ok(Measure::Samples(samples)) = measured else {
            panic!("{metric}");
        };
        assert_eq!(samples.get("web-0").map(|sample| sample.milli), expected, "{metric}");
    }
}

#[tokio::test]
async fn metrics_that_nobody_serves_are_errors_in_upstreams_words() {
    let pods = json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": {} } });
    let of = json!({ "apiVersion": "example.com/v1", "kind": "Foo", "name": "a" });
    let object =
        json!({ "type": "Object", "object": { "metric": { "name": "hits" }, "target": {}, "describedObject": of } });
    let of = json!({ "apiVersion": "v1", "kind": "Service", "name": "a" });
    let service =
        json!({ "type": "Object", "object": { "metric": { "name": "hits" }, "target": {}, "describedObject": of } });
    let external = json!({ "type": "External", "external": { "metric": { "name": "queue" }, "target": {} } });
    let lag = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue";
    let hits = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/services/a/hits";
    let custom = "unable to fetch metrics from custom metrics API";
    for (metric, documents, expected) in [
        (
            &pods,
            vec![],
            format!("{custom}: no custom metrics API (custom.metrics.k8s.io) registered"),
        ),
        (
            &pods,
            vec![group(&["v3"])],
            format!("{custom}: no known available metric versions found"),
        ),
        (
            &pods,
            vec![group(&["v1beta2"]), (POD, values(&[]))],
            "no metrics returned from custom metrics API".to_owned(),
        ),
        (
            &object,
            vec![group(&["v1beta2"])],
            format!(
                "{custom}: unable to map kind Foo.example.com to resource: no matches for kind \"Foo\" in group \"example.com\""
            ),
        ),
        (
            &service,
            vec![group(&["v1beta2"]), (hits, values(&[]))],
            format!("{custom}: the custom metrics API server returned 0 results when we asked for exactly one"),
        ),
        (
            &external,
            vec![],
            "unable to fetch metrics from external metrics API: \
             the server could not find the requested resource (get queue.external.metrics.k8s.io)"
                .to_owned(),
        ),
        (
            &external,
            vec![(lag, values(&[]))],
            "no metrics returned from external metrics API".to_owned(),
        ),
    ] {
        let (_, measured) = fetched(metric, &documents).await;
        assert_eq!(measured.unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn a_target_may_be_of_a_custom_kind() {
    let caches = Caches::new();
    let definition = json!({
        "metadata": { "name": "shops.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Shop", "plural": "shops" },
            "versions": [{ "name": "v1", "served": true, "storage": true }],
        },
        "status": { "conditions": [{ "type": "Established", "status": "True" }] },
    });
    caches.definitions.apply(from_value(definition).unwrap(), false);
    let context = context_on(caches, |_, uri, _| {
        assert_eq!(uri.path(), "/apis/example.com/v1/namespaces/ns/shops/one/scale");
        let scale = json!({ "spec": { "replicas": 2 }, "status": { "replicas": 1, "selector": "app=shop" } });
        (200, scale)
    });
    let target = |version: &str, kind: &str| {
        let spec =
            json!({ "maxReplicas": 3, "scaleTargetRef": { "apiVersion": version, "kind": kind, "name": "one" } });
        from_value(json!({ "metadata": { "name": "a", "namespace": "ns" }, "spec": spec })).unwrap()
    };
    let found = find(&context, &target("example.com/v1alpha1", "Shop")).await;
    let found = found.map(|found| (found.sizes.wanted, found.sizes.existing, found.selector));
    assert_eq!(found, Ok((2, 1, "app=shop".to_owned())));
    let found = find(&context, &target("example.com/v1", "Stall")).await;
    let error = found.err();
    assert_eq!(
        error.as_deref(),
        Some("no matches for kind \"Stall\" in group \"example.com\"")
    );
}

#[test]
fn pods_of_two_autoscalers_have_none() {
    let caches = Caches::new();
    let mut selectors = Selectors::default();
    let labeled =
        |labels: Value| -> Pod { from_value(json!({ "metadata": { "name": "p", "labels": labels } })).unwrap() };
    let (web, db) = (
        labeled(json!({ "app": "web", "tier": "front" })),
        labeled(json!({ "app": "db" })),
    );
    let mut rivals = |namespace: &str, name: &str, selector: &str, pod: &Pod| {
        let spec = json!({ "maxReplicas": 3, "scaleTargetRef": { "kind": "Deployment", "name": "one" } });
        let autoscaler = json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec });
        caches.autoscalers.apply(from_value(autoscaler).unwrap(), false);
        let selector = LabelSelector::parse(selector).unwrap();
        selectors.rivals(&caches, Key::new(namespace, name), selector, &[pod])
    };
    assert!(rivals("ns", "a", "app=web", &web).is_empty());
    assert!(rivals("other", "a", "app=web", &web).is_empty());
    assert!(rivals("ns", "b", "app=db", &db).is_empty());
    assert_eq!(rivals("ns", "c", "tier=front", &web), ["ns/a", "ns/c"]);
    // One that is gone has no pods.
    let gone = caches.autoscalers.get(&Key::new("ns", "a")).unwrap();
    caches.autoscalers.apply((*gone).clone(), true);
    assert!(rivals("ns", "c", "tier=front", &web).is_empty());
}
