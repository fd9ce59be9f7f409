//! A server over a store in memory, and ways to speak to it.
#![allow(unreachable_pub, clippy::disallowed_methods, reason = "helpers of tests")]

pub mod rights;
pub mod served;
pub mod webhook;

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use controlplane_server::authn::identity::{MASTERS, User, assume};
use controlplane_server::authn::tokens::SigningKey;
use controlplane_server::ops::audit::{Record, Sink, Waiting};
use controlplane_server::{Options, Server};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use store::Store;
use tower::ServiceExt;

pub const START: &str = "2026-01-02T03:04:05Z";

#[derive(Clone)]
pub struct Api {
    pub server: Server,
    pub store: Store,
    pub key: Arc<SigningKey>,
}

/// An audit log in memory.
#[derive(Default)]
pub struct Kept(pub Mutex<Vec<Record>>);

impl Sink for Kept {
    fn record(&self, record: Record) -> Option<Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        None
    }
}

impl Kept {
    /// `VERB RESOURCE/NAME CODE STAGE` of each record.
    pub fn brief(&self) -> Vec<String> {
        let records = self.0.lock().unwrap();
        let brief = records.iter().map(|record| {
            let object = record.object.clone().unwrap_or_default();
            let (verb, code, stage) = (&record.verb, record.code, record.stage);
            format!("{verb} {}/{} {code} {stage:?}", object.resource, object.name)
        });
        brief.collect()
    }
}

pub struct Answer {
    pub code: StatusCode,
    pub headers: http::HeaderMap,
    pub bytes: bytes::Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {:?}", self.bytes))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.bytes.to_vec()).unwrap()
    }

    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers
            .get_all("warning")
            .iter()
            .map(|value| value.to_str().unwrap().to_owned())
            .collect()
    }
}

impl Api {
    pub async fn start() -> Self {
        Self::start_with(|options| options).await
    }

    /// Starts a server with a stopped clock, so that measurements do not depend on the test's
    /// duration.
    pub async fn start_at_rest() -> Self {
        Self::start_with(|mut options| {
            options.clock = Arc::new(|| START.parse().unwrap());
            options
        })
        .await
    }

    pub async fn start_with(change: impl FnOnce(Options) -> Options) -> Self {
        let store = Store::in_memory(store::Options {
            index: controlplane_server::storage::index,
            class: controlplane_server::storage::class,
            clock: || u64::try_from(START.parse::<Timestamp>().unwrap().as_millisecond()).unwrap(),
            ..store::Options::default()
        });
        let began = tokio::time::Instant::now();
        let start: Timestamp = START.parse().unwrap();
        let clock = Arc::new(move || start + k8s_openapi::jiff::SignedDuration::try_from(began.elapsed()).unwrap());
        let mut options = Options::new(clock);
        let key = Arc::new(SigningKey::from_pem(&SigningKey::generate().unwrap()).unwrap());
        options.signing_key = Some(Arc::clone(&key));
        let server = Server::new(store.clone(), change(options));
        server.bootstrap().await.unwrap();
        let api = Self { server, store, key };
        for namespace in ["default", "kube-system"] {
            api.account(namespace, "default").await;
        }
        api
    }

    /// A client of the router, without a socket.
    pub fn client(&self) -> kube::Client {
        let user = User::new("kubernetes-admin", [MASTERS]);
        kube::Client::new(assume(user, "test", self.server.router()), "default")
    }

    pub async fn send(&self, request: Request<Body>) -> http::Response<Body> {
        self.send_as(User::new("kubernetes-admin", [MASTERS]), request).await
    }

    pub async fn send_as(&self, user: User, mut request: Request<Body>) -> http::Response<Body> {
        request.extensions_mut().insert(user);
        self.server.router().oneshot(request).await.unwrap()
    }

    /// Makes a service account, which no controller does here.
    pub async fn account(&self, namespace: &str, name: &str) -> Value {
        let body = serde_json::json!({"metadata": {"name": name}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let answer = self.post(&path, &body).await;
        assert_eq!(answer.code, StatusCode::CREATED, "{}", answer.text());
        answer.json()
    }

    /// Request from outside, authenticated by its headers alone.
    pub async fn outside(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_string())).unwrap();
        collect(self.server.router().oneshot(request).await.unwrap()).await
    }

