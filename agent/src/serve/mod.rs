//! What the agent answers: logs to the API server over TLS, images to the operator over a private socket.

mod logs;
mod socket;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::context::Context;

pub use socket::serve as socket;
pub use tls::Files;

/// How long to wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Whose certificate the API server shows.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const CONNECTIONS: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A server that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of certificates or keys.
    #[error("read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The certificates do not make a server.
    #[error("the certificates")]
    Tls(#[from] rustls::Error),
    /// The client authority's certificates.
    #[error("the client authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The listener.
    #[error("listen")]
    Listen(#[from] std::io::Error),
}

/// Who is at the other end: the common name of a certificate that the client authority signed.
#[derive(Clone, Debug)]
struct Client(Option<String>);

/// Answers the API server until cancelled.
pub async fn https(
    listener: TcpListener,
    files: &Files,
    context: Arc<Context>,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let acceptor = tokio_rustls::TlsAcceptor::from(tls::configuration(files)?);
    let router = router(context);
    let limit = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "a connection was lost before it began");
                    // Out of descriptors: others must end before the next can begin.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = cancel.cancelled() => return Ok(()),
        };
        let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else {
            debug!(%peer, "too many connections");
            continue;
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        connections.spawn(async move {
            let _permit = permit;
            let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(%peer, %error, "no handshake"),
                Err(_) => return debug!(%peer, "no handshake in time"),
            };
            let client = Client(tls::common_name(stream.get_ref().1.peer_certificates()));
            let service = TowerToHyperService::new(router.layer(Extension(client)));
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
            builder.http2().timer(TokioTimer::new());
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
                debug!(%peer, %error, "a connection ended badly");
            }
        });
    }
}

fn router(context: Arc<Context>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/pods", get(pods))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::answer))
        .fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") })
        .layer(middleware::from_fn(authorize))
        .with_state(context)
}

async fn authorize(Extension(client): Extension<Client>, request: Request, next: Next) -> Response {
    match client.0.as_deref() {
        None => (StatusCode::UNAUTHORIZED, "Unauthorized\n").into_response(),
        Some(API_SERVER) => next.run(request).await,
        Some(name) => (StatusCode::FORBIDDEN, format!("Forbidden (user={name})\n")).into_response(),
    }
}

async fn pods(State(context): State<Arc<Context>>) -> Json<serde_json::Value> {
    let items: Vec<_> = context
        .known_pods()
        .iter()
        .map(|pod| serde_json::json!(**pod))
        .collect();
    Json(serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}
