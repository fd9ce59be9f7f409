use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, from_value, json};

use super::*;
use crate::machinery::driver::testing::context_on;

fn pod(name: &str, revision: &str, nominated: &str) -> Pod {
    from_value(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": revision },
        "spec": { "containers": [] },
        "status": { "nominatedNodeName": nominated },
    }))
    .unwrap()
}

#[tokio::test]
async fn what_an_earlier_scheduler_promised_holds() {
    let caches = Caches::new();
    let scheduler = Scheduler::listen(&caches);
    caches.pods.replace(vec![pod("a", "1", "n1"), pod("b", "2", "")], 2, 1);
    let promised = |uid| scheduler.lock().cache.promised_node(uid).map(str::to_owned);
    assert_eq!((promised("a").as_deref(), promised("b")), (Some("n1"), None));
    // A later status only repeats a nomination that this scheduler already dropped.
    scheduler.lock().cache.disappoint("a");
    caches.pods.apply(pod("a", "3", "n1"), false);
    assert_eq!(promised("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_placed_pod_wakes_those_that_follow_pods() {
    let caches = Caches::new();
    let scheduler = Scheduler::listen(&caches);
    let far = json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" });
    let mut soft = far.clone();
    soft["whenUnsatisfiable"] = "ScheduleAnyway".into();
    let near = json!({ "topologyKey": "zone", "labelSelector": {} });
    let near = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [near] } });
    for (name, spec) in [
        ("big", json!({ "containers": [] })),
        ("far", json!({ "containers": [], "topologySpreadConstraints": [far] })),
        ("near", json!({ "containers": [], "affinity": near })),
        ("soft", json!({ "containers": [], "topologySpreadConstraints": [soft] })),
    ] {
        let pod: Pod = from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        scheduler.lock().queue.refuse(Key::new("ns", name), &pod, FORGOTTEN);
    }
    let mut placed = pod("db", "1", "");
    placed.node = "n1".into();
    caches.pods.replace(vec![placed], 1, 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    let woken: Vec<Key> = std::iter::from_fn(|| scheduler.lock().queue.take()).collect();
    assert_eq!(woken, [Key::new("ns", "far"), Key::new("ns", "near")]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_wakes_those_that_are_spread() {
    let caches = Caches::new();
    let scheduler = Scheduler::listen(&caches);
    let node: Node = from_value(json!({ "metadata": { "name": "n1", "resourceVersion": "1" } })).unwrap();
    caches.nodes.replace(vec![node], 1, 1);
    let spread = json!([{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" }]);
    for (name, spec) in [
        ("big", json!({ "containers": [] })),
        ("far", json!({ "containers": [], "topologySpreadConstraints": spread })),
    ] {
        let pod: Pod = from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        scheduler.lock().queue.refuse(Key::new("ns", name), &pod, FORGOTTEN);
    }
    caches.nodes.replace(Vec::new(), 2, 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    let woken: Vec<Key> = std::iter::from_fn(|| scheduler.lock().queue.take()).collect();
    assert_eq!(woken, [Key::new("ns", "far")]);
}

#[tokio::test(start_paused = true)]
async fn a_relabeled_or_smaller_pod_wakes_those_that_wait() {
    let caches = Caches::new();
    let scheduler = Scheduler::listen(&caches);
    let bound = |revision: &str, app: &str, cpu: &str| -> Pod {
        let pod = json!({
            "metadata": { "name": "db", "namespace": "ns", "uid": "db", "resourceVersion": revision, "labels": { "app": app } },
            "spec": { "nodeName": "n1", "containers": [{ "name": "a", "resources": { "requests": { "cpu": cpu } } }] },
        });
        from_value(pod).unwrap()
    };
    caches.pods.replace(vec![bound("1", "db", "2")], 1, 1);
    for (revision, app, cpu, wakes) in [
        ("2", "db", "2", false),
        ("3", "web", "2", true),
        ("4", "web", "1", true),
    ] {
        let waiting = pod("far", "9", "");
        let key = Key::new("ns", "far");
        scheduler.lock().queue.refuse(key.clone(), &waiting, FORGOTTEN);
        caches.pods.apply(bound(revision, app, cpu), false);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(scheduler.lock().queue.take().is_some(), wakes, "{revision}");
        scheduler.lock().queue.remove(&key);
    }
}

/// A scheduler with a node, and a claim in a class that waits for its first consumer.
fn with_claim() -> (Caches, Arc<Scheduler>) {
    let caches = Caches::new();
    let scheduler = Scheduler::listen(&caches);
    let node = json!({ "metadata": { "name": "n1" }, "status": { "allocatable": { "cpu": "1", "pods": "10" } } });
    caches.nodes.replace(vec![from_value(node).unwrap()], 1, 1);
    let class = json!({
        "metadata": { "name": "local" }, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer",
    });
    caches.storage_classes.replace(vec![from_value(class).unwrap()], 1, 1);
    let claim = json!({
        "metadata": { "name": "data", "namespace": "ns", "uid": "u" },
        "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"] },
    });
    caches.claims.replace(vec![from_value(claim).unwrap()], 1, 1);
    (caches, scheduler)
}

fn wanting(name: &str, priority: i32, volumes: &Value) -> Pod {
    let containers = json!([{ "name": "a", "resources": { "requests": { "cpu": "1" } } }]);
    from_value(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1" },
        "spec": { "priority": priority, "volumes": volumes, "containers": containers },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_gone_or_given_away_ends_the_wait_for_it() {
    let volume = |revision: &str, claim: Value| -> PersistentVolume {
        from_value(json!({
            "metadata": { "name": "v", "uid": "v", "resourceVersion": revision },
            "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": "1Gi" }, "claimRef": claim },
            "status": { "phase": "Available" },
        }))
        .unwrap()
    };
    let assigned = json!({ "namespace": "ns", "name": "data", "uid": "u" });
    for (last, because) in [
        (vec![volume("3", Value::Null)], "ClaimRef got reset for pv \"v\""),
        (Vec::new(), "persistentvolume \"v\" is gone"),
    ] {
        let (caches, scheduler) = with_claim();
        caches.volumes.replace(vec![volume("1", Value::Null)], 1, 1);
        let data = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
        caches.pods.replace(vec![wanting("a", 0, &data)], 1, 1);
        let context = context_on(caches, |_, _, _| (200, json!({})));
        let key = Key::new("ns", "a");
        assert_eq!(scheduler.lock().queue.take().as_ref(), Some(&key));
        let mut binding = scheduler.decide(&context, &key).unwrap();
        for volumes in [None, Some(vec![volume("2", assigned.clone())])] {
            if let Some(volumes) = volumes {
                context.caches.volumes.replace(volumes, 2, 1);
            }
            let waited = tokio::time::timeout(Duration::from_secs(1), &mut binding).await;
            assert!(waited.is_err(), "its claim is not bound");
        }
        context.caches.volumes.replace(last, 3, 1);
        let result = binding.await.unwrap().result;
        assert_eq!(result.err().map(|reason| reason.to_string()).as_deref(), Some(because));
    }
}

#[tokio::test(start_paused = true)]
async fn a_victim_that_waits_for_its_claims_goes_back_to_the_queue() {
    let (caches, scheduler) = with_claim();
    let data = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    caches.pods.replace(vec![wanting("low", 0, &data)], 1, 1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let context = context_on(caches, move |method, uri, _| {
        seen.lock().unwrap().push(format!("{method} {}", uri.path()));
        (200, json!({}))
    });
    let (low, high) = (Key::new("ns", "low"), Key::new("ns", "high"));
    assert_eq!(scheduler.lock().queue.take().as_ref(), Some(&low));
    let mut binding = scheduler.decide(&context, &low).unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(1), &mut binding).await;
    assert!(waited.is_err(), "its claim is not bound");

    context.caches.pods.apply(wanting("high", 9, &json!([])), false);
    assert_eq!(scheduler.lock().queue.take().as_ref(), Some(&high));
    let preemption = scheduler.decide(&context, &high).unwrap();
    assert!(preemption.await.is_none());
    scheduler.settle(&context, binding.await.unwrap());
    let state = scheduler.lock();
    assert!(state.cache.find("low").is_none() && state.prebinds.is_empty());
    assert_eq!(
        (state.cache.promised_node("high"), state.queue.pending().backoff),
        (Some("n1"), 2)
    );
    assert_eq!(
        *asked.lock().unwrap(),
        [
            "PATCH /api/v1/namespaces/ns/persistentvolumeclaims/data",
            "PATCH /api/v1/namespaces/ns/pods/high/status"
        ]
    );
}

#[test]
fn why_a_pod_has_no_place_is_told_of_the_pod_as_it_is_now() {
    let waiting = |generation: i64| -> Pod {
        from_value(json!({
            "metadata": { "name": "a", "namespace": "ns", "uid": "a", "generation": generation },
            "spec": { "containers": [] },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "no room", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 }] },
        }))
        .unwrap()
    };
    assert!(refusal::says(&waiting(1), "Unschedulable", "no room"));
    assert!(!refusal::says(&waiting(1), "Unschedulable", "no node"));
    assert!(!refusal::says(&waiting(2), "Unschedulable", "no room"));
    let now = "2026-02-02T00:00:00Z".parse().map(Time).unwrap();
    let told = refusal::condition(&waiting(2), "Unschedulable", "no room", now);
    assert_eq!(
        (&told["observedGeneration"], &told["lastTransitionTime"]),
        (&json!(2), &json!("2026-01-01T00:00:00Z"))
    );
}
