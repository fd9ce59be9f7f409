//! Managers of fields after writes.

use crate::support::{Api, config_map, deployment, entry, managers, pod};
use http::Method;
use serde_json::json;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn a_created_object_is_its_creators() {
    let api = Api::start_at_rest().await;
    let headers = [
        ("content-type", "application/json"),
        ("user-agent", "kubectl/v1.33.0 (linux/amd64)"),
    ];
    let answer = api
        .request(Method::POST, DEPLOYMENTS, &headers, deployment("web").to_string())
        .await
        .json();
    assert_eq!(managers(&answer), ["kubectl Update"]);
    let own = entry(&answer, "kubectl");
    assert_eq!(own["apiVersion"], "apps/v1");
    assert_eq!(own["fieldsType"], "FieldsV1");
    assert_eq!(own["time"], crate::support::START);
    let expected = json!({"f:spec": {
        "f:progressDeadlineSeconds": {},
        "f:replicas": {},
        "f:revisionHistoryLimit": {},
        "f:selector": {},
        "f:strategy": {
            "f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}},
            "f:type": {},
        },
        "f:template": {
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"nginx\"}": {
                    ".": {},
                    "f:image": {},
                    "f:imagePullPolicy": {},
                    "f:name": {},
                    "f:ports": {
                        ".": {},
                        "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}},
                    },
                    "f:resources": {},
                    "f:terminationMessagePath": {},
                    "f:terminationMessagePolicy": {},
                }},
                "f:dnsPolicy": {},
                "f:restartPolicy": {},
                "f:schedulerName": {},
                "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {},
            },
        },
    }});
    assert_eq!(own["fieldsV1"], expected, "{:#}", own["fieldsV1"]);
}

#[tokio::test]
async fn writers_take_fields_from_each_other() {
    let api = Api::start().await;
    api.post(&format!("{DEPLOYMENTS}?fieldManager=first"), &deployment("web"))
        .await;
    let path = format!("{DEPLOYMENTS}/web");
    let before = api.get(&path).await.json();
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    let change = json!({"spec": {"replicas": 5}, "metadata": {"labels": {"a": "b"}}});
    let after = api
        .patch(&format!("{path}?fieldManager=second"), "merge-patch+json", &change)
        .await
        .json();
    assert_eq!(managers(&after), ["first Update", "second Update"]);
    assert_eq!(
        entry(&after, "second")["fieldsV1"],
        json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:replicas": {}}})
    );
    assert!(entry(&after, "first")["fieldsV1"]["f:spec"].get("f:replicas").is_none());
    assert_eq!(entry(&after, "first")["time"], entry(&before, "first")["time"]);
    assert!(entry(&after, "second")["time"].as_str() > entry(&before, "first")["time"].as_str());
    // The same again changes nothing, not even a time.
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    let again = api
        .patch(&format!("{path}?fieldManager=second"), "merge-patch+json", &change)
        .await
        .json();
    assert_eq!(again, after);
    // Removed fields have no manager.
    let gone = json!({"metadata": {"labels": null}});
    let after = api
        .patch(&format!("{path}?fieldManager=third"), "merge-patch+json", &gone)
        .await
        .json();
    assert_eq!(managers(&after), ["first Update", "second Update"]);
    assert_eq!(
        entry(&after, "second")["fieldsV1"],
        json!({"f:spec": {"f:replicas": {}}})
    );
    // Status is written through a subresource.
    let status = json!({"status": {"replicas": 3, "conditions": [{"type": "Available", "status": "True"}]}});
    let after = api
        .patch(
            &format!("{path}/status?fieldManager=controller"),
            "merge-patch+json",
            &status,
        )
        .await
        .json();
    assert_eq!(entry(&after, "controller")["subresource"], "status");
    assert_eq!(
        entry(&after, "controller")["fieldsV1"],
        json!({"f:status": {
            "f:conditions": {".": {}, "k:{\"type\":\"Available\"}": {
                // Unset times are present as nulls.
                ".": {}, "f:lastTransitionTime": {}, "f:lastUpdateTime": {}, "f:status": {}, "f:type": {},
            }},
            "f:replicas": {},
        }})
    );
    let scale = json!({"spec": {"replicas": 7}});
    let path = format!("{path}/scale?fieldManager=scaler");
    api.patch(&path, "merge-patch+json", &scale).await;
    let after = api.get(&format!("{DEPLOYMENTS}/web")).await.json();
    assert_eq!(
        managers(&after),
        ["first Update", "controller Update status", "scaler Update scale"]
    );
}

