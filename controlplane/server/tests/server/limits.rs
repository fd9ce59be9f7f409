//! `LimitRange`: what is filled in, and what is refused.

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