    /// Returns the user that a token authenticates, or the message of the rejection.
    pub async fn whoami(&self, token: &str) -> Result<Value, String> {
        let header = format!("Bearer {token}");
        let review = serde_json::json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer = self
            .outside(Method::POST, path, &[("authorization", &header)], &review)
            .await;
        if answer.code == StatusCode::CREATED {
            return Ok(answer.json()["status"]["userInfo"].clone());
        }
        assert_eq!(answer.code, StatusCode::UNAUTHORIZED);
        Err(answer.message())
    }

    pub async fn request(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        collect(self.send(request.body(body.into()).unwrap()).await).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.request(
            Method::POST,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.request(
            Method::PUT,
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        let kind = format!("application/{kind}");
        self.request(Method::PATCH, path, &[("content-type", &kind)], body.to_string())
            .await
    }

    /// Server-side apply of JSON or YAML, with options.
    pub async fn apply(&self, path: &str, query: &str, body: impl ToString) -> Answer {
        self.request(
            Method::PATCH,
            &format!("{path}?{query}"),
            &[("content-type", "application/apply-patch+yaml")],
            body.to_string(),
        )
        .await
    }

    pub async fn delete(&self, path: &str, body: &str) -> Answer {
        self.request(
            Method::DELETE,
            path,
            &[("content-type", "application/json")],
            body.to_owned(),
        )
        .await
    }
}

/// Does all at the same time, on the threads of the runtime, which should be several; the answers in the order of the calls.
/// Joined in one task, each would be over before the next begins.
pub async fn at_once<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let calls: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    let done = futures::future::join_all(calls).await;
    done.into_iter().map(Result::unwrap).collect()
}

impl Api {
    /// Creates all at the same time.
    pub async fn create_at_once(&self, all: impl IntoIterator<Item = (String, Value)>) -> Vec<Answer> {
        let calls = all.into_iter().map(|(path, body)| {
            let api = self.clone();
            async move { api.post(&path, &body).await }
        });
        at_once(calls).await
    }

    /// Deletes all at the same time.
    pub async fn delete_at_once(&self, paths: impl IntoIterator<Item = String>) -> Vec<Answer> {
        let calls = paths.into_iter().map(|path| {
            let api = self.clone();
            async move { api.delete(&path, "").await }
        });
        at_once(calls).await
    }
}

pub async fn collect(response: http::Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer {
        code: parts.status,
        headers: parts.headers,
        bytes,
    }
}

/// Frames of a watch.
pub struct Frames {
    body: Body,
    rest: Vec<u8>,
}

impl Frames {
    pub async fn open(api: &Api, path: &str, accept: &str) -> Self {
        let request = Request::builder()
            .uri(path)
            .header("accept", accept)
            .body(Body::empty())
            .unwrap();
        let response = api.send(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self {
            body: response.into_body(),
            rest: Vec::new(),
        }
    }

    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            self.rest.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    /// The next frame as `TYPE name`.
    pub async fn brief(&mut self) -> String {
        let Some(frame) = self.next().await else {
            return "end".to_owned();
        };
        let object = &frame["object"];
        let name = object["metadata"]["name"]
            .as_str()
            .or(object["reason"].as_str())
            .unwrap_or_default();
        format!("{} {name}", frame["type"].as_str().unwrap()).trim().to_owned()
    }
}

/// A manager's entry in an object's managed fields.
pub fn entry<'a>(object: &'a Value, manager: &str) -> &'a Value {
    let entries = object["metadata"]["managedFields"].as_array();
    entries
        .into_iter()
        .flatten()
        .find(|entry| entry["manager"] == manager)
        .unwrap_or_else(|| panic!("no entry of {manager} in {object:#}"))
}

/// Managers of an object, each as `NAME OPERATION [SUBRESOURCE]`.
pub fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array();
    let text = |entry: &Value| {
        let parts =
            ["manager", "operation", "subresource"].map(|part| entry[part].as_str().unwrap_or_default().to_owned());
        parts.join(" ").trim_end().to_owned()
    };
    entries.into_iter().flatten().map(text).collect()
}

pub fn config_map(name: &str) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

pub fn pod(name: &str) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "nginx:1.14.2"}]}})
}

pub fn deployment(name: &str) -> Value {
    serde_json::json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:1.14.2", "ports": [{"containerPort": 80}]}]}}}})
}
