//! Logs, streams and proxies, with answers and failures of the node's agent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Api, pod};
use axum::body::Body;
use controlplane_server::authn::pki::{KUBELET_CLIENT, Pki, Profile};
use controlplane_server::node::agents::{Agent, AgentError, Agents, Answer, Within};
use controlplane_server::node::client::NodeProxy;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::net::TcpListener;

const PODS: &str = "/api/v1/namespaces/default/pods";
const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];

/// Agent that echoes requests and knows no pod named `unknown`.
struct Echo;

impl Agents for Echo {
    fn ask(&self, agent: Agent, request: Request<Body>) -> BoxFuture<'static, Result<Answer, AgentError>> {
        let text = format!("{} {}:{} {}", agent.node, agent.address, agent.port, request.uri());
        let code = if text.contains("/unknown/") { 404 } else { 200 };
        let answer = Response::builder().status(code).body(Body::from(text)).unwrap();
        Box::pin(async move { Ok(Answer::Whole(answer)) })
    }
}

#[tokio::test]
async fn logs_come_from_the_node() {
    let api = Api::start_with(|mut options| {
        options.agents = Some(Arc::new(Echo));
        options
    })
    .await;
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    api.post("/api/v1/nodes", &node).await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}}}});
    let answer = api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    let mut two = pod("a");
    two["spec"]["containers"] = json!([{"name": "c", "image": "x"}, {"name": "d", "image": "x"}]);
    api.post(PODS, &two).await;
    let path = format!("{PODS}/a/log");
    assert_eq!(
        api.get(&path).await.message(),
        "a container name must be specified for pod a, choose one of: [c d]"
    );
    assert_eq!(
        api.get(&format!("{path}?container=z")).await.message(),
        "container z is not valid for pod a"
    );
    assert_eq!(
        api.get(&format!("{path}?container=d")).await.text(),
        "",
        "no node, no output"
    );
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding).await;
    let answer = api
        .get(&format!("{path}?container=d&follow=true&tailLines=3&limitBytes=9"))
        .await;
    assert_eq!(
        answer.text(),
        "n1 10.0.0.1:10251 /containerLogs/default/a/d?follow=true&limitBytes=9&tailLines=3"
    );
    let answer = api.get(&format!("{path}?container=d&tailLines=-1")).await;
    assert_eq!(
        answer.message(),
        "PodLogOptions \"a\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"
    );
    assert_eq!(api.get(&format!("{PODS}/none/log")).await.code, 404);
    api.post(PODS, &pod("unknown")).await;
    let binding = json!({"metadata": {"name": "unknown"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/unknown/binding"), &binding).await;
    let answer = api.get(&format!("{PODS}/unknown/log")).await.json();
    assert_eq!(
        (&answer["message"], &answer["reason"], &answer["details"]),
        (
            &json!("the server could not find the requested resource ( pods/log unknown)"),
            &json!("NotFound"),
            &json!({"name": "unknown", "kind": "pods/log"})
        )
    );
}

#[tokio::test]
async fn one_output_alone_cannot_be_asked_for() {
    let api = Api::start().await;
    api.post(PODS, &pod("a")).await;
    for stream in ["Stdout", "All", ""] {
        let answer = api.get(&format!("{PODS}/a/log?stream={stream}")).await;
        assert_eq!(
            (answer.code.as_u16(), answer.message().as_str()),
            (
                422,
                "PodLogOptions \"a\" is invalid: stream: Forbidden: may not be specified"
            )
        );
    }
}

/// Starts a server with one node whose agent is at this address.
async fn with_agent_at(address: SocketAddr) -> (Api, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), Timestamp::now()).unwrap();
    let own = pki
        .issue(&Profile::client(KUBELET_CLIENT, &[]), Timestamp::now())
        .unwrap();
    let agents = Arc::new(NodeProxy::new(&pki, &own, true).unwrap());
    let api = Api::start_with(|mut options| {
        options.agents = Some(agents);
        options
    })
    .await;
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}, "spec": {}}))
        .await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address.ip()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}}}});
    api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
    api.post(PODS, &pod("a")).await;
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding).await;
    let status = json!({"status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}});
    api.patch(&format!("{PODS}/a/status"), "merge-patch+json", &status)
        .await;
    (api, directory)
}

/// Status, reason and message for clients that want another protocol, or not.
async fn said(api: &Api, path: &str, upgrade: bool) -> (u16, String, String) {
    let headers: &[(&str, &str)] = if upgrade { &UPGRADE } else { &[] };
    let answer = api.request(Method::GET, path, headers, "").await;
    let reason = answer.json()["reason"].as_str().unwrap_or_default().to_owned();
    (answer.code.as_u16(), reason, answer.message())
}

/// Checks the error of each request to an agent when the connection fails with this message.
async fn told_everywhere(api: &Api, address: SocketAddr, because: &str) {
    let plain = |message: String| (500, String::new(), message);
    let dialing = || plain(format!("error dialing backend: {because}"));
    for path in ["exec?command=ls&stdout=1", "attach?stdout=1", "portforward", "proxy/x"] {
        assert_eq!(said(api, &format!("{PODS}/a/{path}"), true).await, dialing(), "{path}");
    }
    assert_eq!(said(api, "/api/v1/nodes/n1/proxy/x", true).await, dialing());
    let log = format!("{PODS}/a/log?timestamps=true&tailLines=3&sinceTime=2026-01-02T03:04:05Z");
    let url = format!(
        "https://{address}/containerLogs/default/a/c?sinceTime=2026-01-02T03%3A04%3A05Z&tailLines=3&timestamps=true"
    );
    assert_eq!(said(api, &log, false).await, plain(format!("Get \"{url}\": {because}")));
    for path in ["/api/v1/nodes/n1/proxy/x".to_owned(), format!("{PODS}/a/proxy/x")] {
        let wanted = (
            503,
            "ServiceUnavailable".to_owned(),
            format!("error trying to reach service: {because}"),
        );
        assert_eq!(said(api, &path, false).await, wanted);
    }
}

#[tokio::test]
async fn an_agent_that_is_away_is_told_of_as_upstream_does() {
    // A port that is given back here may be another test's a moment later.
    let nobody = "127.0.0.1:1".parse().unwrap();
    let (api, _directory) = with_agent_at(nobody).await;
    told_everywhere(&api, nobody, &format!("dial tcp {nobody}: connect: connection refused")).await;
}

#[tokio::test]
async fn an_agent_that_hangs_up_is_told_of_as_upstream_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (api, _directory) = with_agent_at(address).await;
    let hang_up = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096])
                .await
                .unwrap();
        }
    };
    tokio::select! {
        () = told_everywhere(&api, address, "EOF") => {}
        () = hang_up => {}
    }
}

