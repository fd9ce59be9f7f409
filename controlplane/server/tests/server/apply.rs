//! Server-side apply.

use crate::support::{Api, deployment, entry, managers};
use http::StatusCode;
use serde_json::{Value, json};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn wanted(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn apply_creates_merges_and_takes_away() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    let yaml = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {a: b}}\nspec:\n  selector: \
                {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      \
                - {name: c, image: nginx, ports: [{containerPort: 80}], env: [{name: A, value: '1'}, {name: B, value: '2'}]}\n";
    let dry = api.apply(&path, "fieldManager=me&dryRun=All", yaml).await;
    assert_eq!(dry.code, StatusCode::CREATED);
    assert_eq!(managers(&dry.json()), ["me Apply"]);
    assert_eq!(api.get(&path).await.code, StatusCode::NOT_FOUND);
    let answer = api.apply(&path, "fieldManager=me", yaml).await;
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    let created = answer.json();
    assert_eq!(managers(&created), ["me Apply"]);
    assert_eq!(created["spec"]["replicas"], 1);
    assert!(entry(&created, "me")["fieldsV1"]["f:spec"].get("f:replicas").is_none());
    assert_eq!(
        entry(&created, "me")["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]["f:ports"],
        json!({"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}})
    );
    // Again: nothing changes.
    let again = api.apply(&path, "fieldManager=me", yaml).await;
    assert_eq!(again.code, StatusCode::OK);
    assert_eq!(again.json(), created);
    // Another adds a field of its own, and shares one.
    let other = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "template": {"spec": {"containers": [{"name": "c", "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}]}]}}}});
    let shared = api.apply(&path, "fieldManager=other", &other).await;
    assert_eq!(shared.code, StatusCode::OK, "{}", shared.text());
    // Fields that are no longer applied are removed, unless the other manager owns them.
    let fewer = yaml
        .replace(", env: [{name: A, value: '1'}, {name: B, value: '2'}]", "")
        .replace(", labels: {a: b}}", "}");
    let answer = api.apply(&path, "fieldManager=me", fewer).await.json();
    assert_eq!(
        answer["spec"]["template"]["spec"]["containers"][0]["env"],
        json!([{"name": "B", "value": "2"}, {"name": "C", "value": "3"}])
    );
    assert!(answer["metadata"].get("labels").is_none(), "{answer:#}");
    assert_eq!(
        answer["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"],
        "TCP"
    );
}

#[tokio::test]
async fn conflicts_are_refused_unless_forced() {
    let api = Api::start().await;
    api.post(
        &format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply"),
        &deployment("web"),
    )
    .await;
    let path = format!("{DEPLOYMENTS}/web");
    let answer = api
        .apply(&path, "fieldManager=me", wanted("web", &json!({"replicas": 9})))
        .await;
    assert_eq!(answer.code, StatusCode::CONFLICT);
    let status = answer.json();
    assert_eq!(
        status["message"],
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    assert_eq!(status["reason"], "Conflict");
    assert_eq!(
        status["details"]["causes"],
        json!([{
            "reason": "FieldManagerConflict",
            "message": "conflict with \"kubectl-client-side-apply\" using apps/v1",
            "field": ".spec.replicas",
        }])
    );
    let several = wanted(
        "web",
        &json!({"replicas": 9, "template": {"spec": {"containers": [{"name": "nginx", "image": "x"}]}}}),
    );
    let answer = api.apply(&path, "fieldManager=me", &several).await;
    assert_eq!(
        answer.message(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-client-side-apply\" using apps/v1:\n- .spec.replicas\n\
         - .spec.template.spec.containers[name=\"nginx\"].image"
    );
    // The same value is no conflict, but shared.
    let answer = api
        .apply(&path, "fieldManager=me", wanted("web", &json!({"replicas": 3})))
        .await;
    assert_eq!(answer.code, StatusCode::OK, "{}", answer.text());
    let answer = api.apply(&path, "fieldManager=me&force=true", &several).await.json();
    assert_eq!(answer["spec"]["replicas"], 9);
    assert!(
        entry(&answer, "kubectl-client-side-apply")["fieldsV1"]["f:spec"]
            .get("f:replicas")
            .is_none()
    );
    assert_eq!(managers(&answer), ["me Apply", "kubectl-client-side-apply Update"]);
}

#[tokio::test]
async fn what_was_applied_by_the_client_is_taken_over() {
    let api = Api::start().await;
    let mut object = deployment("web");
    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:1");
    let applied = object.to_string();
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": applied});
    api.post(
        &format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply"),
        &object,
    )
    .await;
    let path = format!("{DEPLOYMENTS}/web");
    let mut changed = object.clone();
    changed["metadata"].as_object_mut().unwrap().remove("annotations");
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:2");
    let refused = api.apply(&path, "fieldManager=other", &changed).await;
    assert_eq!(refused.code, StatusCode::CONFLICT);
    let taken = api.apply(&path, "fieldManager=kubectl", &changed).await;
    assert_eq!(taken.code, StatusCode::OK, "{}", taken.text());
    let taken = taken.json();
    assert_eq!(taken["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
    let kept = &taken["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert!(kept.as_str().unwrap().contains("nginx:2"), "{kept}");
    // A change by another manager since then is a conflict for kubectl, too.
    let change = json!({"spec": {"replicas": 8}});
    api.patch(&format!("{path}?fieldManager=hpa"), "merge-patch+json", &change)
        .await;
    let refused = api.apply(&path, "fieldManager=kubectl", &changed).await;
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"hpa\" using apps/v1: .spec.replicas"
    );
}

#[tokio::test]
async fn status_and_scale_are_applied_apart() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "status": {"replicas": 2}});
    let answer = api.apply(&format!("{path}/status"), "fieldManager=me", &status).await;
    assert_eq!(answer.code, StatusCode::NOT_FOUND);
    api.post(&format!("{DEPLOYMENTS}?fieldManager=first"), &deployment("web"))
        .await;
    let answer = api
        .apply(&format!("{path}/status"), "fieldManager=me", &status)
        .await
        .json();
    assert_eq!(answer["status"]["replicas"], 2);
    assert_eq!(managers(&answer), ["me Apply status", "first Update"]);
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 6}});
    let answer = api.apply(&format!("{path}/scale"), "fieldManager=me", &scale).await;
    assert_eq!(
        answer.message(),
        "Apply failed with 1 conflict: conflict with \"first\" using apps/v1: .spec.replicas"
    );
    let answer = api
        .apply(&format!("{path}/scale"), "fieldManager=me&force=true", &scale)
        .await
        .json();
    assert_eq!(answer["spec"]["replicas"], 6);
    let answer = api.get(&path).await.json();
    assert_eq!(managers(&answer), ["me Apply scale", "me Apply status", "first Update"]);
}

#[tokio::test]
async fn nobody_before_the_first_apply_has_what_it_could_not_write() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    api.post(DEPLOYMENTS, &deployment("web")).await;
    let merge = "merge-patch+json";
    let status = json!({"status": {"replicas": 1}});
    api.patch(&format!("{path}/status"), merge, &status).await;
    let forgotten = json!({"metadata": {"managedFields": [{}]}});
    assert_eq!(managers(&api.patch(&path, merge, &forgotten).await.json()), [""; 0]);
    let labels =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"a": "b"}}});
    let answer = api.apply(&path, "fieldManager=me", &labels).await.json();
    assert_eq!(managers(&answer), ["me Apply", "before-first-apply Update"]);
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "status": {"replicas": 2}});
    let answer = api
        .apply(&format!("{path}/status"), "fieldManager=other", &status)
        .await;
    assert_eq!(answer.code, StatusCode::OK, "{}", answer.message());
}

