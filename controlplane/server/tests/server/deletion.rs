//! Deletion: grace periods, finalizers, preconditions, namespaces, collections, eviction.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::support::{Api, START, config_map, deployment, pod};
use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn bind(api: &Api, name: &str, node: &str) -> crate::support::Answer {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    api.post(&format!("{PODS}/{name}/binding"), &binding).await
}

#[tokio::test]
async fn what_has_nothing_to_wait_for_goes_at_once() {
    let api = Api::start().await;
    let created = api.post(CONFIG_MAPS, &config_map("a")).await.json();
    let answer = api.delete(&format!("{CONFIG_MAPS}/a"), "").await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        answer.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": "a", "kind": "configmaps", "uid": created["metadata"]["uid"]}})
    );
    assert_eq!(api.delete(&format!("{CONFIG_MAPS}/a"), "").await.code, 404);
}

#[tokio::test]
async fn some_kinds_answer_the_object_that_is_gone() {
    let api = Api::start().await;
    let path = "/apis/storage.k8s.io/v1/storageclasses";
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "slow"},
        "provisioner": "example.com/slow"});
    api.post(path, &class).await;
    let answer = api.delete(&format!("{path}/slow"), "").await;
    assert_eq!(
        (answer.code.as_u16(), &answer.json()["provisioner"]),
        (200, &json!("example.com/slow"))
    );
    let described = api.get("/openapi/v3/apis/storage.k8s.io/v1").await.json();
    let answers =
        &described["paths"][format!("{path}/{{name}}")]["delete"]["responses"]["200"]["content"]["application/json"];
    assert_eq!(
        answers["schema"]["$ref"],
        "#/components/schemas/io.k8s.api.storage.v1.StorageClass"
    );
}

