//! Flow control, as clients outside see it.

use axum::body::{Body, Bytes};
use controlplane_server::User;
use controlplane_server::authn::identity::Source;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::{Answer, Api, collect};

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

fn request(user: User, method: Method, path: &str, body: Body) -> Request<Body> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let mut request = request.body(body).unwrap();
    request.extensions_mut().insert(Source(([192, 0, 2, 1], 1).into()));
    request.extensions_mut().insert(user);
    request
}

async fn answer(api: &Api, request: Request<Body>) -> Answer {
    collect(api.server.router().oneshot(request).await.unwrap()).await
}

async fn get(api: &Api, name: &str, path: &str) -> Answer {
    let user = User::new(name, []);
    answer(api, request(user, Method::GET, path, Body::empty())).await
}

/// The UIDs of the schema and the level that an answer names.
fn named(answer: &Answer) -> [String; 2] {
    ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"].map(|name| {
        answer
            .headers
            .get(name)
            .map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    })
}

async fn uids(api: &Api, schema: &str, level: &str) -> [String; 2] {
    let mut uids = Vec::new();
    for path in [format!("{SCHEMAS}/{schema}"), format!("{LEVELS}/{level}")] {
        let object = api.get(&path).await.json();
        uids.push(object["metadata"]["uid"].as_str().unwrap().to_owned());
    }
    uids.try_into().unwrap()
}

async fn dangling(api: &Api, wanted: &str) -> Value {
    for _ in 0..1000 {
        let schema = api.get(&format!("{SCHEMAS}/narrow")).await.json();
        let condition = schema["status"]["conditions"][0].clone();
        if condition["status"] == wanted {
            return condition;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("not {wanted}")
}

/// A level without seats, and the schema that leads some of jane's requests there.
fn narrow() -> (Value, Value) {
    let level = json!({
        "metadata": {"name": "narrow"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
        }},
    });
    let schema = json!({
        "metadata": {"name": "narrow"},
        "spec": {
            "priorityLevelConfiguration": {"name": "narrow"}, "matchingPrecedence": 1000,
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "jane"}}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/version"]}],
                "resourceRules": [{
                    "verbs": ["create", "list"], "apiGroups": [""], "resources": ["configmaps"], "namespaces": ["default"],
                }],
            }],
        },
    });
    (level, schema)
}

#[tokio::test(start_paused = true)]
async fn requests_are_sorted_into_levels_and_wait_or_are_refused_there() {
    let api = Api::start().await;
    let heal = api.server.clone();
    let mut upkeep = tokio::task::JoinSet::new();
    upkeep.spawn(async move { heal.heal().await });
    for (user, path, schema, level) in [
        ("jane", "/version", "global-default", "global-default"),
        ("jane", "/healthz", "probes", "exempt"),
        (
            "system:kube-scheduler",
            "/api/v1/pods",
            "kube-scheduler",
            "workload-high",
        ),
    ] {
        let answer = get(&api, user, path).await;
        assert_eq!(
            named(&answer),
            uids(&api, schema, level).await,
            "{user} {path} {}",
            answer.code
        );
    }

    let (level, schema) = narrow();
    assert_eq!(api.post(SCHEMAS, &schema).await.code, StatusCode::CREATED);
    let message = |link: &str| {
        format!("This FlowSchema references the PriorityLevelConfiguration object named \"narrow\" {link}")
    };
    let condition = dangling(&api, "True").await;
    assert_eq!(condition["reason"], "NotFound");
    assert_eq!(condition["message"], message("but there is no such object"));
    assert_eq!(get(&api, "jane", "/version").await.code, StatusCode::OK);

    assert_eq!(api.post(LEVELS, &level).await.code, StatusCode::CREATED);
    let condition = dangling(&api, "False").await;
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("Found"), &json!(message("and it exists")))
    );
    let refused = get(&api, "jane", "/version").await;
    assert_eq!(refused.code, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.text(), "Too many requests, please try again later.\n");
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(named(&refused), uids(&api, "narrow", "narrow").await);
    let dump = "/debug/api_priority_and_fairness/dump_priority_levels";
    assert_eq!(get(&api, "jane", dump).await.code, StatusCode::FORBIDDEN);
    let dumped = api.get(dump).await.text();
    let lines: Vec<&str> = dumped.lines().filter(|line| line.starts_with(['P', 'n'])).collect();
    assert_eq!(
        lines,
        [
            "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, \
             DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests",
            "narrow,            0,            true,   false,       0,               0,                 \
             0,                  1,                0,                0",
            "node-high,         0,            true,   false,       0,               0,                 \
             0,                  0,                0,                0",
        ]
    );
    assert_eq!(get(&api, "joe", "/version").await.code, StatusCode::OK);
    assert_eq!(get(&api, "jane", "/livez").await.code, StatusCode::OK);

    a_full_level_refuses(&api).await;
}