#[tokio::test]
async fn managed_fields_can_be_edited_and_taken_away() {
    let api = Api::start().await;
    api.post(
        &format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply"),
        &deployment("web"),
    )
    .await;
    let path = format!("{DEPLOYMENTS}/web");
    // Moves the entries of client-side apply as kubectl does.
    let mut entries = api.get(&path).await.json()["metadata"]["managedFields"].clone();
    entries[0]["manager"] = json!("kubectl");
    entries[0]["operation"] = json!("Apply");
    let change = json!([{"op": "replace", "path": "/metadata/managedFields", "value": entries}]);
    let answer = api
        .patch(&format!("{path}?fieldManager=kubectl"), "json-patch+json", &change)
        .await
        .json();
    assert_eq!(managers(&answer), ["kubectl Apply"]);
    let reset = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
    let answer = api.patch(&path, "json-patch+json", &reset).await.json();
    assert!(answer["metadata"].get("managedFields").is_none(), "{answer:#}");
    let mut object = answer;
    object["spec"]["replicas"] = json!(4);
    let answer = api.put(&path, &object).await.json();
    assert!(
        answer["metadata"].get("managedFields").is_none(),
        "untracked until the first apply"
    );
    let five =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 5}});
    // The first apply finds fields without a manager, which need one.
    let answer = api.apply(&path, "fieldManager=me", &five).await;
    assert_eq!(
        answer.message(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
    let answer = api.apply(&path, "fieldManager=me&force=true", &five).await.json();
    assert_eq!(managers(&answer), ["me Apply", "before-first-apply Update"]);
    // A client that does not know of the entries does not delete them.
    let mut object = answer.clone();
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    object["metadata"]["labels"] = json!({"x": "y"});
    let answer = api.put(&format!("{path}?fieldManager=simple"), &object).await.json();
    assert_eq!(
        managers(&answer),
        ["me Apply", "before-first-apply Update", "simple Update"]
    );
}

#[tokio::test]
async fn entries_of_a_clients_have_names_that_can_be() {
    let api = Api::start().await;
    let entries = |manager: &str, subresource: &str| {
        json!({"metadata": {"name": "a", "managedFields": [{
            "manager": manager, "operation": "Update", "apiVersion": "v1", "subresource": subresource,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}},
        }]}})
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    let bad = entries(&"m".repeat(200), &"s".repeat(300));
    let words = "ConfigMap \"a\" is invalid: \
        [metadata.managedFields[0].manager: Too long: may not be more than 128 bytes, \
        metadata.managedFields[0].subresource: Too long: may not be more than 256 bytes]";
    assert_eq!(api.post(maps, &bad).await.message(), words);
    api.post(maps, &config_map("a")).await;
    let path = format!("{maps}/a");
    assert_eq!(api.patch(&path, "merge-patch+json", &bad).await.message(), words);
    let hidden = api.patch(&path, "merge-patch+json", &entries("a\u{1}b", "")).await;
    assert!(
        hidden.message().ends_with("invalid character U+0001 (at position 1)"),
        "{}",
        hidden.message()
    );
}

#[tokio::test]
async fn a_binding_is_nobodys_and_deletion_keeps_the_entries() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let mut object = pod("a");
    object["metadata"]["finalizers"] = json!(["x.example.com/y"]);
    api.post(&format!("{pods}?fieldManager=me"), &object).await;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    api.post(&format!("{pods}/a/binding"), &binding).await;
    let bound = api.get(&format!("{pods}/a")).await.json();
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(managers(&bound), ["me Update"]);
    assert!(entry(&bound, "me")["fieldsV1"]["f:spec"].get("f:nodeName").is_none());
    let deleted = api.delete(&format!("{pods}/a?gracePeriodSeconds=0"), "").await.json();
    assert_eq!(deleted["metadata"]["managedFields"], bound["metadata"]["managedFields"]);
}

#[tokio::test]
async fn old_updates_are_merged_into_one_entry() {
    let api = Api::start().await;
    api.post(&format!("{DEPLOYMENTS}?fieldManager=first"), &deployment("web"))
        .await;
    tokio::time::pause();
    for number in 0..14 {
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let change = json!({"metadata": {"labels": {format!("l{number}"): "x"}}});
        let path = format!("{DEPLOYMENTS}/web?fieldManager=m{number}");
        api.patch(&path, "merge-patch+json", &change).await;
    }
    let object = api.get(&format!("{DEPLOYMENTS}/web")).await.json();
    let names = managers(&object);
    assert_eq!(names.len(), 10, "{names:?}");
    assert_eq!(names[0], "ancient-changes Update");
    assert_eq!(
        entry(&object, "ancient-changes")["fieldsV1"]["f:metadata"]["f:labels"]["f:l3"],
        json!({})
    );
}

