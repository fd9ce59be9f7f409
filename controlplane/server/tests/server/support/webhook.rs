//! A webhook, of admission or of conversion, on a socket of its own, with a certificate of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, Api};

pub const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
pub const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// Answer of a webhook.
pub enum Reply {
    /// `response` of a review, without its uid.
    Review(Value),
    /// A status, headers and a body.
    Raw(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Nothing, ever.
    Never,
}

/// Answers the review in a request.
pub type Answers = dyn Fn(Value) -> BoxFuture<'static, Reply> + Send + Sync;

/// Webhook that records its requests. It stops when this value is dropped.
pub struct Webhook {
    pub address: SocketAddr,
    /// The certificate, in base64 of PEM.
    pub bundle: String,
    pub asked: Arc<Mutex<Vec<Value>>>,
    pub connections: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Webhook {
    /// Starts a webhook that answers at once.
    pub async fn start(answers: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(Arc::new(move |review: Value| {
            let reply = answers(&review);
            Box::pin(async move { reply })
        }))
        .await
    }

    pub async fn start_with(answers: Arc<Answers>) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "hook.hooks.svc".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, connections) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let (seen, counted) = (Arc::clone(&asked), Arc::clone(&connections));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serving = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen, answers) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&answers));
                counted.fetch_add(1, Ordering::SeqCst);
                open.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request| answer(request, Arc::clone(&seen), Arc::clone(&answers)));
                    http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                        .ok();
                });
            }
        });
        Self {
            address,
            bundle: STANDARD.encode(certificate.pem()),
            asked,
            connections,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Starts a webhook that admits everything.
    pub async fn admitting() -> Self {
        Self::start(|_review| Reply::Review(json!({"allowed": true}))).await
    }

    /// Starts a webhook that rejects everything.
    pub async fn refusing() -> Self {
        Self::start(|_review| Reply::Review(json!({"allowed": false, "status": {"message": "no"}}))).await
    }

    /// Starts a webhook that patches everything.
    pub async fn patching(patch: Value) -> Self {
        Self::start(move |_review| patched(&patch)).await
    }

    /// A webhook of a configuration, for all operations on all resources of the core group.
    pub fn entry(&self, name: &str) -> Value {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": format!("https://localhost:{}/hook", self.address.port()), "caBundle": self.bundle},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["*/*"]}],
        })
    }

    /// The requests in the reviews that came so far.
    pub fn requests(&self) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|review| review["request"].clone()).collect()
    }

    /// `OPERATION RESOURCE[/SUBRESOURCE] NAMESPACE/NAME` of each request.
    pub fn brief(&self) -> Vec<String> {
        let brief = |request: Value| {
            let text = |member: &str| request[member].as_str().unwrap_or_default().to_owned();
            let part = Some(text("subResource")).filter(|part| !part.is_empty());
            let part = part.map(|part| format!("/{part}")).unwrap_or_default();
            let resource = request["resource"]["resource"].as_str().unwrap_or_default();
            format!(
                "{} {resource}{part} {}/{}",
                text("operation"),
                text("namespace"),
                text("name")
            )
        };
        self.requests().into_iter().map(brief).collect()
    }
}

/// The answer with a patch.
pub fn patched(patch: &Value) -> Reply {
    let patch = STANDARD.encode(patch.to_string());
    Reply::Review(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
}

async fn answer(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Value>>>,
    answers: Arc<Answers>,
) -> Result<Response<Body>, Infallible> {
    let headers = request.headers().iter();
    let headers: Value = headers
        .map(|(name, value)| (name.as_str().to_owned(), value.to_str().unwrap_or_default().into()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let head = json!({"method": request.method().as_str(), "path": request.uri().to_string(), "headers": headers});
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // For a request without a JSON body, its head is recorded.
    let review: Value = serde_json::from_slice(&body).unwrap_or(head);
    seen.lock().unwrap().push(review.clone());
    let uid = review["request"]["uid"].clone();
    Ok(match answers(review.clone()).await {
        Reply::Review(mut response) => {
            response["uid"] = uid;
            let answer = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
            Response::new(Body::from(answer.to_string()))
        }
        Reply::Raw(code, headers, body) => {
            let mut response = Response::builder().status(code);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Body::from(body)).unwrap()
        }
        Reply::Never => {
            tokio::time::sleep(Duration::from_hours(1)).await;
            Response::new(Body::empty())
        }
    })
}

/// Stores a configuration with these webhooks.
pub async fn configure(api: &Api, path: &str, name: &str, webhooks: Value) -> Answer {
    let made = api
        .post(path, &json!({"metadata": {"name": name}, "webhooks": webhooks}))
        .await;
    assert_eq!(made.code, 201, "{}", made.text());
    made
}