/// Two old kinds orphan their dependents by default, as before the garbage collector existed.
#[tokio::test]
async fn jobs_and_replication_controllers_orphan_their_pods_by_default() {
    let api = Api::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"template": template}});
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    for (options, finalizers) in [
        ("", json!(["orphan"])),
        (r#"{"propagationPolicy":"Foreground"}"#, json!(["foregroundDeletion"])),
        (r#"{"propagationPolicy":"Background"}"#, Value::Null),
        (r#"{"orphanDependents":false}"#, Value::Null),
    ] {
        api.post(jobs, &job).await;
        let path = format!("{jobs}/a");
        let answer = api.delete(&path, options).await;
        let warned = answer
            .warnings()
            .iter()
            .any(|warning| warning.contains("child pods are preserved by default"));
        assert_eq!(warned, options.is_empty(), "{options}");
        assert_eq!(
            api.get(&path).await.json()["metadata"]["finalizers"],
            finalizers,
            "{options}"
        );
        let free = json!({"metadata": {"finalizers": null}});
        api.patch(&path, "merge-patch+json", &free).await;
    }
}

#[tokio::test]
async fn a_pod_on_a_node_gets_its_grace_period() {
    let api = Api::start_at_rest().await;
    api.post(PODS, &pod("a")).await;
    let promised = json!({"status": {"nominatedNodeName": "n1"}});
    let promised = api
        .patch(&format!("{PODS}/a/status"), "merge-patch+json", &promised)
        .await;
    assert_eq!(promised.json()["status"]["nominatedNodeName"], "n1");
    let answer = bind(&api, "a", "n1").await;
    assert_eq!(
        (answer.code.as_u16(), &answer.json()["status"]),
        (201, &json!("Success"))
    );
    let again = bind(&api, "a", "n2").await;
    assert_eq!(again.code, 409);
    assert_eq!(
        again.message(),
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\""
    );
    let path = format!("{PODS}/a");
    let bound = api.get(&path).await.json();
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(bound["status"]["nominatedNodeName"], Value::Null);
    let marked = api.delete(&path, "").await.json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-02T03:04:35Z");
    let generation = |object: &Value| object["metadata"]["generation"].as_i64();
    assert!(generation(&marked) > generation(&bound));
    let longer = api.delete(&path, r#"{"gracePeriodSeconds":60}"#).await.json();
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = api.delete(&path, r#"{"gracePeriodSeconds":5}"#).await.json();
    assert_eq!(shorter["metadata"]["deletionTimestamp"], "2026-01-02T03:04:10Z");
    let late = bind(&api, "a", "n1").await;
    assert_eq!(
        late.message(),
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is being deleted, cannot be assigned to a host"
    );
    assert_eq!(api.delete(&path, r#"{"gracePeriodSeconds":0}"#).await.code, 200);
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn a_shorter_grace_period_does_not_end_in_the_past() {
    let at = Arc::new(AtomicI64::new(START.parse::<Timestamp>().unwrap().as_second()));
    let clock = Arc::clone(&at);
    let api = Api::start_with(|mut options| {
        options.clock = Arc::new(move || Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap());
        options
    })
    .await;
    api.post(PODS, &pod("a")).await;
    bind(&api, "a", "n1").await;
    let path = format!("{PODS}/a");
    api.delete(&path, "").await;
    at.fetch_add(20, Ordering::Relaxed);
    let shorter = api.delete(&path, r#"{"gracePeriodSeconds":5}"#).await.json();
    assert_eq!(
        (
            &shorter["metadata"]["deletionTimestamp"],
            &shorter["metadata"]["deletionGracePeriodSeconds"]
        ),
        (&json!("2026-01-02T03:04:25Z"), &json!(1))
    );
}

#[tokio::test]
async fn a_pod_on_no_node_goes_at_once() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    assert_eq!(api.delete(&format!("{PODS}/a"), "").await.json()["kind"], "Pod");
    assert_eq!(api.get(&format!("{PODS}/a")).await.code, 404);
}

#[tokio::test]
async fn finalizers_hold_an_object() {
    let api = Api::start_at_rest().await;
    let mut map = config_map("a");
    map["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(CONFIG_MAPS, &map).await;
    let path = format!("{CONFIG_MAPS}/a");
    let marked = api.delete(&path, "").await.json();
    assert_eq!(marked["metadata"]["deletionTimestamp"], START);
    for query in ["", "?dryRun=All"] {
        let again = api.post(&format!("{CONFIG_MAPS}{query}"), &config_map("a")).await;
        assert_eq!(
            (again.code.as_u16(), again.message().as_str()),
            (409, "object is being deleted: configmaps \"a\" already exists")
        );
    }
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    let answer = api.patch(&path, "merge-patch+json", &more).await;
    assert_eq!(answer.code, 422, "{}", answer.text());
    let none = json!({"metadata": {"finalizers": null}});
    assert_eq!(api.patch(&path, "merge-patch+json", &none).await.code, 200);
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn propagation_is_said_by_finalizers() {
    let api = Api::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        let name = policy.to_lowercase();
        api.post(path, &deployment(&name)).await;
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}).to_string();
        let answer = api.delete(&format!("{path}/{name}"), &options).await.json();
        assert_eq!(answer["metadata"]["finalizers"], json!([finalizer]));
    }
    let both = r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#;
    assert_eq!(api.delete(&format!("{path}/orphan"), both).await.code, 422);
    let unknown = api.delete(&format!("{path}/orphan?propagationPolicy=Later"), "").await;
    assert_eq!(unknown.code, 422);
    let background = api
        .delete(&format!("{path}/orphan"), r#"{"propagationPolicy":"Background"}"#)
        .await;
    assert_eq!(background.json()["status"], "Success", "{}", background.text());
}

/// Events of `v1` are validated as little as ever, those of `events.k8s.io/v1` in full.
#[tokio::test]
async fn events_are_checked_by_their_form() {
    let api = Api::start().await;
    let old = |namespace: &str, event: Value| (format!("/api/v1/namespaces/{namespace}/events"), event);
    let new = |event: Value| ("/apis/events.k8s.io/v1/namespaces/default/events".to_owned(), event);
    let time = "2026-01-02T03:04:05.000000Z";
    let mismatch = "involvedObject.namespace: Invalid value: \"\": does not match event.namespace";
    let whole = json!({"metadata": {"name": "e"}, "eventTime": time, "reportingController": "a.b/c", "reportingInstance": "i",
        "action": "A", "reason": "R", "type": "Normal", "regarding": {"kind": "Pod", "namespace": "elsewhere"}});
    let changed = |member: &str, value: Value| {
        let mut event = whole.clone();
        event[member] = value;
        event
    };
    for ((path, event), expected) in [
        (old("default", json!({"metadata": {"name": "a"}})), ""),
        (old("kube-system", json!({"metadata": {"name": "a"}})), mismatch),
        (
            old(
                "default",
                json!({"metadata": {"name": "b"}, "eventTime": time, "reportingComponent": "c",
                "reportingInstance": "i", "reason": "R"}),
            ),
            "action: Required value",
        ),
        (new(whole.clone()), ""),
        (
            new(changed("reason", "r".repeat(129).into())),
            "reason: Invalid value: \"\": can have at most 128 characters",
        ),
        (
            new(changed("type", "Foo".into())),
            "type: Invalid value: \"\": has invalid value: Foo",
        ),
        (
            new(changed("deprecatedCount", 3.into())),
            "count: Invalid value: \"\": needs to be unset",
        ),
        (
            new(changed("series", json!({"count": 1, "lastObservedTime": time}))),
            "series.count: Invalid value: \"\": should be at least 2",
        ),
    ] {
        let answer = api.post(&path, &event).await;
        if expected.is_empty() {
            assert_eq!(answer.code, 201, "{}", answer.message());
        } else {
            assert!(
                answer.message().ends_with(&format!("is invalid: {expected}")),
                "{}",
                answer.message()
            );
        }
    }
    let path = "/apis/events.k8s.io/v1/namespaces/default/events/e";
    let series = json!({"series": {"count": 2, "lastObservedTime": time}});
    assert_eq!(api.patch(path, "merge-patch+json", &series).await.code, 200);
    let answer = api.patch(path, "merge-patch+json", &json!({"note": "other"})).await;
    assert!(
        answer
            .message()
            .ends_with("message: Invalid value: \"other\": field is immutable"),
        "{}",
        answer.message()
    );
}

#[tokio::test]
async fn an_event_goes_at_once_however_it_is_asked() {
    let api = Api::start().await;
    let events = "/api/v1/namespaces/default/events";
    for propagation in ["Foreground", "Orphan"] {
        let involved = json!({"kind": "Pod", "namespace": "default", "name": "a"});
        let event = json!({"metadata": {"name": "e"}, "involvedObject": involved, "reason": "R"});
        assert_eq!(api.post(events, &event).await.code, 201);
        let options = json!({"propagationPolicy": propagation}).to_string();
        let path = format!("{events}/e");
        assert_eq!(api.delete(&path, &options).await.code, 200);
        assert_eq!(api.get(&path).await.code, 404);
    }
}

#[tokio::test]
async fn preconditions_are_checked() {
    let api = Api::start().await;
    let created = api.post(CONFIG_MAPS, &config_map("a")).await.json();
    let path = format!("{CONFIG_MAPS}/a");
    let uid = created["metadata"]["uid"].as_str().unwrap();
    let answer = api.delete(&path, r#"{"preconditions":{"uid":"x"}}"#).await;
    assert_eq!(answer.code, 409);
    assert_eq!(
        answer.message(),
        format!(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (x) does not match the UID in \
             record ({uid}). The object might have been deleted and then recreated"
        )
    );
    assert_eq!(
        api.delete(&path, r#"{"preconditions":{"resourceVersion":"1"}}"#)
            .await
            .code,
        409
    );
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let right = json!({"preconditions": {"uid": uid, "resourceVersion": version}}).to_string();
    assert_eq!(api.delete(&path, &right).await.code, 200);
}

#[tokio::test]
async fn a_namespace_ends_with_its_finalizers() {
    let api = Api::start().await;
    let answer = api.delete("/api/v1/namespaces/default", "").await;
    assert_eq!(answer.code, 403);
    assert_eq!(
        answer.message(),
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
    let created = api
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}}))
        .await
        .json();
    assert_eq!(created["spec"]["finalizers"], json!(["kubernetes"]), "{created}");
    assert_eq!(created["metadata"]["labels"]["kubernetes.io/metadata.name"], "a");
    let marked = api.delete("/api/v1/namespaces/a", "").await.json();
    assert_eq!(marked["status"]["phase"], "Terminating");
    let refused = api.post("/api/v1/namespaces/a/configmaps", &config_map("x")).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "configmaps \"x\" is forbidden: unable to create new content in namespace a because it is being terminated"
    );
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    assert_eq!(api.delete("/api/v1/namespaces/a", "").await.code, 200);
    let mut finalized = api.get("/api/v1/namespaces/a").await.json();
    finalized["spec"]["finalizers"] = json!([]);
    assert_eq!(api.put("/api/v1/namespaces/a", &finalized).await.code, 200);
    assert_eq!(
        api.get("/api/v1/namespaces/a").await.code,
        200,
        "only the subresource removes them"
    );
    finalized["metadata"]["resourceVersion"] = Value::Null;
    let mut labelled = finalized.clone();
    labelled["spec"]["finalizers"] = json!(["kubernetes"]);
    labelled["metadata"]["labels"]["a"] = json!("b");
    labelled["status"]["phase"] = json!("Active");
    let labelled = api.put("/api/v1/namespaces/a/finalize", &labelled).await.json();
    assert_eq!(labelled["metadata"]["labels"]["a"], "b");
    assert_eq!(labelled["status"]["phase"], "Terminating");
    assert_eq!(api.put("/api/v1/namespaces/a/finalize", &finalized).await.code, 200);
    assert_eq!(api.get("/api/v1/namespaces/a").await.code, 404);
}

#[tokio::test]
async fn a_collection_goes_by_selector() {
    let api = Api::start().await;
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut map = config_map(name);
        map["metadata"]["labels"] = json!({"app": app});
        api.post(CONFIG_MAPS, &map).await;
    }
    let answer = api
        .delete(&format!("{CONFIG_MAPS}?labelSelector=app%3Dx"), "")
        .await
        .json();
    assert_eq!(
        (&answer["kind"], answer["items"].as_array().unwrap().len()),
        (&json!("ConfigMapList"), 2)
    );
    let left = api.get(CONFIG_MAPS).await.json();
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
    let everywhere = api.request(Method::DELETE, "/api/v1/configmaps", &[], "").await;
    assert_eq!(everywhere.code, 405);
}

#[tokio::test]
async fn an_eviction_is_a_deletion_with_a_reason() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    bind(&api, "a", "n1").await;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
        "deleteOptions": {"gracePeriodSeconds": 7}});
    assert_eq!(api.post(&format!("{PODS}/a/eviction"), &eviction).await.code, 201);
    let pod = api.get(&format!("{PODS}/a")).await.json();
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|condition| condition["reason"] == "EvictionByEvictionAPI" && condition["observedGeneration"] == 1),
        "{pod}"
    );
}

#[tokio::test]
async fn priority_classes_of_the_system_stay() {
    let api = Api::start().await;
    for name in ["system-cluster-critical", "system-node-critical"] {
        let answer = api
            .delete(
                &format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}?dryRun=All"),
                "",
            )
            .await;
        assert_eq!(
            (answer.code.as_u16(), answer.message()),
            (
                403,
                format!(
                    "priorityclasses.scheduling.k8s.io \"{name}\" is forbidden: this is a system priority class and cannot \
                     be deleted"
                )
            )
        );
    }
}
