//! Admission webhooks: connections to them, and requests without an object of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use controlplane_server::node::agents::{Agent, AgentError, Agents, Answer as Answered};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::webhook::{MUTATING, Reply, VALIDATING, Webhook, configure};
use crate::support::{Api, config_map, deployment, entry, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn connections_are_used_again_and_anew_when_they_were_closed() {
    let api = Api::start().await;
    let hook = Webhook::start(|review| {
        let close = review["request"]["name"] == "last";
        let headers = if close {
            vec![("connection", "close".to_owned())]
        } else {
            Vec::new()
        };
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Reply::Raw(200, headers, answer.to_string().into_bytes())
    })
    .await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let other = Webhook::admitting().await;
    for name in ["a", "b", "last", "c", "d"] {
        assert_eq!(api.post(MAPS, &config_map(name)).await.code, 201);
        // Another configuration's change does not cost this one its connection.
        configure(
            &api,
            VALIDATING,
            &format!("x{name}"),
            json!([other.entry("other.example.com")]),
        )
        .await;
        assert_eq!(api.delete(&format!("{VALIDATING}/x{name}"), "").await.code, 200);
    }
    assert_eq!((hook.requests().len(), hook.connections.load(Ordering::SeqCst)), (5, 2));
}

/// Agent that connects to a webhook, for whichever pod it is asked.
struct Way(std::net::SocketAddr, std::sync::Mutex<Vec<String>>);

impl Agents for Way {
    fn ask(&self, agent: Agent, request: Request<Body>) -> BoxFuture<'static, Result<Answered, AgentError>> {
        let Self(address, asked) = self;
        asked.lock().unwrap().push(format!("{} {}", agent.node, request.uri()));
        let address = *address;
        Box::pin(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            let (head, ()) = Response::new(()).into_parts();
            Ok(Answered::Switched(head, Box::new(stream)))
        })
    }
}

#[tokio::test]
async fn a_service_leads_to_its_ready_endpoints_through_the_agents_of_their_nodes() {
    let hook = Webhook::admitting().await;
    let way = Arc::new(Way(hook.address, std::sync::Mutex::default()));
    let given: Arc<dyn Agents> = Arc::clone(&way) as Arc<dyn Agents>;
    let api = Api::start_with(|mut options| {
        options.agents = Some(given);
        options
    })
    .await;
    let mut entry = hook.entry("one.example.com");
    entry["clientConfig"] = json!({"service": {"namespace": "hooks", "name": "hook", "path": "/x", "port": 8443},
        "caBundle": hook.bundle});
    entry["rules"][0]["resources"] = json!(["configmaps"]);
    configure(&api, VALIDATING, "one", json!([entry])).await;
    let refused = async |because: &str| {
        let answer = api.post(MAPS, &config_map("a")).await;
        let message = format!(
            "Internal error occurred: failed calling webhook \"one.example.com\": failed to call webhook: Post \"https://hook.hooks.svc:8443/x?timeout=10s\": {because}"
        );
        assert_eq!((answer.code.as_u16(), answer.message()), (500, message));
    };
    refused("service \"hook\" not found").await;
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "hooks"}}))
        .await;
    let service =
        json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 8443, "targetPort": 9443}]}});
    assert_eq!(api.post("/api/v1/namespaces/hooks/services", &service).await.code, 201);
    refused("no endpoints available for service \"hook\"").await;
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    api.patch("/api/v1/nodes/n1/status", "merge-patch+json", &status).await;
    let slice = json!({"metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 9443}], "endpoints": [
            {"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "nodeName": "n1", "targetRef": {"kind": "Pod", "namespace": "hooks", "name": "hook-a"}},
            {"addresses": ["10.1.0.2"], "conditions": {"ready": false}, "nodeName": "n1", "targetRef": {"kind": "Pod", "namespace": "hooks", "name": "hook-b"}}]});
    let made = api
        .post("/apis/discovery.k8s.io/v1/namespaces/hooks/endpointslices", &slice)
        .await;
    assert_eq!(made.code, 201, "{}", made.text());
    let made = api.post(MAPS, &config_map("a")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    assert_eq!(*way.1.lock().unwrap(), ["n1 /dial/hooks/hook-a/9443"]);
    assert_eq!(hook.brief(), ["CREATE configmaps default/a"]);
}

