//! Login of the page: rights of a browser session, and protection of it against other sites.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::rights::{binding, give, pods, role, user};
use crate::support::served::{LIFETIME, connect, serve_api};
use crate::support::{Answer, Api, Kept, config_map, pod};

const HOST: (&str, &str) = ("host", "cluster:6443");
const ORIGIN: (&str, &str) = ("origin", "https://cluster:6443");
const OWN: (&str, &str) = ("x-skiff-ui", "1");
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A browser, at most with a session's cookie.
struct Browser<'a> {
    api: &'a Api,
    cookie: String,
}

impl<'a> Browser<'a> {
    fn new(api: &'a Api) -> Self {
        let cookie = String::new();
        Self { api, cookie }
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut all = vec![HOST, ("cookie", self.cookie.as_str())];
        all.extend_from_slice(headers);
        self.api.outside(method, path, &all, body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[OWN], &Value::Null).await
    }

    /// The answer to a login; its cookie is kept.
    async fn login(&mut self, body: &Value) -> StatusCode {
        let answer = self.send(Method::POST, "/ui/login", &[OWN, ORIGIN], body).await;
        if let Some(cookie) = answer.headers.get("set-cookie") {
            let cookie = cookie.to_str().unwrap();
            assert!(cookie.ends_with("; HttpOnly; Secure; SameSite=Lax"), "{cookie}");
            cookie.split(';').next().unwrap().clone_into(&mut self.cookie);
        }
        answer.code
    }
}

async fn code(api: &Api) -> Value {
    let answer = api.post("/ui/codes", &Value::Null).await;
    assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
    json!({"code": answer.json()["code"]})
}

async fn logged_in(api: &Api) -> Browser<'_> {
    let mut browser = Browser::new(api);
    assert_eq!(browser.login(&code(api).await).await, StatusCode::CREATED);
    browser
}

#[tokio::test]
async fn a_link_logs_in_once_as_the_user_who_asked_for_it() {
    let api = Api::start().await;
    let link = code(&api).await;
    let mut browser = Browser::new(&api);
    assert_eq!(browser.login(&link).await, StatusCode::CREATED);
    let session = browser.get("/ui/session").await;
    assert_eq!(session.json()["user"], "kubernetes-admin");
    assert!(session.headers.contains_key("set-cookie"), "the cookie is renewed");
    assert_eq!(browser.get(PODS).await.code, StatusCode::OK);
    let mut thief = Browser::new(&api);
    assert_eq!(thief.login(&link).await, StatusCode::UNAUTHORIZED, "a used code");
    assert_eq!(thief.login(&json!({"code": "guessed"})).await, StatusCode::UNAUTHORIZED);
    assert_eq!(thief.login(&json!({})).await, StatusCode::UNAUTHORIZED);
    let nobody = api.outside(Method::POST, "/ui/codes", &[], &Value::Null).await;
    assert_eq!(nobody.code, StatusCode::UNAUTHORIZED);
    let endless = browser
        .send(Method::POST, "/ui/codes", &[OWN, ORIGIN], &Value::Null)
        .await;
    assert_eq!(
        endless.code,
        StatusCode::UNAUTHORIZED,
        "a session that renews itself by codes"
    );
}

#[tokio::test(start_paused = true)]
async fn codes_and_sessions_end() {
    let api = Api::start().await;
    let link = code(&api).await;
    let browser = logged_in(&api).await;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(
        Browser::new(&api).login(&link).await,
        StatusCode::UNAUTHORIZED,
        "an old code"
    );
    assert_eq!(browser.get(PODS).await.code, StatusCode::OK);
    tokio::time::advance(Duration::from_mins(31)).await;
    assert_eq!(
        browser.get(PODS).await.code,
        StatusCode::UNAUTHORIZED,
        "an idle session"
    );
    let browser = logged_in(&api).await;
    let left = browser
        .send(Method::POST, "/ui/logout", &[OWN, ORIGIN], &Value::Null)
        .await;
    assert_eq!(left.code, StatusCode::OK);
    assert_eq!(
        browser.get(PODS).await.code,
        StatusCode::UNAUTHORIZED,
        "a session that was left"
    );
}

