//! Authentication: tokens of service accounts and of joining nodes, reviews, and impersonation.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::support::{Answer, Api, START, collect, pod};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use controlplane_server::authn::identity::User;
use http::{Request, StatusCode};
use serde_json::{Value, json};

const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/robot/token";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

async fn start() -> Api {
    let api = Api::start().await;
    api.account("default", "robot").await;
    api
}

fn request(spec: &Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

async fn token(api: &Api, spec: &Value) -> String {
    let answer = api.post(TOKENS, &request(spec)).await;
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    answer.json()["status"]["token"].as_str().unwrap().to_owned()
}

fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// A pod of the account `robot`; its uid.
async fn robot(api: &Api, name: &str) -> String {
    let mut body = pod(name);
    body["spec"]["serviceAccountName"] = "robot".into();
    let answer = api.post("/api/v1/namespaces/default/pods", &body).await;
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    answer.json()["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn bound_to(kind: &str, name: &str) -> Value {
    json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}})
}

#[tokio::test]
async fn a_token_says_who_its_bearer_is() {
    let api = Api::start_at_rest().await;
    api.account("default", "robot").await;
    let answer = api
        .post(TOKENS, &request(&json!({"expirationSeconds": 7200})))
        .await
        .json();
    assert_eq!(answer["metadata"]["name"], "robot");
    assert_eq!(answer["metadata"]["namespace"], "default");
    assert_eq!(
        answer["spec"]["audiences"],
        json!(["https://kubernetes.default.svc.cluster.local"])
    );
    assert_eq!(answer["status"]["expirationTimestamp"], "2026-01-02T05:04:05Z");
    let token = answer["status"]["token"].as_str().unwrap();
    let said = claims(token);
    let start: k8s_openapi::jiff::Timestamp = START.parse().unwrap();
    assert_eq!(said["iss"], "https://kubernetes.default.svc.cluster.local");
    assert_eq!(said["sub"], "system:serviceaccount:default:robot");
    assert_eq!(said["exp"], start.as_second() + 7200);
    assert_eq!(said["kubernetes.io"]["serviceaccount"]["name"], "robot");
    let uid = &said["kubernetes.io"]["serviceaccount"]["uid"];
    assert_eq!(answer["metadata"]["uid"], *uid);
    let mut former = request(&json!({}));
    former["metadata"]["uid"] = "1".into();
    let refused = api.post(TOKENS, &former).await;
    let because = format!(
        "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"robot\": the UID in the token request (1) \
         does not match the UID of the service account ({})",
        uid.as_str().unwrap()
    );
    assert_eq!((refused.code.as_u16(), refused.message()), (409, because));
    let user = api.whoami(token).await.unwrap();
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    assert_eq!(user["uid"], said["kubernetes.io"]["serviceaccount"]["uid"]);
    assert_eq!(
        user["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    let credential = format!("JTI={}", said["jti"].as_str().unwrap());
    assert_eq!(
        user["extra"],
        json!({"authentication.kubernetes.io/credential-id": [credential]})
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_its_time() {
    let api = start().await;
    let token = token(&api, &json!({"expirationSeconds": 600})).await;
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(api.whoami(&token).await.is_ok());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(api.whoami(&token).await.unwrap_err(), "Unauthorized");
    let review = api.post(REVIEWS, &json!({"spec": {"token": token}})).await.json();
    assert_eq!(
        review["status"],
        json!({"user": {}, "error": "[invalid bearer token, service account token has expired]"})
    );
}

#[tokio::test]
async fn a_token_is_taken_where_the_clock_is_behind_by_less_than_a_minute() {
    let behind = Arc::new(AtomicI64::new(0));
    let seconds = Arc::clone(&behind);
    let api = Api::start_with(|mut options| {
        options.clock = Arc::new(move || {
            let start: k8s_openapi::jiff::Timestamp = START.parse().unwrap();
            start - k8s_openapi::jiff::SignedDuration::from_secs(seconds.load(Ordering::Relaxed))
        });
        options
    })
    .await;
    api.account("default", "robot").await;
    let token = token(&api, &json!({})).await;
    behind.store(60, Ordering::Relaxed);
    assert!(api.whoami(&token).await.is_ok());
    behind.store(61, Ordering::Relaxed);
    assert_eq!(api.whoami(&token).await.unwrap_err(), "Unauthorized");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_upstreams_words() {
    let api = start().await;
    robot(&api, "own").await;
    let other = api.post("/api/v1/namespaces/default/pods", &pod("other")).await;
    assert_eq!(other.code, StatusCode::CREATED, "{}", other.text());
    for (spec, code, message) in [
        (
            json!({"expirationSeconds": 599}),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not \
             specify a duration less than 10 minutes",
        ),
        (
            json!({"expirationSeconds": 4_294_967_297_i64}),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may \
             not specify a duration larger than 2^32 seconds",
        ),
        (bound_to("Pod", "nothing"), 404, "pods \"nothing\" not found"),
        (
            bound_to("Pod", "other"),
            400,
            "cannot bind token for serviceaccount \"robot\" to pod running with different serviceaccount name.",
        ),
        (
            bound_to("ConfigMap", "own"),
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "own", "uid": "x"}}),
            409,
            "Operation cannot be fulfilled on Pod \"own\": the UID in the bound object reference (x) does not match the \
             UID in record. The object might have been deleted and then recreated",
        ),
    ] {
        let answer = api.post(TOKENS, &request(&spec)).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message().as_str()),
            (code, message),
            "{spec}"
        );
    }
    let absent = api
        .post(
            "/api/v1/namespaces/default/serviceaccounts/nobody/token",
            &request(&json!({})),
        )
        .await;
    assert_eq!(absent.message(), "serviceaccounts \"nobody\" not found");
}