#[tokio::test]
async fn a_field_of_two_versions_is_one_field() {
    let api = Api::start().await;
    let scalers = |version: &str| format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
    let load = |percent: i32| json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}]);
    let mut scaler = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "a"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 3},
    });
    scaler["spec"]["metrics"] = load(50);
    api.post(&format!("{}?fieldManager=newer", scalers("v2")), &scaler)
        .await;
    let (new, old) = (format!("{}/a", scalers("v2")), format!("{}/a", scalers("v1")));
    let spec = |object: &serde_json::Value, manager: &str| entry(object, manager)["fieldsV1"]["f:spec"].clone();
    // A write of the target through the old version takes over the field from the manager that
    // wrote it through the new one.
    let change = json!({"spec": {"targetCPUUtilizationPercentage": 70}});
    let after = api
        .patch(&format!("{old}?fieldManager=older"), "merge-patch+json", &change)
        .await
        .json();
    assert_eq!(managers(&after), ["newer Update", "older Update"]);
    assert_eq!(entry(&after, "older")["apiVersion"], "autoscaling/v1");
    assert_eq!(spec(&after, "older"), json!({"f:targetCPUUtilizationPercentage": {}}));
    assert!(spec(&after, "newer").get("f:metrics").is_none(), "{after:#}");
    assert!(spec(&after, "newer").get("f:maxReplicas").is_some(), "{after:#}");
    // And back again.
    let change = json!({"spec": {"metrics": load(30)}});
    let after = api
        .patch(&format!("{new}?fieldManager=newer"), "merge-patch+json", &change)
        .await
        .json();
    assert_eq!(managers(&after), ["newer Update"]);
    assert!(spec(&after, "newer").get("f:metrics").is_some(), "{after:#}");
    // An apply sees the same conflict.
    let mut wanted =
        json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"}});
    wanted["spec"] = json!({"targetCPUUtilizationPercentage": 70});
    let refused = api.apply(&old, "fieldManager=me", &wanted).await;
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"newer\" using autoscaling/v2: .spec.metrics"
    );
    let after = api.apply(&old, "fieldManager=me&force=true", &wanted).await.json();
    assert_eq!(managers(&after), ["me Apply", "newer Update"]);
    assert!(spec(&after, "newer").get("f:metrics").is_none(), "{after:#}");
    // An apply through the other version releases the fields that were applied through the first.
    wanted["apiVersion"] = json!("autoscaling/v2");
    wanted["spec"] = json!({"minReplicas": 1});
    let after = api.apply(&new, "fieldManager=me", &wanted).await.json();
    assert_eq!(entry(&after, "me")["apiVersion"], "autoscaling/v2");
    assert_eq!(spec(&after, "me"), json!({"f:minReplicas": {}}));
    assert_eq!(after["spec"]["metrics"], load(80), "nobody's: the default");
}

#[tokio::test]
async fn events_have_one_list_of_managers() {
    let api = Api::start().await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a"},
        "eventTime": "2026-01-02T03:04:05.000000Z",
        "reportingController": "example.com/tests",
        "reportingInstance": "a-1",
        "action": "Test",
        "reason": "Tested",
        "type": "Normal",
        "note": "first",
        "regarding": {"kind": "ConfigMap", "namespace": "default", "name": "b"},
    });
    let (events, core) = (
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/api/v1/namespaces/default/events",
    );
    api.post(&format!("{events}?fieldManager=newer"), &event).await;
    let change = json!({"message": "second"});
    let path = format!("{core}/a?fieldManager=older");
    let after = api.patch(&path, "merge-patch+json", &change).await.json();
    assert_eq!(managers(&after), ["newer Update", "older Update"]);
    let (newer, older) = (entry(&after, "newer"), entry(&after, "older"));
    assert_eq!(newer["apiVersion"], "events.k8s.io/v1");
    assert!(newer["fieldsV1"].get("f:note").is_none(), "{newer:#}");
    assert!(newer["fieldsV1"].get("f:regarding").is_some(), "{newer:#}");
    assert_eq!(older["fieldsV1"], json!({"f:message": {}}));
}

#[tokio::test]
async fn a_status_deletes_no_pod() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(api.post(pods, &pod("a")).await.code, 201);
    let applied = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "deletionTimestamp": "2020-01-01T00:00:00Z"},
        "status": {"message": "x"},
    });
    let answer = api
        .apply(&format!("{pods}/a/status"), "fieldManager=me", &applied)
        .await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    let applied = answer.json();
    assert_eq!(applied["metadata"].get("deletionTimestamp"), None);
    assert_eq!(
        entry(&applied, "me")["fieldsV1"],
        json!({"f:status": {"f:message": {}}})
    );
}