#[tokio::test]
async fn a_session_by_token_lives_as_long_as_the_token() {
    let api = Api::start().await;
    let account = api.account("default", "robot").await;
    let path = "/api/v1/namespaces/default/serviceaccounts/robot";
    let made = api.post(&format!("{path}/token"), &json!({"spec": {}})).await.json();
    let token = made["status"]["token"].as_str().unwrap();
    let mut browser = Browser::new(&api);
    assert_eq!(
        browser.login(&json!({"token": format!("{token}x")})).await,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(browser.login(&json!({ "token": token })).await, StatusCode::CREATED);
    let session = browser.get("/ui/session").await.json();
    assert_eq!(session["user"], "system:serviceaccount:default:robot", "{account}");
    let refused = browser.get("/api/v1/nodes").await;
    assert_eq!(refused.code, StatusCode::FORBIDDEN);
    assert!(
        refused.message().contains("cannot list resource \"nodes\""),
        "{}",
        refused.message()
    );
    let header = format!("Bearer {token}");
    let link = api
        .outside(Method::POST, "/ui/codes", &[("authorization", &header)], &Value::Null)
        .await;
    let mut linked = Browser::new(&api);
    assert_eq!(
        linked.login(&json!({"code": link.json()["code"]})).await,
        StatusCode::CREATED
    );
    api.delete(path, "").await;
    for browser in [&browser, &linked] {
        assert_eq!(browser.get("/version").await.code, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn a_link_that_is_asked_for_as_somebody_else_is_of_that_user() {
    let api = Api::start().await;
    let jane = [("impersonate-user", "jane")];
    let link = api.request(Method::POST, "/ui/codes", &jane, "").await;
    let mut browser = Browser::new(&api);
    assert_eq!(
        browser.login(&json!({"code": link.json()["code"]})).await,
        StatusCode::CREATED
    );
    assert_eq!(browser.get("/ui/session").await.json()["user"], "jane");
    assert_eq!(browser.get(PODS).await.code, StatusCode::FORBIDDEN);
}

/// The session of who acts as jane by a service account's token.
async fn as_jane(api: &Api) -> (Browser<'_>, String) {
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let made = api.post(path, &json!({"spec": {}})).await.json();
    let bearer = format!("Bearer {}", made["status"]["token"].as_str().unwrap());
    let headers = [("authorization", bearer.as_str()), ("impersonate-user", "jane")];
    let link = api.outside(Method::POST, "/ui/codes", &headers, &Value::Null).await;
    let mut browser = Browser::new(api);
    if link.code == StatusCode::CREATED {
        let login = browser.login(&json!({"code": link.json()["code"]})).await;
        assert_eq!(login, StatusCode::CREATED);
    }
    (browser, link.text())
}

#[tokio::test]
async fn attack_a_session_as_somebody_else_lasts_as_long_as_the_right_to_it() {
    let kept = Arc::new(Kept::default());
    let api = Api::start_with(|mut options| {
        options.audit = Some(Arc::<Kept>::clone(&kept));
        options
    })
    .await;
    api.account("default", "robot").await;
    let (_, refused) = as_jane(&api).await;
    assert!(refused.contains("cannot impersonate"), "{refused}");
    let robot = user("system:serviceaccount:default:robot");
    let all = binding("ClusterRoleBinding", "all", "ClusterRole/cluster-admin", &robot);
    give(&api, "", "clusterrolebindings", &all).await;
    let (browser, _) = as_jane(&api).await;
    assert_eq!(browser.get("/ui/session").await.json()["user"], "jane");
    let other = [
        OWN,
        ("impersonate-user", "system:admin"),
        ("impersonate-group", "system:masters"),
    ];
    let refused = browser.send(Method::GET, PODS, &other, &Value::Null).await;
    assert_eq!(refused.code, StatusCode::FORBIDDEN);
    assert!(
        refused.message().contains("User \"jane\" cannot list"),
        "{}",
        refused.text()
    );
    let record = kept.0.lock().unwrap().last().cloned().unwrap();
    assert_eq!(record.user.name, "system:serviceaccount:default:robot");
    assert_eq!(record.impersonated.unwrap().name, "jane");

    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/all";
    api.delete(path, "").await;
    let refused = browser.get("/version").await;
    assert_eq!(refused.code, StatusCode::FORBIDDEN, "{}", refused.text());
    let left = browser
        .send(Method::POST, "/ui/logout", &[OWN, ORIGIN], &Value::Null)
        .await;
    assert_eq!(left.code, StatusCode::OK);

    give(&api, "", "clusterrolebindings", &all).await;
    let (browser, _) = as_jane(&api).await;
    assert_eq!(browser.get("/version").await.code, StatusCode::OK);
    api.delete("/api/v1/namespaces/default/serviceaccounts/robot", "").await;
    assert_eq!(
        browser.get("/version").await.code,
        StatusCode::UNAUTHORIZED,
        "the token has ended"
    );
}

#[tokio::test]
async fn a_session_by_a_bound_right_allows_what_that_is_bound_to() {
    let api = Api::start().await;
    api.account("default", "robot").await;
    let bound = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"]},
        {"nonResourceURLs": ["*"], "verbs": ["impersonate-on:user-info:post", "impersonate-on:user-info:get"]},
    ]);
    give(&api, "", "clusterroles", &role("ClusterRole", "bound", &bound)).await;
    let robot = user("system:serviceaccount:default:robot");
    let bound = binding("ClusterRoleBinding", "bound", "ClusterRole/bound", &robot);
    give(&api, "", "clusterrolebindings", &bound).await;
    give(&api, "", "clusterroles", &role("ClusterRole", "pods", &pods(&["list"]))).await;
    let jane = binding("ClusterRoleBinding", "pods", "ClusterRole/pods", &user("jane"));
    give(&api, "", "clusterrolebindings", &jane).await;
    let (browser, _) = as_jane(&api).await;
    assert_eq!(browser.get("/version").await.code, StatusCode::OK);
    let refused = browser.get(PODS).await;
    assert_eq!(refused.code, StatusCode::FORBIDDEN, "{}", refused.text());
    assert!(
        refused.message().contains("impersonate-on:user-info:list"),
        "{}",
        refused.message()
    );
}

#[tokio::test(start_paused = true)]
async fn attack_a_flood_of_logins_is_refused_before_it_is_checked() {
    let api = Api::start().await;
    let mut browser = Browser::new(&api);
    for _ in 0..20 {
        assert_eq!(
            browser.login(&json!({"token": "guessed"})).await,
            StatusCode::UNAUTHORIZED
        );
    }
    let link = code(&api).await;
    let answer = browser.send(Method::POST, "/ui/login", &[OWN, ORIGIN], &link).await;
    assert_eq!(answer.code, StatusCode::TOO_MANY_REQUESTS, "{}", answer.text());
    assert_eq!(answer.headers["retry-after"], "1");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(browser.login(&link).await, StatusCode::CREATED);
}

/// The clock of a server whose certificates are judged by the machine's own clock.
static AHEAD: AtomicI64 = AtomicI64::new(0);

#[tokio::test]
async fn a_session_by_certificate_ends_with_the_certificate() {
    let clock = || Timestamp::now() + SignedDuration::from_secs(AHEAD.load(Ordering::Relaxed));
    let api = Api::start_with(|mut options| {
        options.clock = Arc::new(clock);
        options
    })
    .await;
    let served = serve_api(api, |transport| transport).await;
    let (mut sender, _) = connect(&served).await;
    let request = Request::post("/ui/codes")
        .header("host", "localhost")
        .body(Body::empty())
        .unwrap();
    let link = sender
        .send_request(request)
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    let link: Value = serde_json::from_slice(&link).unwrap();
    let mut browser = Browser::new(&served.api);
    assert_eq!(
        browser.login(&json!({"code": link["code"]})).await,
        StatusCode::CREATED,
        "{link}"
    );
    let lifetime = i64::try_from(LIFETIME.as_secs()).unwrap();
    AHEAD.store(lifetime - 60, Ordering::Relaxed);
    assert_eq!(browser.get("/ui/session").await.json()["user"], "root");
    AHEAD.store(lifetime + 1, Ordering::Relaxed);
    assert_eq!(browser.get("/ui/session").await.code, StatusCode::UNAUTHORIZED);
    let page = browser.send(Method::GET, "/ui/", &[], &Value::Null).await;
    assert_eq!(page.bytes, Browser::new(&served.api).get("/ui/login.html").await.bytes);
}

#[tokio::test(start_paused = true)]
async fn a_session_by_token_ends_when_the_token_does() {
    let api = Api::start().await;
    api.account("default", "robot").await;
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let made = api
        .post(path, &json!({"spec": {"expirationSeconds": 600}}))
        .await
        .json();
    let mut browser = Browser::new(&api);
    assert_eq!(
        browser.login(&json!({"token": made["status"]["token"]})).await,
        StatusCode::CREATED,
        "{made}"
    );
    tokio::time::advance(Duration::from_secs(590)).await;
    assert_eq!(browser.get("/ui/session").await.code, StatusCode::OK);
    let script = async || browser.send(Method::GET, "/ui/app.js", &[], &Value::Null).await.code;
    assert_eq!(script().await, StatusCode::OK);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(browser.get("/ui/session").await.code, StatusCode::UNAUTHORIZED);
    assert_eq!(
        script().await,
        StatusCode::UNAUTHORIZED,
        "the login is shown instead of the page"
    );
}

#[tokio::test]
async fn attack_other_sites_can_do_nothing_with_a_session() {
    let api = Api::start().await;
    let browser = logged_in(&api).await;
    let evil = ("origin", "https://evil.example");
    let foreign = [
        vec![],
        vec![ORIGIN],
        vec![OWN],
        vec![evil],
        vec![OWN, evil],
        vec![OWN, ("origin", "null")],
    ];
    for headers in foreign {
        let answer = browser.send(Method::POST, PODS, &headers, &pod("planted")).await;
        assert_eq!(answer.code, StatusCode::UNAUTHORIZED, "{headers:?}");
    }
    for headers in [vec![], vec![ORIGIN], vec![OWN, evil]] {
        let answer = browser.send(Method::GET, PODS, &headers, &Value::Null).await;
        assert_eq!(answer.code, StatusCode::UNAUTHORIZED, "{headers:?}");
    }
    let path = format!("{PODS}/p/exec?command=sh&stdout=true");
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ];
    for origin in [
        None,
        Some(evil),
        Some(("origin", "https://cluster:6444")),
        Some(("origin", "http://cluster:6443")),
    ] {
        let headers: Vec<_> = upgrade.into_iter().chain(origin).collect();
        let answer = browser.send(Method::GET, &path, &headers, &Value::Null).await;
        assert_eq!(answer.code, StatusCode::UNAUTHORIZED, "{origin:?}");
    }
    let own: Vec<_> = upgrade.into_iter().chain([ORIGIN]).collect();
    let answer = browser.send(Method::GET, &path, &own, &Value::Null).await;
    assert_eq!(
        answer.code,
        StatusCode::NOT_FOUND,
        "there is no such pod, but it was asked for"
    );
    assert_eq!(
        browser.send(Method::POST, PODS, &[OWN, ORIGIN], &pod("own")).await.code,
        StatusCode::CREATED
    );
    let mut thief = Browser::new(&api);
    let link = code(&api).await;
    let answer = thief.send(Method::POST, "/ui/login", &[OWN, evil], &link).await;
    assert_eq!(answer.code, StatusCode::UNAUTHORIZED);
    assert_eq!(
        thief.login(&link).await,
        StatusCode::CREATED,
        "a refused site has not used the code"
    );
}

#[tokio::test]
async fn only_the_login_is_served_before_it_and_nothing_in_frames() {
    let api = Api::start().await;
    let nobody = Browser::new(&api);
    let page = nobody.send(Method::GET, "/ui/", &[], &Value::Null).await;
    assert_eq!(page.code, StatusCode::OK);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'self';",
        "style-src 'self';",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert_eq!(page.headers["referrer-policy"], "no-referrer");
    for name in ["login.js", "style.css"] {
        assert_eq!(nobody.get(&format!("/ui/{name}")).await.code, StatusCode::OK, "{name}");
    }
    for name in ["app.js", "index.html", "session", "writes/api/v1/pods"] {
        let code = nobody.get(&format!("/ui/{name}")).await.code;
        assert!(
            matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN),
            "{name}: {code}"
        );
    }
    let browser = logged_in(&api).await;
    let inside = browser.send(Method::GET, "/ui/", &[], &Value::Null).await;
    assert_ne!(inside.bytes, page.bytes);
    assert_eq!(browser.get("/ui/app.js").await.code, StatusCode::OK);
    assert_eq!(browser.get("/ui/other").await.code, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn times_of_writes_are_told_to_those_who_may_read() {
    let api = Api::start().await;
    let created = api
        .post(
            PODS,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        )
        .await
        .json();
    let name = created["metadata"]["name"].as_str().unwrap();
    let told = api.get(&format!("/ui/writes{PODS}")).await.json();
    let write = &told["writes"][0];
    assert_eq!(
        (&write["name"], &write["verb"]),
        (&json!(name), &json!("create")),
        "{told}"
    );
    assert!(write["received"].as_str() <= write["stored"].as_str(), "{told}");
    let one = api.get(&format!("/ui/writes{PODS}/{name}")).await.json();
    assert_eq!(one["writes"].as_array().unwrap().len(), 1);
    assert_eq!(
        api.get("/ui/writes/api/v1/namespaces/other/pods").await.json()["writes"],
        json!([])
    );
    let nobody = api
        .outside(Method::GET, &format!("/ui/writes{PODS}"), &[], &Value::Null)
        .await;
    assert_eq!(nobody.code, StatusCode::FORBIDDEN);
    let written = api.post(&format!("/ui/writes{PODS}"), &pod("p")).await;
    assert_eq!(written.code, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn attack_a_flood_of_writes_takes_no_others_times() {
    let api = Api::start().await;
    api.post(PODS, &pod("first")).await;
    for number in 0..2100 {
        api.post(
            "/api/v1/namespaces/default/configmaps",
            &config_map(&format!("m{number}")),
        )
        .await;
    }
    let told = api.get(&format!("/ui/writes{PODS}")).await.json();
    assert_eq!(told["writes"][0]["name"], "first", "{told}");
    let flood = api.get("/ui/writes/api/v1/configmaps").await.json();
    let flood = flood["writes"].as_array().unwrap();
    assert_eq!(flood.len(), 1024, "an answer is bounded");
    assert_eq!(flood[1023]["name"], "m2099", "the last ones are told");
}
