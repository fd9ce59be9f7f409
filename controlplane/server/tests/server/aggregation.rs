//! Group versions that servers behind Services serve.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use controlplane_server::authn::identity::User;
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::webhook::{Reply, Webhook};
use crate::support::{Answer, Api, collect};

const ALL: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const OWN: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.wardle.example.com";
const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";

/// Starts an API server and polls its `heal` for as long as the second value lives.
async fn start() -> (Api, JoinSet<()>) {
    let api = Api::start().await;
    let server = api.server.clone();
    let mut healing = JoinSet::new();
    healing.spawn(async move {
        server.heal().await;
    });
    (api, healing)
}

/// Starts a server of flunders that answers by path.
async fn server() -> Webhook {
    Webhook::start(|request| {
        let raw = |code, body: Value| Reply::Raw(code, vec![("content-type", "application/json".into())], body.to_string().into());
        match request["path"].as_str().unwrap_or_default() {
            "/apis/wardle.example.com/v1alpha1" => raw(
                200,
                json!({"kind": "APIResourceList", "groupVersion": "wardle.example.com/v1alpha1", "resources": [
                    {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
                     "verbs": ["get", "list"], "shortNames": ["fl"]},
                    {"name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
                    {"name": "pods/requests", "singularName": "", "namespaced": true, "kind": "MetricValueList",
                     "verbs": ["get"]},
                ]}),
            ),
            path if path.ends_with("/away") => Reply::Raw(307, vec![("location", "https://10.0.0.1/".into())], Vec::new()),
            path if path.ends_with("/shared") => {
                let open = [("access-control-allow-origin", "*"), ("x-own", "kept")];
                Reply::Raw(200, open.map(|(name, value)| (name, value.to_owned())).to_vec(), Vec::new())
            }
            path => raw(200, json!({"kind": "FlunderList", "path": path})),
        }
    })
    .await
}

async fn register(api: &Api, server: &Webhook) {
    let path = "/api/v1/namespaces";
    assert_eq!(api.post(path, &json!({"metadata": {"name": "hooks"}})).await.code, 201);
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    assert_eq!(api.post("/api/v1/namespaces/hooks/services", &service).await.code, 201);
    let own = json!({"metadata": {"name": "v1alpha1.wardle.example.com"}, "spec": {
        "group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 200,
        "service": {"namespace": "hooks", "name": "hook", "port": server.address.port()}, "caBundle": server.bundle,
    }});
    let made = api.post(ALL, &own).await;
    assert_eq!(made.code, 201, "{}", made.text());
}

/// Waits until an answer is as it should be.
async fn until(api: &Api, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = api.get(path).await;
        if is_so(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: {}", answer.text());
        sleep(Duration::from_millis(20)).await;
    }
}

fn condition(answer: &Answer) -> Value {
    answer.json()["status"]["conditions"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_a_service_serves_its_group_version() {
    let (api, _healing) = start().await;
    let server = server().await;
    register(&api, &server).await;
    let own = until(&api, OWN, |answer| condition(answer)["status"] == "True").await;
    let passed = condition(&own);
    assert_eq!(
        (&passed["type"], &passed["reason"]),
        (&json!("Available"), &json!("Passed"))
    );
    assert_eq!(passed["message"], "all checks passed");
    let flunders = api.get(&format!("{FLUNDERS}?limit=3")).await;
    assert_eq!(flunders.code, 200, "{}", flunders.text());
    assert_eq!(flunders.json()["path"], format!("{FLUNDERS}?limit=3"));
    let groups = api.get("/apis").await.json();
    let group = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .find(|group| group["name"] == "wardle.example.com");
    assert_eq!(
        group.unwrap()["preferredVersion"]["groupVersion"],
        "wardle.example.com/v1alpha1"
    );
    let accept = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    )];
    let groups = api.request(Method::GET, "/apis", &accept, Body::empty()).await.json();
    let items = groups["items"].as_array().unwrap();
    let group = items
        .iter()
        .find(|group| group["metadata"]["name"] == "wardle.example.com")
        .unwrap();
    assert_eq!(
        group["versions"],
        json!([{"version": "v1alpha1", "freshness": "Current", "resources": [{
            "resource": "flunders", "singularResource": "flunder", "scope": "Namespaced", "verbs": ["get", "list"],
            "shortNames": ["fl"],
            "responseKind": {"group": "wardle.example.com", "version": "v1alpha1", "kind": "Flunder"},
            "subresources": [{"subresource": "status", "verbs": ["get"],
                "responseKind": {"group": "wardle.example.com", "version": "v1alpha1", "kind": "Flunder"}}],
        }, {
            "resource": "pods", "singularResource": "", "scope": "Namespaced", "verbs": [],
            "responseKind": {"group": "", "version": "", "kind": ""},
            "subresources": [{"subresource": "requests", "verbs": ["get"],
                "responseKind": {"group": "wardle.example.com", "version": "v1alpha1", "kind": "MetricValueList"}}],
        }]}])
    );
    let deleted = api.delete(OWN, "").await;
    assert_eq!(
        (deleted.code.as_u16(), &deleted.json()["kind"]),
        (200, &json!("Status"))
    );
    assert_eq!(api.get(FLUNDERS).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_told_who_asks_by_nobody_else() {
    let (api, _healing) = start().await;
    let server = server().await;
    register(&api, &server).await;
    until(&api, OWN, |answer| condition(answer)["status"] == "True").await;
    let mut user = User::new("jane", ["system:masters"]);
    user.extra.insert("scopes/a".into(), vec!["b".into()]);
    let request = Request::get(FLUNDERS)
        .header("x-remote-user", "root")
        .header("x-remote-extra-more", "no")
        .header("authorization", "Bearer secret")
        .body(Body::empty())
        .unwrap();
    assert_eq!(collect(api.send_as(user, request).await).await.code, 200);
    // The server's own requests, for discovery and documents, are others.
    let asked_for_flunders = || -> Vec<Value> {
        let asked = server.asked.lock().unwrap();
        let is_meant = |request: &&Value| request["path"] == FLUNDERS;
        asked.iter().filter(is_meant).cloned().collect()
    };
    let asked = asked_for_flunders().last().unwrap()["headers"].clone();
    assert_eq!(asked["x-remote-user"], "jane");
    assert_eq!(asked["x-remote-extra-scopes%2fa"], "b");
    assert_eq!(asked["audit-id"].as_str().map(str::len), Some(36));
    assert_eq!(
        (asked.get("x-remote-extra-more"), asked.get("authorization")),
        (None, None)
    );
    let request = Request::get(FLUNDERS).body(Body::empty()).unwrap();
    let user = User::new("jürgen", ["system:masters"]);
    assert_eq!(collect(api.send_as(user, request).await).await.code, 200);
    // Unauthorized requests do not reach the backend.
    let before = asked_for_flunders().len();
    let request = Request::get(FLUNDERS).body(Body::empty()).unwrap();
    let refused = collect(api.send_as(User::new("joe", []), request).await).await;
    assert_eq!(refused.code, 403);
    assert_eq!(asked_for_flunders().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_a_server_that_is_away_or_leads_elsewhere() {
    let (api, _healing) = start().await;
    let own = json!({"metadata": {"name": "v1.gone.example.com"}, "spec": {
        "group": "gone.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "service": {"namespace": "hooks", "name": "none"}, "insecureSkipTLSVerify": true,
    }});
    let made = api.post(ALL, &own).await;
    assert_eq!(
        (made.code.as_u16(), &made.json()["spec"]["service"]["port"]),
        (201, &json!(443))
    );
    let away = until(&api, &format!("{ALL}/v1.gone.example.com"), |answer| {
        condition(answer)["status"] == "False"
    })
    .await;
    assert_eq!(condition(&away)["reason"], "ServiceNotFound");
    assert_eq!(condition(&away)["message"], "service/none in \"hooks\" is not present");
    let answer = api.get("/apis/gone.example.com/v1/things").await;
    assert_eq!(
        (answer.code.as_u16(), answer.text().as_str()),
        (503, "service unavailable\n")
    );
    let server = server().await;
    register(&api, &server).await;
    until(&api, OWN, |answer| condition(answer)["status"] == "True").await;
    let answer = api.get(&format!("{FLUNDERS}/away")).await;
    assert_eq!(
        (answer.code.as_u16(), answer.text().as_str()),
        (
            502,
            "the backend attempted to redirect this request, which is not permitted"
        )
    );
    let shared = api.get(&format!("{FLUNDERS}/shared")).await;
    assert_eq!(shared.headers["x-own"], "kept");
    assert_eq!(shared.headers.get("access-control-allow-origin"), None);
    let elsewhere = json!({"spec": {"service": {"name": "none", "namespace": "hooks"}}});
    let merge = [("content-type", "application/merge-patch+json")];
    let moved = api.request(Method::PATCH, OWN, &merge, elsewhere.to_string()).await;
    assert_eq!(moved.code, 200, "{}", moved.text());
    until(&api, OWN, |answer| condition(answer)["status"] == "False").await;
    let metrics = api.get("/metrics").await.text();
    for line in [
        "# TYPE aggregator_unavailable_apiservice gauge\n",
        "aggregator_unavailable_apiservice{name=\"v1.apps\"} 0\n",
        "aggregator_unavailable_apiservice{name=\"v1.gone.example.com\"} 1\n",
        "# TYPE aggregator_unavailable_apiservice_total counter\n",
        "aggregator_unavailable_apiservice_total{name=\"v1alpha1.wardle.example.com\",reason=\"ServiceNotFound\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_available_while_one_of_five_requests_succeeds() {
    let (api, _healing) = start().await;
    let asked = AtomicUsize::new(0);
    let server = Webhook::start(move |_request| {
        let code = if asked.fetch_add(1, Ordering::SeqCst) < 4 {
            500
        } else {
            200
        };
        Reply::Raw(code, vec![], json!({"resources": []}).to_string().into())
    })
    .await;
    register(&api, &server).await;
    let own = until(&api, OWN, |answer| !condition(answer)["status"].is_null()).await;
    assert_eq!(condition(&own)["message"], "all checks passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_group_versions_have_one_each_that_nobody_can_take() {
    let (api, _healing) = start().await;
    let own = until(&api, &format!("{ALL}/v1.apps"), |answer| answer.code == 200)
        .await
        .json();
    assert_eq!(
        own["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"],
        "onstart"
    );
    assert_eq!(
        own["spec"],
        json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15})
    );
    let local = &own["status"]["conditions"][0];
    assert_eq!(
        (&local["status"], &local["reason"], &local["message"]),
        (
            &json!("True"),
            &json!("Local"),
            &json!("Local APIServices are always available")
        )
    );
    let claim = json!({"metadata": {"name": "v1.apps"}, "spec": {
        "group": "apps", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "service": {"namespace": "default", "name": "mine"},
    }});
    let refused = api.post(ALL, &claim).await;
    assert_eq!(
        (refused.code.as_u16(), refused.json()["reason"].as_str()),
        (409, Some("AlreadyExists"))
    );
    for (spec, message) in [
        (
            json!({"group": "a.b", "version": "v1", "versionPriority": 1}),
            "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
        ),
        (
            json!({"version": "v2", "groupPriorityMinimum": 1, "versionPriority": 1}),
            "spec.group: Required value: only v1 may have an empty group and it better be legacy kube",
        ),
        (
            json!({"group": "a.b", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "insecureSkipTLSVerify": true}),
            "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
        ),
    ] {
        let refused = api
            .post(ALL, &json!({"metadata": {"name": "v1.a.b"}, "spec": spec}))
            .await;
        assert_eq!(refused.code, 422, "{}", refused.text());
        assert!(refused.message().contains(message), "{}", refused.message());
    }
}

/// Starts a server that documents flunders, in v2 and maybe v3, and what is none of its business.
async fn documented(own: Value, has_v3: bool) -> Webhook {
    Webhook::start(move |request| {
        let raw = |body: Value| {
            let headers = vec![("content-type", "application/json".into()), ("etag", "\"one\"".into())];
            Reply::Raw(200, headers, body.to_string().into())
        };
        let path = request["path"].as_str().unwrap_or_default();
        let url = |path: &str| json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash=ONE")});
        match path {
            "/apis/wardle.example.com/v1alpha1" => raw(json!({"kind": "APIResourceList", "resources": []})),
            "/openapi/v3" if !has_v3 => Reply::Raw(404, vec![], vec![]),
            "/openapi/v3" => raw(json!({"paths": {
                "apis/wardle.example.com/v1alpha1": url("apis/wardle.example.com/v1alpha1"),
                "apis/apps/v1": url("apis/apps/v1"),
            }})),
            "/openapi/v2" if request["headers"]["if-none-match"] == "\"one\"" => Reply::Raw(304, vec![], vec![]),
            "/openapi/v2" => raw(own.clone()),
            path => raw(json!({"openapi": "3.0.0", "path": path})),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn its_openapi_documents_are_a_part_of_this_servers() {
    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
    const KINDS: &str = "x-kubernetes-group-version-kind";
    let (api, _healing) = start().await;
    let before = api.get("/openapi/v2").await.json();
    let index = api.get("/openapi/v3").await.json();
    let mut options = before["definitions"][format!("{META}DeleteOptions")].clone();
    options[KINDS] = json!([{"group": "wardle.example.com", "kind": "DeleteOptions", "version": "v1alpha1"}]);
    let reference = |name: &str| json!({"$ref": format!("#/definitions/{name}")});
    let takes =
        |name: &str| json!({"post": {"parameters": [{"in": "body", "name": "body", "schema": reference(name)}]}});
    let whole = json!({
        "swagger": "2.0",
        "paths": {
            "/apis/wardle.example.com/v1alpha1/flunders": takes("Flunder"),
            "/apis/wardle.example.com/v1alpha1/options": takes(&format!("{META}DeleteOptions")),
            "/apis/other.example.com/v1/things": takes("Thing"),
        },
        "definitions": {
            "Flunder": {"properties": {"metadata": reference(&format!("{META}ObjectMeta"))}},
            "Thing": {},
            format!("{META}ObjectMeta"): {"type": "object", "description": "another one"},
            format!("{META}DeleteOptions"): options,
        },
    });
    let server = documented(whole, true).await;
    register(&api, &server).await;
    let path = "apis/wardle.example.com/v1alpha1";
    let listed = until(&api, "/openapi/v3", |answer| !answer.json()["paths"][path].is_null()).await;
    let url = format!("/openapi/v3/{path}?hash=ONE");
    assert_eq!(listed.json()["paths"][path]["serverRelativeURL"], url);
    assert_eq!(listed.json()["paths"]["apis/apps/v1"], index["paths"]["apis/apps/v1"]);
    assert_eq!(api.get(&url).await.json()["path"], url);
    assert_eq!(api.get("/openapi/v3/apis/apps/v1").await.json()["path"], Value::Null);
    let merged = api.get("/openapi/v2").await.json();
    assert_eq!(merged["paths"]["/apis/other.example.com/v1/things"], Value::Null);
    let schema = "/post/parameters/0/schema/$ref";
    let flunders = &merged["paths"]["/apis/wardle.example.com/v1alpha1/flunders"];
    assert_eq!(flunders.pointer(schema), Some(&json!("#/definitions/Flunder")));
    let definitions = &merged["definitions"];
    assert_eq!(
        definitions["Flunder"]["properties"]["metadata"],
        reference(&format!("{META}ObjectMeta_v2"))
    );
    assert_eq!(
        definitions[format!("{META}ObjectMeta_v2")]["description"],
        "another one"
    );
    let name = format!("{META}ObjectMeta");
    assert_eq!(definitions[&name], before["definitions"][&name]);
    assert_eq!(definitions["Thing"], Value::Null);
    let options = &definitions[format!("{META}DeleteOptions")][KINDS];
    assert!(
        options
            .as_array()
            .unwrap()
            .iter()
            .any(|kind| kind["group"] == "wardle.example.com")
    );
    assert!(options.as_array().unwrap().iter().any(|kind| kind["group"] == "apps"));
    let asked = server.asked.lock().unwrap().clone();
    let whole = asked.iter().find(|request| request["path"] == "/openapi/v2").unwrap();
    assert_eq!(whole["headers"]["x-remote-user"], "system:aggregator");
    assert_eq!(api.delete(OWN, "").await.code, 200);
    assert_eq!(api.get("/openapi/v3").await.json(), index);
    assert_eq!(api.get(&url).await.code, 404);
    assert_eq!(api.get("/openapi/v2").await.json(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_server_without_openapi_v3_that_is_made_of_v2() {
    let (api, _healing) = start().await;
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let schema = json!({"$ref": "#/definitions/Flunder"});
    let server = documented(
        json!({
            "swagger": "2.0",
            "paths": {"/apis/wardle.example.com/v1alpha1/flunders": {
                "parameters": [{"$ref": "#/parameters/pretty-1"}],
                "post": {
                    "operationId": "create", "consumes": ["application/json"], "produces": ["application/yaml"],
                    "parameters": [{"in": "body", "name": "body", "required": true, "schema": schema}],
                    "responses": {"201": {"description": "Created", "schema": schema}},
                },
            }},
            "parameters": {"pretty-1": {"in": "query", "name": "pretty", "type": "string", "uniqueItems": true}},
            "definitions": {
                "Flunder": {"type": "object", "properties": {
                    "metadata": {"description": "Its metadata", "$ref": format!("#/definitions/{meta}")},
                }},
                meta: {"type": "object"},
            },
        }),
        false,
    )
    .await;
    register(&api, &server).await;
    let path = "apis/wardle.example.com/v1alpha1";
    let listed = until(&api, "/openapi/v3", |answer| !answer.json()["paths"][path].is_null()).await;
    let url = listed.json()["paths"][path]["serverRelativeURL"]
        .as_str()
        .unwrap()
        .to_owned();
    let document = api.get(&url).await;
    assert_eq!(document.code, 200, "{url}: {}", document.text());
    let document = document.json();
    let of = json!({"schema": {"$ref": "#/components/schemas/Flunder"}});
    assert_eq!(
        document["paths"]["/apis/wardle.example.com/v1alpha1/flunders"],
        json!({
            "parameters": [{"in": "query", "name": "pretty", "schema": {"type": "string", "uniqueItems": true}}],
            "post": {
                "operationId": "create",
                "requestBody": {"content": {"application/json": of}},
                "responses": {"201": {"description": "Created", "content": {"application/yaml": of}}},
            },
        })
    );
    assert_eq!(
        document["components"]["schemas"]["Flunder"]["properties"]["metadata"],
        json!({"description": "Its metadata", "allOf": [{"$ref": format!("#/components/schemas/{meta}")}]})
    );
    let accept = [("accept", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")];
    let protobuf = api.request(Method::GET, &url, &accept, Body::empty()).await;
    assert!(protobuf.code == 200 && protobuf.bytes.len() > 100, "{}", protobuf.code);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_come_in_the_order_of_their_priorities() {
    let (api, _healing) = start().await;
    let names = async |api: &Api| -> Vec<String> {
        let groups = api.get("/apis").await.json();
        let groups = groups["groups"].as_array().unwrap().iter();
        groups.map(|group| group["name"].as_str().unwrap().to_owned()).collect()
    };
    let own = names(&api).await;
    assert_eq!(own[..3], ["apiregistration.k8s.io", "apps", "events.k8s.io"]);
    assert_eq!(own.last().unwrap(), "metrics.k8s.io");
    let definition = json!({"metadata": {"name": "flunders.a.example.com"}, "spec": {
        "group": "a.example.com", "scope": "Namespaced", "names": {"plural": "flunders", "kind": "Flunder"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
    }});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(api.post(path, &definition).await.code, 201);
    let server = server().await;
    register(&api, &server).await;
    // kubectl takes the first one's flunders.
    let all = names(&api).await;
    assert_eq!(
        all[own.len() - 1..],
        ["wardle.example.com", "a.example.com", "metrics.k8s.io"]
    );
}
