//! The agent's server: logs, streams and metrics over TLS for the API server and authorized
//! clients, images for the operator over a private socket.
//!
//! * `access`, `tls`: who may ask
//! * `logs`, `streams`: logs of containers and of the node; exec, attach and port-forward
//! * `metrics`, `health`, `running`, `zpages`: a kubelet's other endpoints
//! * `crashes`, `milestones`, `local_path`: endpoints of our own
//! * `socket`: the operator's socket

pub(crate) mod access;
mod crashes;
mod health;
mod local_path;
mod logs;
pub(crate) mod metrics;
mod milestones;
mod running;
mod socket;
pub(crate) mod streams;
mod tls;
mod zpages;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use access::Client;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Extension, Router, middleware};
use common::task::JoinSet;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::{SockRef, TcpKeepalive};
use streams::upgrade::After;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::debug;

use crate::context::Context;

pub(crate) use health::TURN;
pub use socket::serve as socket;
pub use tls::Files;

/// Delay after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of authenticated connections, including streams and followed logs.
const CONNECTIONS: usize = 1024;
/// Maximum number of connections without a recent client certificate. Beyond it the oldest is
/// closed, so that unauthenticated clients cannot block others.
const STRANGERS: usize = 64;
/// Timeout of a handshake, of a request's head, and of an unauthenticated client's first authorized
/// request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Idle time before TCP keepalive probes, and their interval: a stream may be idle without limit.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
const PROBE: Duration = Duration::from_secs(15);
/// Interval of HTTP/2 pings to idle clients.
const PING: Duration = Duration::from_secs(30);

/// Failure to start a server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of certificates or keys could not be read.
    #[error("read {}", path.display())]
    File {
        /// Path that the operation failed for.
        path: PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// The certificate and key are not usable.
    #[error("the certificates")]
    Tls(#[from] rustls::Error),
    /// The client CA's certificates are not usable.
    #[error("the client authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The address cannot be bound.
    #[error("listen")]
    Listen(#[from] std::io::Error),
}

/// Listens on an address. As with a kubelet, the unspecified IPv4 address includes IPv6 if the
/// machine supports it: the API server connects to any of the node's addresses.
///
/// # Errors
///
/// Fails if the address cannot be bound.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    if address.ip() == Ipv4Addr::UNSPECIFIED
        && let Ok(both) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await
    {
        return Ok(both);
    }
    TcpListener::bind(address).await
}

/// Serves the API server and authorized clients until it is cancelled.
pub async fn https(
    listener: TcpListener,
    files: &Files,
    context: Arc<Context>,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let acceptor = TlsAcceptor::from(tls::configuration(files)?);
    let router = router(context);
    let limit = Arc::new(Semaphore::new(CONNECTIONS));
    let mut strangers: VecDeque<CancellationToken> = VecDeque::new();
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "a connection was lost before it began");
                    // Out of descriptors: other connections must be closed first.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = cancel.cancelled() => return Ok(()),
        };
        let shed = CancellationToken::new();
        strangers.push_back(shed.clone());
        if strangers.len() > STRANGERS
            && let Some(oldest) = strangers.pop_front()
        {
            oldest.cancel();
        }
        let (acceptor, router, limit) = (acceptor.clone(), router.clone(), Arc::clone(&limit));
        connections.spawn(async move {
            let greeted = shed.run_until_cancelled(greet(&acceptor, stream, &router, peer)).await;
            let Some(Some(served)) = greeted else {
                return;
            };
            let Ok(_permit) = limit.try_acquire_owned() else {
                return debug!(%peer, "too many connections");
            };
            served.await;
        });
    }
}

/// Completes the handshake and identifies the peer; returns the connection. A peer without a
/// certificate has limited time for an authorized request.
async fn greet(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    router: &Router,
    peer: SocketAddr,
) -> Option<BoxFuture<'static, ()>> {
    let probes = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(PROBE);
    if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&probes) {
        debug!(%peer, %error, "a connection goes without keep-alive probes");
    }
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            debug!(%peer, %error, "no handshake");
            return None;
        }
        Err(_) => {
            debug!(%peer, "no handshake in time");
            return None;
        }
    };
    let client = Client::of(tls::subject(stream.get_ref().1.peer_certificates()));
    let (proven, admitted) = (client.has_certificate(), client.admitted());
    let mut served = answer(stream, router.clone(), client, peer).boxed();
    if proven {
        return Some(served);
    }
    match tokio::time::timeout(HANDSHAKE, &mut served).await {
        Ok(()) => None,
        Err(_) if admitted.load(Ordering::Relaxed) => Some(served),
        Err(_) => {
            debug!(%peer, "a connection without a certificate lasted too long");
            None
        }
    }
}

/// Serves the requests of one connection. Idle HTTP/2 peers are pinged; HTTP/1.1 peers have the
/// same timeout for each request.
async fn answer(stream: TlsStream<TcpStream>, router: Router, client: Client, peer: SocketAddr) {
    let router = router.layer(Extension(client));
    let after = After::nothing();
    let next = after.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let (mut router, next) = (router.clone(), next.clone());
        async move {
            let mut response = router.call(request).await?;
            next.fill(&mut response);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(HANDSHAKE);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%peer, %error, "a connection ended badly");
    }
    if let Some(work) = after.take() {
        work.await;
    }
}

fn router(context: Arc<Context>) -> Router {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .route("/pods", get(running::wanted))
        .route("/pods/", get(running::wanted))
        .route("/runningpods", get(running::running))
        .route("/runningpods/", get(running::running))
        .route("/configz", get(zpages::configz))
        .route("/flagz", get(zpages::flagz))
        .route("/statusz", get(zpages::statusz))
        .route("/logs", get(logs::node::root))
        .route("/logs/", get(logs::node::root))
        .route("/logs/{*path}", get(logs::node::below))
        .route("/metrics", get(metrics::own::metrics))
        .route("/metrics/cadvisor", get(metrics::cadvisor::metrics))
        .route("/metrics/probes", get(metrics::own::probes))
        .route("/metrics/slis", get(metrics::slis::metrics))
        .route("/stats/summary", get(metrics::measures::summary))
        .route("/metrics/resource", get(metrics::measures::resource))
        .route(api::kinds::metrics::PATH, get(metrics::measures::measures))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::answer))
        .route(
            "/exec/{namespace}/{pod}/{container}",
            get(streams::exec).post(streams::exec),
        )
        .route(
            "/attach/{namespace}/{pod}/{container}",
            get(streams::attach).post(streams::attach),
        )
        .route(
            "/portForward/{namespace}/{pod}",
            get(streams::forward).post(streams::forward),
        )
        .route("/crashes", get(crashes::answer))
        .route("/milestones", get(milestones::answer))
        .route("/local-path/{name}", put(local_path::make).delete(local_path::remove))
        .route("/dial/{port}", get(streams::dial_node))
        .route("/dial/{namespace}/{pod}/{port}", get(streams::dial))
        .route("/reach/{namespace}/{pod}", post(streams::reach))
        .fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") })
        .layer(middleware::from_fn_with_state(Arc::clone(&context), access::authorize))
        .with_state(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_listens_everywhere_is_found_by_either_family() {
        let listener = listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        let one = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        assert!(one.local_addr().unwrap().is_ipv4());
    }
}