/// Applied configuration with one member of its metadata set.
fn with(member: &str, value: Value) -> Value {
    let mut object = deployment("web");
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(member.to_owned(), value);
    }
    object
}

#[tokio::test]
async fn bad_applies_are_told_in_upstreams_words() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    let unfit = "failed to create typed patch object (/web; apps/v1, Kind=Deployment): ";
    let doubled = json!({"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}});
    let rows = [
        (json!({}), 400, "invalid object type: /, Kind=".to_owned()),
        (json!({"apiVersion": "v1", "kind": "Pod"}), 400, "invalid object type: /v1, Kind=Pod".to_owned()),
        (
            json!([]),
            400,
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value \
             of type map[string]interface {}"
                .to_owned(),
        ),
        (with("managedFields", json!([])), 400, "metadata.managedFields must be nil".to_owned()),
        (
            with("uid", json!("u")),
            409,
            "Operation cannot be fulfilled on deployments.apps \"web\": uid mismatch: the provided object specified uid u, \
             and no existing object was found"
                .to_owned(),
        ),
        (
            with("name", json!("other")),
            400,
            "the name of the object (other) does not match the name on the URL (web)".to_owned(),
        ),
        (
            wanted("web", &json!({"replicaz": 1})),
            500,
            format!("{unfit}.spec.replicaz: field not declared in schema"),
        ),
        (
            wanted("web", &json!({"replicas": "1", "paused": 1})),
            500,
            format!(
                "{unfit}errors:\n  .spec.paused: expected boolean, got &value.valueUnstructured{{Value:1}}\n  \
                 .spec.replicas: expected numeric (int or float), got string"
            ),
        ),
        (
            wanted("web", &doubled),
            500,
            format!("{unfit}.spec.template.spec.containers: duplicate entries for key [name=\"a\"]"),
        ),
    ];
    for (body, code, message) in rows {
        let answer = api.apply(&path, "fieldManager=me", &body).await;
        assert_eq!((answer.code.as_u16(), answer.message()), (code, message), "{body}");
    }
}

#[tokio::test]
async fn options_must_go_together() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    let nobody = api.apply(&path, "", deployment("web")).await;
    assert_eq!(nobody.code, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        nobody.message(),
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let forced = api
        .patch(&format!("{path}?force=true"), "merge-patch+json", &json!({}))
        .await;
    assert_eq!(
        forced.message(),
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
    );
    let cbor = api.patch(&path, "apply-patch+cbor", &json!({})).await;
    assert_eq!(cbor.code, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let twice = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1, replicas: 2}\n";
    let strict = api.apply(&path, "fieldManager=me&fieldValidation=Strict", twice).await;
    assert_eq!(strict.code, StatusCode::BAD_REQUEST);
    let message = strict.message();
    assert!(
        message.starts_with("error strict decoding YAML: error converting YAML to JSON"),
        "{message}"
    );
}