#[tokio::test]
async fn a_scale_is_seen_and_changed_as_a_scale() {
    let api = Api::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(api.post(path, &deployment("web")).await.code, 201);
    let hook = Webhook::patching(json!([{"op": "replace", "path": "/spec/replicas", "value": 7}])).await;
    let mut entry = hook.entry("one.example.com");
    entry["rules"] =
        json!([{"operations": ["UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["*/scale"]}]);
    configure(&api, MUTATING, "one", json!([entry])).await;
    let scaled = api
        .patch(
            &format!("{path}/web/scale"),
            "merge-patch+json",
            &json!({"spec": {"replicas": 5}}),
        )
        .await;
    assert_eq!(
        (scaled.code.as_u16(), &scaled.json()["spec"]["replicas"]),
        (200, &json!(7)),
        "{}",
        scaled.text()
    );
    let request = &hook.requests()[0];
    assert_eq!(
        request["kind"],
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
    assert_eq!(hook.brief(), ["UPDATE deployments/scale default/web"]);
    assert_eq!(
        (
            &request["object"]["spec"]["replicas"],
            &request["oldObject"]["spec"]["replicas"]
        ),
        (&json!(5), &json!(3))
    );
}

#[tokio::test]
async fn bindings_evictions_tokens_and_connections_are_asked_about() {
    let api = Api::start().await;
    assert_eq!(api.post(PODS, &pod("a")).await.code, 201);
    let hook = Webhook::refusing().await;
    configure(&api, VALIDATING, "one", json!([hook.entry("one.example.com")])).await;
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["x"]}});
    for (path, body) in [
        (format!("{PODS}/a/binding"), binding),
        (format!("{PODS}/a/eviction"), eviction),
        (
            "/api/v1/namespaces/default/serviceaccounts/default/token".to_owned(),
            token,
        ),
    ] {
        let answer = api.post(&path, &body).await;
        assert_eq!(
            answer.message(),
            "admission webhook \"one.example.com\" denied the request: no",
            "{path}"
        );
    }
    let exec = api
        .get(&format!("{PODS}/a/exec?command=ls&command=-l&stdout=true&container=c"))
        .await;
    assert_eq!(
        exec.message(),
        "admission webhook \"one.example.com\" denied the request: no"
    );
    let proxied = api.get(&format!("{PODS}/a/proxy/x")).await;
    assert_eq!(proxied.code, 400);
    assert_eq!(
        hook.brief(),
        [
            "CREATE pods/binding default/a",
            "CREATE pods/eviction default/a",
            "CREATE serviceaccounts/token default/default",
            "CONNECT pods/exec default/a",
            "CONNECT pods/proxy default/a",
        ]
    );
    let requests = hook.requests();
    let kinds: Vec<&str> = requests
        .iter()
        .map(|request| request["kind"]["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "Binding",
            "Eviction",
            "TokenRequest",
            "PodExecOptions",
            "PodProxyOptions"
        ]
    );
    let options = json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdout": true, "container": "c", "command": ["ls", "-l"]});
    assert_eq!(
        (&requests[3]["object"], &requests[3]["options"]),
        (&options, &Value::Null)
    );
    assert_eq!(api.get(&format!("{PODS}/a")).await.json()["spec"].get("nodeName"), None);
}

#[tokio::test]
async fn what_a_webhook_changes_is_managed_by_nobody() {
    let api = Api::start().await;
    let made = api.post(&format!("{MAPS}?fieldManager=me"), &config_map("a")).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let hook = Webhook::patching(json!([{"op": "add", "path": "/data/hook", "value": "x"},
        {"op": "add", "path": "/metadata/ownerReferences", "value": [owner.clone(), owner]}]))
    .await;
    configure(&api, MUTATING, "one", json!([hook.entry("one.example.com")])).await;
    let path = format!("{MAPS}/a?fieldManager=me");
    let changed = api.patch(&path, "merge-patch+json", &json!({"data": {"b": "2"}})).await;
    assert_eq!(
        changed.json()["data"],
        json!({"a": "1", "b": "2", "hook": "x"}),
        "{}",
        changed.text()
    );
    let fields = entry(&changed.json(), "me")["fieldsV1"].clone();
    assert_eq!(fields["f:data"], json!({".": {}, "f:a": {}, "f:b": {}}));
    assert_eq!(
        changed.json()["metadata"]["ownerReferences"].as_array().unwrap().len(),
        1
    );
    let told = "contains duplicate entries after mutating admission happens";
    assert!(
        changed.warnings().iter().any(|text| text.contains(told)),
        "{:?}",
        changed.warnings()
    );
    // The fields that the webhook set have no manager, so an apply meets no conflict.
    assert_eq!(api.delete(&format!("{MUTATING}/one"), "").await.code, 200);
    let own = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"hook": "y"}});
    let applied = api.apply(&format!("{MAPS}/a"), "fieldManager=other", own).await;
    assert_eq!(applied.code, 200, "{}", applied.text());
}