#[tokio::test]
async fn a_token_goes_with_what_it_is_bound_to() {
    let api = start().await;
    let uid = robot(&api, "p").await;
    let bound = token(&api, &bound_to("Pod", "p")).await;
    let user = api.whoami(&bound).await.unwrap();
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-uid"], json!([uid]));
    // A change of the pod is no matter.
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    api.patch("/api/v1/namespaces/default/pods/p", "merge-patch+json", &labels)
        .await;
    assert!(api.whoami(&bound).await.is_ok());
    let options = r#"{"gracePeriodSeconds": 0}"#;
    api.delete("/api/v1/namespaces/default/pods/p", options).await;
    assert!(api.whoami(&bound).await.is_err(), "without its pod");
    robot(&api, "p").await;
    assert!(api.whoami(&bound).await.is_err(), "with another pod of that name");

    let free = token(&api, &json!({})).await;
    assert!(api.whoami(&free).await.is_ok());
    api.delete("/api/v1/namespaces/default/serviceaccounts/robot", "").await;
    assert!(api.whoami(&free).await.is_err(), "without its account");
    api.account("default", "robot").await;
    assert!(api.whoami(&free).await.is_err(), "with another account of that name");
}

#[tokio::test]
async fn an_annotation_is_no_uid() {
    let api = start().await;
    let uid = robot(&api, "p").await;
    let bound = token(&api, &bound_to("Pod", "p")).await;
    api.delete("/api/v1/namespaces/default/pods/p", r#"{"gracePeriodSeconds": 0}"#)
        .await;
    let mut body = pod("p");
    body["spec"]["serviceAccountName"] = "robot".into();
    body["metadata"]["annotations"] = json!({"uid": uid});
    let made = api.post("/api/v1/namespaces/default/pods", &body).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    assert!(api.whoami(&bound).await.is_err());
}

#[tokio::test]
async fn tokens_for_others_and_forged_ones_are_refused() {
    let (api, elsewhere) = (start().await, start().await);
    let other = token(&api, &json!({"audiences": ["vault"]})).await;
    let good = token(&api, &json!({})).await;
    let parts: Vec<&str> = good.split('.').collect();
    let mut forged = claims(&good);
    forged["sub"] = "system:serviceaccount:kube-system:default".into();
    let forged = URL_SAFE_NO_PAD.encode(forged.to_string());
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    for bad in [
        other.clone(),
        token(&elsewhere, &json!({})).await,
        format!("{}.{forged}.{}", parts[0], parts[2]),
        format!("{none}.{}.", parts[1]),
        "nonsense".to_owned(),
    ] {
        assert_eq!(api.whoami(&bad).await.unwrap_err(), "Unauthorized", "{bad}");
    }
    let review = json!({"spec": {"token": other, "audiences": ["vault", "elsewhere"]}});
    let review = api.post(REVIEWS, &review).await.json();
    assert_eq!(review["status"]["authenticated"], true);
    assert_eq!(review["status"]["audiences"], json!(["vault"]));
    assert_eq!(
        review["status"]["user"]["username"],
        "system:serviceaccount:default:robot"
    );
    let review = api.post(REVIEWS, &json!({"spec": {"token": other}})).await.json();
    assert_eq!(review["status"]["authenticated"], Value::Null);
    assert!(
        review["status"]["error"]
            .as_str()
            .unwrap()
            .contains("token audiences [\"vault\"] is invalid")
    );
    assert_eq!(
        api.post(REVIEWS, &json!({"spec": {"token": ""}})).await.code.as_u16(),
        400
    );
}

#[tokio::test(start_paused = true)]
async fn a_mounted_token_outlives_its_promise_for_clients_that_do_not_read_it_again() {
    let api = start().await;
    robot(&api, "p").await;
    let mut spec = bound_to("Pod", "p");
    spec["expirationSeconds"] = 3607.into();
    let answer = api.post(TOKENS, &request(&spec)).await.json();
    assert_eq!(answer["status"]["expirationTimestamp"], "2026-01-02T04:04:12Z");
    let token = answer["status"]["token"].as_str().unwrap();
    tokio::time::advance(Duration::from_hours(24)).await;
    assert!(api.whoami(token).await.is_ok());
    tokio::time::advance(Duration::from_hours(24 * 365)).await;
    assert!(api.whoami(token).await.is_err());
}

#[tokio::test]
async fn attack_22_a_node_gets_tokens_of_its_own_pods_only() {
    let api = start().await;
    let uid = robot(&api, "p").await;
    let bind = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let bound = api.post("/api/v1/namespaces/default/pods/p/binding", &bind).await;
    assert_eq!(bound.code, StatusCode::CREATED, "{}", bound.text());
    let ask = async |node: &str, spec: Value| -> Answer {
        let request = Request::post(TOKENS)
            .header("content-type", "application/json")
            .body(request(&spec).to_string().into())
            .unwrap();
        let user = User::new(format!("system:node:{node}"), ["system:nodes"]);
        collect(api.send_as(user, request).await).await
    };
    let own = |uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid}});
    let with = |mut spec: Value, name: &str, value: Value| {
        spec[name] = value;
        spec
    };
    for (node, spec, because) in [
        ("n1", json!({}), "node requested token not bound to a pod"),
        (
            "n1",
            bound_to("Pod", "p"),
            "node requested token with a pod binding without a uid",
        ),
        (
            "n2",
            own(&uid),
            "no relationship found between node 'n2' and this object",
        ),
        (
            "n1",
            own("x"),
            "the UID in the bound object reference (x) does not match",
        ),
        (
            "n1",
            with(own(&uid), "audiences", json!(["vault"])),
            "audience \"vault\" not found in pod spec volume, system:node:n1 is not authorized to request tokens for \
             this audience",
        ),
        (
            "n1",
            with(own(&uid), "audiences", json!(["a", "b"])),
            "node may only request 0 or 1 audiences",
        ),
    ] {
        let answer = ask(node, spec).await;
        assert_eq!(answer.code.as_u16(), 403, "{because}: {}", answer.text());
        assert!(answer.message().contains(because), "{}", answer.message());
    }
}