#[tokio::test]
async fn a_node_without_an_address_is_told_of_as_upstream_does() {
    let (api, _directory) = with_agent_at("127.0.0.1:1".parse().unwrap()).await;
    let status = json!({"status": {"addresses": null}});
    api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
    let wanted = "no preferred addresses found; known addresses: []".to_owned();
    assert_eq!(
        said(&api, &format!("{PODS}/a/log"), false).await,
        (500, String::new(), wanted)
    );
}

/// Loopback and similar addresses of nodes and pods are rejected.
#[tokio::test]
async fn attack_27_addresses_of_one_machine_alone_are_not_reached() {
    let (api, _directory) = with_agent_at("127.0.0.1:1".parse().unwrap()).await;
    let refused = (400, "BadRequest".to_owned(), "address not allowed".to_owned());
    for upgrade in [true, false] {
        assert_eq!(said(&api, "/api/v1/nodes/n1:22/proxy/x", upgrade).await, refused);
        assert_eq!(said(&api, "/api/v1/nodes/https:n1:22/proxy/x", upgrade).await, refused);
    }
    for address in ["127.0.0.1", "169.254.169.254", "::1"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        api.patch(&format!("{PODS}/a/status"), "merge-patch+json", &status)
            .await;
        assert_eq!(
            said(&api, &format!("{PODS}/a:80/proxy/x"), false).await,
            refused,
            "{address}"
        );
    }
}

/// Agents and timeouts of the requests.
#[derive(Default)]
struct Asked(Mutex<Vec<String>>);

impl Agents for Asked {
    fn ask(&self, agent: Agent, request: Request<Body>) -> BoxFuture<'static, Result<Answer, AgentError>> {
        let within = request.extensions().get().map(|within: &Within| within.0);
        self.0.lock().unwrap().push(format!("{} {within:?}", agent.node));
        let because = "away".to_owned();
        Box::pin(async move { Err(AgentError::Unreachable { because }) })
    }
}

#[tokio::test]
async fn agents_that_are_away_are_not_asked_to_measure() {
    let agents = Arc::new(Asked::default());
    let given = Arc::clone(&agents);
    let api = Api::start_with(|mut options| {
        options.agents = Some(given);
        options
    })
    .await;
    for (name, ready) in [("n1", "True"), ("n2", "Unknown"), ("n3", "False")] {
        api.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).await;
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": ready}]}});
        let path = format!("/api/v1/nodes/{name}/status");
        assert_eq!(api.patch(&path, "merge-patch+json", &status).await.code, 200);
    }
    assert_eq!(api.get("/apis/metrics.k8s.io/v1beta1/nodes").await.code, 200);
    let mut asked = agents.0.lock().unwrap().clone();
    asked.sort();
    assert_eq!(asked, ["n1 Some(1s)", "n3 Some(1s)"]);
}

#[tokio::test]
async fn an_agent_that_does_not_speak_keeps_nobody_waiting_for_measures() {
    // The kernel accepts the connection, but no server does.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (api, _directory) = with_agent_at(silent.local_addr().unwrap()).await;
    let began = tokio::time::Instant::now();
    assert_eq!(api.get("/apis/metrics.k8s.io/v1beta1/nodes").await.code, 200);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
