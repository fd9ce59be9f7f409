//! exec, attach, portforward and proxies, as far as the API server handles them: requests to
//! agents.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::support::rights::{as_user, binding, give, jane, role, user};
use crate::support::{Answer as Answered, Api, Kept, pod};
use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use controlplane_server::node::agents::{Agent, AgentError, Agents, Answer};
use controlplane_server::ops::audit::Sink;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PODS: &str = "/api/v1/namespaces/default/pods";
const UPGRADE: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ("authorization", "Bearer secret"),
];

/// Connection to a backend that records when it is dropped.
struct Back(Arc<AtomicBool>);

impl Drop for Back {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl AsyncRead for Back {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Back {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Agent that records its requests.
#[derive(Clone, Default)]
struct Recorder {
    asked: Arc<Mutex<Vec<String>>>,
    protocols: Arc<Mutex<Vec<String>>>,
    switches: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
}

impl Agents for Recorder {
    fn ask(&self, agent: Agent, request: Request<Body>) -> BoxFuture<'static, Result<Answer, AgentError>> {
        let mut names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        let line = format!(
            "{} {} {} [{}]",
            agent.node,
            request.method(),
            request.uri(),
            names.join(" ")
        );
        self.asked.lock().unwrap().push(line);
        let protocols = request.headers().get_all("sec-websocket-protocol").iter();
        let protocols = protocols.map(|value| value.to_str().unwrap().to_owned());
        self.protocols.lock().unwrap().extend(protocols);
        let answer = if self.switches.load(Ordering::Relaxed) {
            let head = Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .body(())
                .unwrap()
                .into_parts()
                .0;
            Answer::Switched(head, Box::new(Back(Arc::clone(&self.closed))))
        } else {
            let body = Body::from("container not found (\"c\")");
            Answer::Whole(
                Response::builder()
                    .status(StatusCode::INTERNAL_SERVER_ERROR)
                    .body(body)
                    .unwrap(),
            )
        };
        Box::pin(async move { Ok(answer) })
    }
}

async fn with_pod() -> (Api, Recorder) {
    with_pod_and(None).await
}

async fn with_pod_and(audit: Option<Arc<dyn Sink>>) -> (Api, Recorder) {
    let recorder = Recorder::default();
    let agents = Arc::new(recorder.clone());
    let api = Api::start_with(|mut options| {
        options.agents = Some(agents);
        options.audit = audit;
        options
    })
    .await;
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    api.post("/api/v1/nodes", &node).await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
    let mut two = pod("a");
    two["spec"]["containers"] = json!([{"name": "c", "image": "x"}, {"name": "d", "image": "x"}]);
    api.post(PODS, &two).await;
    (api, recorder)
}

async fn bind(api: &Api) {
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding).await;
}

#[tokio::test]
async fn attack_a_proxied_document_learns_no_session_and_has_no_origin() {
    let (api, recorder) = with_pod().await;
    let path = "/api/v1/nodes/n1/proxy/metrics";
    let policy = |answer: &Answered| answer.headers.get("content-security-policy").cloned();
    // The certificate's user, whose browser has a session of the page besides.
    let shown = api
        .request(Method::GET, path, &[("cookie", "__Host-skiff=secret")], "")
        .await;
    let told = policy(&shown).expect("a document is sandboxed");
    let told = told.to_str().unwrap();
    assert!(
        told.starts_with("sandbox") && !told.contains("allow-same-origin"),
        "{told}"
    );
    let asked = recorder.asked.lock().unwrap().pop().unwrap();
    assert!(asked.contains("/metrics") && !asked.contains("cookie"), "{asked}");
    for headers in [vec![], vec![("cookie", "theme=dark")]] {
        let plain = api.request(Method::GET, path, &headers, "").await;
        assert_eq!(policy(&plain), None, "{headers:?}");
    }
}

#[tokio::test]
async fn attack_a_document_is_confined_where_the_browser_may_hide_a_session() {
    let (api, _recorder) = with_pod().await;
    let path = "/api/v1/nodes/n1/proxy/metrics";
    let everybody = json!([{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["*"]}]);
    give(&api, "", "clusterroles", &role("ClusterRole", "open", &everybody)).await;
    let subject = json!({"kind": "User", "name": "system:anonymous"});
    let bound = binding("ClusterRoleBinding", "open", "ClusterRole/open", &subject);
    give(&api, "", "clusterrolebindings", &bound).await;
    let own = ("sec-fetch-site", "none");
    let other = ("sec-fetch-site", "cross-site");
    let (document, frame, image) = (
        ("sec-fetch-dest", "document"),
        ("sec-fetch-dest", "iframe"),
        ("sec-fetch-dest", "image"),
    );
    let forwarded = ("x-forwarded-for", "127.0.0.1");
    let cases = [
        // Before the login, or by another site's form or frame.
        (true, vec![own, document], true),
        (true, vec![other, frame], true),
        (true, vec![other, document, forwarded], true),
        (true, vec![other, image], false),
        (true, vec![], false),
        // The browser has a certificate.
        (false, vec![other, document], true),
        (false, vec![own, document], false),
        // `kubectl proxy` has another origin.
        (false, vec![other, document, forwarded], false),
    ];
    for (anonymous, headers, confined) in cases {
        let answer = if anonymous {
            api.outside(Method::GET, path, &headers, &Value::Null).await
        } else {
            api.request(Method::GET, path, &headers, "").await
        };
        assert!(![401, 403].contains(&answer.code.as_u16()), "{}", answer.text());
        let told = answer.headers.contains_key("content-security-policy");
        assert_eq!(told, confined, "{headers:?} of {anonymous}");
    }
}

#[tokio::test]
async fn what_a_client_asks_for_comes_to_the_agent() {
    let (api, recorder) = with_pod().await;
    let refused = async |path: &str, headers: &[(&str, &str)]| {
        let answer = api.request(Method::POST, path, headers, "").await;
        (answer.code.as_u16(), answer.message())
    };
    let exec =
        format!("{PODS}/a/exec?container=c&command=sh&command=-c&command=echo%20%26%3D%C3%A9&stdout=true&stdin=true");
    assert_eq!(
        refused(&exec, &UPGRADE).await,
        (400, "pod a does not have a host assigned".to_owned())
    );
    bind(&api).await;
    assert_eq!(refused(&exec, &[]).await, (400, "Upgrade request required".to_owned()));
    assert_eq!(
        refused(&format!("{PODS}/a/exec?command=ls"), &UPGRADE).await,
        (
            400,
            "a container name must be specified for pod a, choose one of: [c d]".to_owned()
        )
    );
    assert_eq!(
        refused(&format!("{PODS}/a/attach?container=z"), &UPGRADE).await,
        (400, "container z is not valid for pod a".to_owned())
    );
    assert_eq!(
        refused(&format!("{PODS}/b/portforward"), &UPGRADE).await,
        (404, "pods \"b\" not found".to_owned())
    );
    assert_eq!(recorder.asked.lock().unwrap().len(), 0);
    for path in [
        exec,
        format!("{PODS}/a/attach?container=d&stderr=1&tty=true"),
        format!("{PODS}/a/portforward?ports=80&ports=81"),
    ] {
        let answer = api.request(Method::POST, &path, &UPGRADE, "").await;
        // The agent's own message, not a Status.
        assert_eq!(
            (answer.code.as_u16(), answer.text().as_str()),
            (500, "container not found (\"c\")")
        );
    }
    let headers = "[connection sec-websocket-protocol upgrade]";
    assert_eq!(
        *recorder.asked.lock().unwrap(),
        [
            format!(
                "n1 POST /exec/default/a/c?input=1&output=1&command=sh&command=-c&command=echo%20%26%3D%C3%A9& {headers}"
            ),
            format!("n1 POST /attach/default/a/d?error=1&tty=1& {headers}"),
            format!("n1 POST /portForward/default/a?port=80&port=81& {headers}"),
        ]
    );
}

#[tokio::test]
async fn attack_27_a_failed_upgrade_closes_the_back_end() {
    let (api, recorder) = with_pod().await;
    bind(&api).await;
    recorder.switches.store(true, Ordering::Relaxed);
    // Not a connection that could be upgraded, as over HTTP/2.
    let path = format!("{PODS}/a/exec?container=c&command=ls&stdout=true");
    let answer = api.request(Method::GET, &path, &UPGRADE, "").await;
    assert_eq!(
        (answer.code, answer.message().as_str()),
        (StatusCode::BAD_REQUEST, "this connection cannot be upgraded")
    );
    assert!(
        recorder.closed.load(Ordering::Relaxed),
        "the back end's connection is left open"
    );
    // A client that does not ask to switch gets no connection at all.
    let before = recorder.asked.lock().unwrap().len();
    let answer = api.get(&path).await;
    assert_eq!(answer.message(), "Upgrade request required");
    assert_eq!(recorder.asked.lock().unwrap().len(), before);
}

#[tokio::test]
async fn attack_27_a_proxy_reaches_pods_and_agents_alone() {
    let (api, recorder) = with_pod().await;
    let said = async |path: &str| {
        let answer = api.get(path).await;
        (answer.code.as_u16(), answer.message())
    };
    let pods = |rest: &str| format!("{PODS}/{rest}");
    assert_eq!(
        said(&pods("a:80/proxy/x")).await,
        (400, "address not allowed".to_owned())
    );
    bind(&api).await;
    let status = json!({"status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}});
    api.patch(&pods("a/status"), "merge-patch+json", &status).await;
    assert_eq!(
        said(&pods("ftp:a:80/proxy/x")).await.1,
        "invalid pod request \"ftp:a:80\""
    );
    for (port, because) in [
        ("99999", "dial tcp: address 99999: invalid port"),
        ("web", "dial tcp: lookup tcp/web: unknown port"),
    ] {
        let wanted = (503, format!("error trying to reach service: {because}"));
        assert_eq!(said(&pods(&format!("a:{port}/proxy/x"))).await, wanted);
        assert_eq!(said(&format!("/api/v1/nodes/n1:{port}/proxy/x")).await, wanted);
    }
    assert_eq!(
        said(&pods("a:8080/proxy/x")).await,
        (
            503,
            "error trying to reach service: container not found (\"c\")".to_owned()
        )
    );
    said("/api/v1/nodes/n1:9100/proxy/metrics").await;
    api.get("/api/v1/nodes/https:n1:10250/proxy/healthz").await;
    let answer = api.get(&pods("a:8080/proxy")).await;
    assert_eq!(
        (answer.code.as_u16(), answer.headers["location"].to_str().unwrap()),
        (301, "/api/v1/namespaces/default/pods/a:8080/proxy/")
    );
    api.get("/api/v1/nodes/n1/proxy/logs/?q=1").await;
    // The path is decoded and encoded again, as by Go.
    api.get("/api/v1/nodes/n1/proxy/a%2Fb%20c^").await;
    api.get("/api/v1/nodes/n1/proxy/a/./b/%2E%2E/c//d!/").await;
    assert_eq!(
        *recorder.asked.lock().unwrap(),
        [
            "n1 GET /dial/default/a/8080 [connection upgrade]",
            "n1 GET /dial/9100 [connection upgrade]",
            "n1 GET /healthz [host x-forwarded-uri]",
            "n1 GET /logs/?q=1 [host x-forwarded-uri]",
            "n1 GET /a/b%20c%5E [host x-forwarded-uri]",
            "n1 GET /a/c/d%21/ [host x-forwarded-uri]"
        ]
    );
}

fn streams(verb: &str) -> Value {
    json!([{"apiGroups": [""], "resources": ["pods", "pods/exec"], "verbs": [verb]}])
}

#[tokio::test]
async fn opening_a_stream_by_get_needs_what_opening_it_by_post_does() {
    let (api, recorder) = with_pod().await;
    bind(&api).await;
    give(&api, "default", "roles", &role("Role", "reader", &streams("get"))).await;
    let bound = binding("RoleBinding", "reader", "Role/reader", &user("jane"));
    give(&api, "default", "rolebindings", &bound).await;
    let path = format!("{PODS}/a/exec?container=c&command=ls&stdout=true");
    let answer = as_user(&api, &jane(), "GET", &path, &Value::Null).await;
    assert_eq!(
        (answer.code.as_u16(), answer.message().as_str()),
        (
            403,
            "pods \"a\" is forbidden: User \"jane\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \
             \"default\""
        )
    );
    assert_eq!(recorder.asked.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn a_browser_shows_its_token_among_the_protocols() {
    let (api, recorder) = with_pod().await;
    bind(&api).await;
    let made = api
        .post("/api/v1/namespaces/default/serviceaccounts/default/token", &json!({}))
        .await
        .json();
    let encoded = URL_SAFE_NO_PAD.encode(made["status"]["token"].as_str().unwrap());
    let path = format!("{PODS}/a/exec?container=c&command=ls&stdout=true");
    let open = async |protocols: String| {
        let headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", protocols.as_str()),
        ];
        api.outside(Method::GET, &path, &headers, &Value::Null).await
    };
    let both = || format!("base64url.bearer.authorization.k8s.io.{encoded}, v5.channel.k8s.io");
    let refused = open(both()).await;
    assert_eq!(refused.code.as_u16(), 403);
    let who = "User \"system:serviceaccount:default:default\" cannot get resource \"pods/exec\"";
    assert!(refused.message().contains(who), "{}", refused.message());
    let rules = json!([{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}]);
    give(&api, "default", "roles", &role("Role", "shell", &rules)).await;
    let account = json!({"kind": "ServiceAccount", "name": "default", "namespace": "default"});
    let bound = binding("RoleBinding", "shell", "Role/shell", &account);
    give(&api, "default", "rolebindings", &bound).await;
    assert_eq!(open(both()).await.code.as_u16(), 500, "the agent's own answer");
    assert_eq!(
        *recorder.protocols.lock().unwrap(),
        ["v5.channel.k8s.io"],
        "the agent sees no token"
    );
    for wrong in [
        "base64url.bearer.authorization.k8s.io.eA, v5.channel.k8s.io",
        both().as_str(),
    ] {
        let wrong = wrong.trim_end_matches(", v5.channel.k8s.io").to_owned();
        assert_eq!(open(wrong).await.code.as_u16(), 401);
    }
}

#[tokio::test]
async fn what_lasts_is_recorded_when_it_begins_and_when_it_ends() {
    let kept = Arc::new(Kept::default());
    let (api, _recorder) = with_pod_and(Some(kept.clone())).await;
    bind(&api).await;
    kept.0.lock().unwrap().clear();
    api.get("/api/v1/nodes/n1/proxy/logs/").await;
    api.get(&format!("{PODS}/none/log")).await;
    assert_eq!(
        kept.brief(),
        [
            "get nodes/n1 500 ResponseStarted",
            "get nodes/n1 500 ResponseComplete",
            "get pods/none 404 ResponseComplete",
        ]
    );
}

#[tokio::test]
async fn who_watches_reaches_nothing_behind_a_pod() {
    let (api, recorder) = with_pod().await;
    bind(&api).await;
    let status = json!({"status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}});
    api.patch(&format!("{PODS}/a/status"), "merge-patch+json", &status)
        .await;
    let path = "/namespaces/default/pods/a/proxy/x";
    assert_eq!(
        api.get(&format!("/api/v1/watch{path}")).await.code,
        StatusCode::NOT_FOUND
    );
    assert_eq!(recorder.asked.lock().unwrap().len(), 0);
    api.get(&format!("/api/v1{path}")).await;
    assert_eq!(recorder.asked.lock().unwrap().len(), 1);
}