#[tokio::test]
async fn a_node_gets_tokens_for_the_drivers_of_its_pods() {
    let api = start().await;
    let audiences = json!([{"audience": "vault"}, {"audience": ""}]);
    let driver = json!({"metadata": {"name": "disk.example.com"}, "spec": {"tokenRequests": audiences}});
    let volume = json!({"metadata": {"name": "v"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "csi": {"driver": "disk.example.com", "volumeHandle": "v"},
    }});
    let claim = json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v",
    }});
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "serviceAccountName": "robot", "nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
    }});
    let mut uid = String::new();
    for (path, object) in [
        ("/apis/storage.k8s.io/v1/csidrivers", driver),
        ("/api/v1/persistentvolumes", volume),
        ("/api/v1/namespaces/default/persistentvolumeclaims", claim),
        ("/api/v1/namespaces/default/pods", pod),
    ] {
        let made = api.post(path, &object).await;
        assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
        made.json()["metadata"]["uid"].as_str().unwrap().clone_into(&mut uid);
    }
    // A kubelet asks for the server's own audience by none.
    for (audiences, code) in [(json!(["vault"]), 201), (json!([]), 201), (json!(["elsewhere"]), 403)] {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid});
        let spec = json!({"boundObjectRef": bound, "audiences": audiences});
        let asked = Request::post(TOKENS)
            .header("content-type", "application/json")
            .body(request(&spec).to_string().into())
            .unwrap();
        let user = User::new("system:node:n1", ["system:nodes"]);
        let answer = collect(api.send_as(user, asked).await).await;
        assert_eq!(answer.code.as_u16(), code, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_token_in_a_secret_lives_as_long_as_the_secret_holds_it() {
    let api = start().await;
    let uid = api.get("/api/v1/namespaces/default/serviceaccounts/robot").await.json()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let token = api.key.secret_token("default", "robot", &uid, "kept").unwrap();
    assert!(api.whoami(&token).await.is_err(), "no Secret holds it");
    let body = json!({"metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token", "data": {"token": STANDARD.encode(&token)}});
    let made = api.post("/api/v1/namespaces/default/secrets", &body).await;
    assert_eq!(made.code, StatusCode::CREATED, "{}", made.text());
    assert_eq!(
        api.whoami(&token).await.unwrap()["username"],
        "system:serviceaccount:default:robot"
    );
    let other = json!({"data": {"token": STANDARD.encode("something else")}});
    api.patch("/api/v1/namespaces/default/secrets/kept", "merge-patch+json", &other)
        .await;
    assert!(api.whoami(&token).await.is_err());
}
