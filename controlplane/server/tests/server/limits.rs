//! `LimitRange`: defaults and rejections.

use crate::support::{Api, pod};
use http::StatusCode;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn range(api: &Api, limits: &Value) {
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": limits}});
    let made = api.post("/api/v1/namespaces/default/limitranges", &range).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
}

fn asking(resources: &Value) -> Value {
    let mut pod = pod("p");
    pod["spec"]["containers"][0]["resources"] = resources.clone();
    pod
}

#[tokio::test]
async fn what_containers_leave_out_is_filled_in() {
    let api = Api::start().await;
    let limits = json!([{"type": "Container", "default": {"cpu": "500m", "memory": "64Mi"},
        "defaultRequest": {"cpu": "100m"}}]);
    range(&api, &limits).await;
    let mut asking = asking(&json!({"requests": {"cpu": "200m"}}));
    asking["spec"]["initContainers"] = json!([{"name": "i", "image": "i"}]);
    let made = api.post(PODS, &asking).await.json();
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: memory request for container c; cpu, memory limit for container c; cpu, memory request \
         for init container i; cpu, memory limit for init container i"
    );
}

#[tokio::test]
async fn what_is_filled_in_counts_for_the_class_of_a_pod() {
    let api = Api::start().await;
    let made = api.post(PODS, &asking(&json!({}))).await.json();
    assert_eq!(made["status"]["qosClass"], "BestEffort");
    range(
        &api,
        &json!([{"type": "Container", "default": {"cpu": "500m", "memory": "64Mi"}, "defaultRequest": {"cpu": "100m"}}]),
    )
    .await;
    let made = api.post(&format!("{PODS}?dryRun=All"), &asking(&json!({}))).await;
    assert_eq!(made.code, StatusCode::CONFLICT, "{}", made.text());
    let mut other = asking(&json!({}));
    other["metadata"] = json!({"generateName": "q-"});
    for (requests, class) in [
        (json!({}), "Burstable"),
        (json!({"requests": {"cpu": "500m"}}), "Guaranteed"),
    ] {
        other["spec"]["containers"][0]["resources"] = requests;
        let made = api.post(PODS, &other).await.json();
        assert_eq!(made["status"]["qosClass"], class, "{made}");
    }
}

#[tokio::test]
async fn what_a_resize_leaves_out_is_filled_in_too() {
    let api = Api::start().await;
    let sent = asking(&json!({"requests": {"cpu": "100m", "memory": "64Mi"}}));
    api.post(PODS, &sent).await;
    range(&api, &json!([{"type": "Container", "default": {"cpu": "500m"}}])).await;
    let change = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}});
    let path = format!("{PODS}/p/resize");
    let resized = api.patch(&path, "strategic-merge-patch+json", &change).await;
    assert_eq!(resized.code, StatusCode::OK, "{}", resized.text());
    assert_eq!(
        resized.json()["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "200m", "memory": "64Mi"}})
    );
}

#[tokio::test]
async fn what_is_filled_in_by_an_update_is_no_change() {
    let api = Api::start().await;
    let made = api.post(PODS, &pod("p")).await.json();
    let mut same = made.clone();
    let spec = same["spec"].as_object_mut().unwrap();
    assert!(spec.remove("tolerations").is_some());
    let put = api.put(&format!("{PODS}/p"), &same).await;
    assert_eq!(put.code, StatusCode::OK, "{}", put.text());
    assert_eq!(put.json()["metadata"]["generation"], made["metadata"]["generation"]);
}

#[tokio::test]
async fn what_refuses_a_pod_before_it_has_a_name_shows_the_beginning_of_it() {
    let api = Api::start().await;
    let mut nameless = pod("");
    nameless["metadata"] = json!({"generateName": "web-"});
    nameless["spec"]["priorityClassName"] = json!("none");
    let refused = api.post(PODS, &nameless).await;
    assert_eq!(
        (refused.code, refused.message()),
        (
            StatusCode::FORBIDDEN,
            "pods \"web-\" is forbidden: no PriorityClass with name none was found".to_owned()
        )
    );
}

#[tokio::test]
async fn what_is_out_of_bounds_is_refused() {
    let api = Api::start().await;
    range(
        &api,
        &json!([
            {"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}},
            {"type": "Pod", "max": {"memory": "1Gi"}},
        ]),
    )
    .await;
    let memory = |cpu: &str, limit: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": limit, "memory": memory}});
    for (resources, because) in [
        (
            memory("50m", "60m", "1Gi"),
            "[minimum cpu usage per Container is 100m, but request is 50m]",
        ),
        (
            memory("600m", "1100m", "1Gi"),
            "[maximum cpu usage per Container is 1, but limit is 1100m]",
        ),
        (
            memory("200m", "500m", "1Gi"),
            "[cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000]",
        ),
        (
            memory("1", "1", "2Gi"),
            "[maximum memory usage per Pod is 1Gi, but limit is 2Gi]",
        ),
        (
            memory("50m", "60m", "2Gi"),
            "[minimum cpu usage per Container is 100m, but request is 50m, maximum memory usage per Pod is 1Gi, but limit is \
             2Gi]",
        ),
        (
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
            "[maximum memory usage per Pod is 1Gi.  No limit is specified]",
        ),
    ] {
        let because = if because.contains(", maximum") {
            because
        } else {
            because.trim_matches(['[', ']'])
        };
        let answer = api.post(PODS, &asking(&resources)).await;
        assert_eq!(answer.code, StatusCode::FORBIDDEN, "{resources}");
        assert_eq!(answer.message(), format!("pods \"p\" is forbidden: {because}"));
    }
    let fits = api.post(PODS, &asking(&memory("500m", "1", "1Gi"))).await;
    assert_eq!(fits.code, StatusCode::CREATED, "{}", fits.text());
}

#[tokio::test]
async fn a_claim_that_is_older_than_the_limits_can_be_changed_otherwise() {
    const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
    let api = Api::start().await;
    let claim = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    assert_eq!(api.post(CLAIMS, &claim("a")).await.code, StatusCode::CREATED);
    let least = json!([{"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}}]);
    range(&api, &least).await;
    let refused = api.post(CLAIMS, &claim("b")).await;
    assert_eq!(
        refused.message(),
        "persistentvolumeclaims \"b\" is forbidden: minimum storage usage per PersistentVolumeClaim is 2Gi, but request \
         is 1Gi"
    );
    let change = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}});
    let changed = api.patch(&format!("{CLAIMS}/a"), "merge-patch+json", &change).await;
    assert_eq!(changed.code, StatusCode::OK, "{}", changed.text());
}