/// Fills the level with requests that take their time.
async fn a_full_level_refuses(api: &Api) {
    // One of the server's shares is three seats, of which one user may have all: the schema has no
    // flow distinguisher.
    let change = json!({"spec": {"limited": {"nominalConcurrencyShares": 1}}});
    let changed = api
        .patch(&format!("{LEVELS}/narrow"), "merge-patch+json", &change)
        .await;
    assert_eq!(changed.code, StatusCode::OK, "{}", changed.text());
    let asked = |method: Method, path: &str, body: Body| {
        let path = format!("/api/v1/namespaces/default/configmaps{path}");
        answer(api, request(User::new("jane", []), method, &path, body))
    };
    let unsent = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let rights = json!({
        "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    let bound = api
        .post(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            &rights,
        )
        .await;
    assert_eq!(bound.code, StatusCode::CREATED, "{}", bound.text());
    {
        let held = futures::future::join_all((0..4).map(|_| asked(Method::POST, "", unsent())));
        let mut held = std::pin::pin!(held);
        for _ in 0..10 {
            assert!(futures::FutureExt::now_or_never(held.as_mut()).is_none());
            tokio::task::yield_now().await;
        }
        let answer = get(api, "jane", "/version").await;
        assert_eq!(answer.code, StatusCode::OK, "bodies that do not arrive take no seats");
    }
    {
        // A revision that is not there yet is waited for.
        let late = || asked(Method::GET, "?resourceVersion=1000000", Body::empty());
        let held = futures::future::join_all([late(), late(), late()]);
        let mut held = std::pin::pin!(held);
        for _ in 0..10 {
            assert!(futures::FutureExt::now_or_never(held.as_mut()).is_none());
            tokio::task::yield_now().await;
        }
        assert_eq!(get(api, "jane", "/version").await.code, StatusCode::TOO_MANY_REQUESTS);
        let page = api.get("/metrics").await.text();
        let labels = "flow_schema=\"narrow\",priority_level=\"narrow\"";
        for line in [
            "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"narrow\"} 3\n".to_owned(),
            format!("apiserver_flowcontrol_current_executing_requests{{{labels}}} 3\n"),
            format!("apiserver_flowcontrol_rejected_requests_total{{{labels},reason=\"concurrency-limit\"}} 2\n"),
        ] {
            assert!(page.contains(&line), "{line}\n{page}");
        }
    }
    assert_eq!(get(api, "jane", "/version").await.code, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn the_objects_that_every_cluster_has_are_kept_up() {
    let api = Api::start().await;
    let heal = api.server.clone();
    let mut upkeep = tokio::task::JoinSet::new();
    upkeep.spawn(async move { heal.heal().await });
    for (path, count) in [(SCHEMAS, 11), (LEVELS, 8)] {
        let all = api.get(path).await.json();
        assert_eq!(all["items"].as_array().unwrap().len(), count);
    }
    assert_eq!(
        api.delete(&format!("{LEVELS}/catch-all"), "").await.code,
        StatusCode::OK
    );
    let left = json!({
        "metadata": {"name": "left", "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}},
        "spec": {"priorityLevelConfiguration": {"name": "system"}},
    });
    assert_eq!(api.post(SCHEMAS, &left).await.code, StatusCode::CREATED);
    // Requests are still classified meanwhile.
    assert_eq!(get(&api, "jane", "/version").await.code, StatusCode::OK);
    tokio::time::sleep(std::time::Duration::from_secs(65)).await;
    assert_eq!(api.get(&format!("{LEVELS}/catch-all")).await.code, StatusCode::OK);
    assert_eq!(api.get(&format!("{SCHEMAS}/left")).await.code, StatusCode::NOT_FOUND);
    let condition = &api.get(&format!("{SCHEMAS}/catch-all")).await.json()["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("Dangling"), &json!("False"))
    );
}
