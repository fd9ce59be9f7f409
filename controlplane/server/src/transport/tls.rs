//! HTTPS: HTTP/1.1 and HTTP/2 over TLS. A client's certificate is its identity; it need not have one.
//!
//! Resources of a client are limited: connections, handshakes, headers, streams, and the time for
//! each of them; the connection of a client that exceeds them is closed.

mod gather;
mod linger;
mod strangers;
mod transport;
mod unread;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::UnixTime;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::{debug, warn};

use crate::authn::identity::{Source, Until};
use crate::authn::pki::PkiError;
use crate::transport::tunnel::Tunnel;
use gather::Gather;
use linger::{Lent, Returned};
use strangers::{Guest, Strangers};
use transport::Caller;
use unread::Unread;

pub(crate) use strangers::Known;
pub use transport::Transport;

/// Maximum number of connections. At the limit, the oldest unauthenticated one is closed; if there
/// is none, new ones wait.
const CONNECTIONS: usize = 8192;
/// The time that a client has for its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time that a client has for a request's head, and how long an HTTP/1.1 connection may be idle.
const HEAD: Duration = Duration::from_mins(1);
/// Limits on the data that a client may send before a request's body.
#[derive(Debug, Clone, Copy)]
struct Heads {
    /// Headers of an HTTP/1.1 request.
    headers: usize,
    /// Their bytes; the library holds as much of an answer, too.
    bytes: usize,
    /// Bytes of an HTTP/2 request's headers.
    list: u32,
}

/// Limits for clients with a certificate: over HTTP/2 as much as upstream's server accepts.
const HEADS: Heads = Heads {
    headers: 1000,
    bytes: 256 << 10,
    list: 1 << 20,
};
/// Limits for other clients, whose connections may be many.
const STRANGERS_HEADS: Heads = Heads {
    headers: 1000,
    bytes: 64 << 10,
    list: 64 << 10,
};
/// Requests at a time on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// Streams that a client has opened and reset before they were processed (the "rapid reset"
/// attack).
const RESET_STREAMS: usize = 32;
/// A silent HTTP/2 connection is pinged after this time, and closed when no answer comes.
const PING: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(15);
/// A silent TCP connection is probed after this time, and then again and again; the kernel gives up after nine probes.
const KEEP_ALIVE: Duration = Duration::from_mins(1);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(15);
/// Time that requests may take to finish after the server was told to stop.
const GRACE: Duration = Duration::from_secs(8);

/// Failure to serve TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key does not fit.
    #[error("set up TLS")]
    Setup(#[source] rustls::Error),
    /// The authority cannot be used to check clients.
    #[error("set up the check of clients' certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    /// The certificates cannot be read.
    #[error("read the certificates")]
    Certificates(#[source] PkiError),
}

/// Serves until `cancel`, then gives requests time to finish.
pub async fn serve(listener: TcpListener, transport: Transport, router: Router, cancel: CancellationToken) {
    let places = Arc::new(Semaphore::new(transport.connections));
    let mut strangers = Strangers::default();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            // A client of IPv4 is one also where the server listens on both families.
            Ok((stream, peer)) => (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port())),
            Err(error) => {
                after_failed_accept(&error).await;
                continue;
            }
        };
        if places.available_permits() == 0 {
            strangers.shed_oldest();
        }
        let place = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let guest = strangers.welcome();
        let connection = connection(stream, peer, transport.clone(), router.clone(), guest, cancel.clone());
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    let finished = tokio::time::timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    if finished.is_err() {
        debug!(connections = connections.len(), "cut off");
        connections.shutdown().await;
    }
}

/// A client that went away again is no reason to wait; being out of descriptors is.
async fn after_failed_accept(error: &io::Error) {
    let gone = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    );
    if !gone {
        warn!(error = error as &dyn std::error::Error, "accept a connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    transport: Transport,
    router: Router,
    guest: Guest,
    cancel: CancellationToken,
) {
    let shed = guest.shed();
    // Boxed: moved into another future, it would take its place twice.
    let served = Box::pin(serve_connection(stream, peer, transport, router, guest, cancel));
    if shed.run_until_cancelled(served).await.is_none() {
        debug!(%peer, "shed");
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    transport: Transport,
    router: Router,
    guest: Guest,
    cancel: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| keep_alive(&stream)) {
        debug!(%peer, error = &error as &dyn std::error::Error, "set up a connection");
    }
    let acceptor = TlsAcceptor::from(Arc::clone(&transport.config));
    let shaken = tokio::select! {
        biased;
        () = cancel.cancelled() => return,
        shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)) => shaken,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%peer, error = &error as &dyn std::error::Error, "TLS handshake"),
        Err(_) => return debug!(%peer, "TLS handshake took too long"),
    };
    let caller = transport.caller(stream.get_ref().1.peer_certificates());
    let has_certificate = matches!(caller, Caller::Known { .. });
    if has_certificate {
        guest.known().set();
    }
    let known = guest.known();
    let spoken = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&spoken);
    let tunnel = Tunnel::nothing();
    let next = tunnel.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let (router, caller, next) = (router.clone(), caller.clone(), next.clone());
        let known = known.clone();
        async move {
            let mut response = answer(router, caller, known, peer, request).await;
            next.fill(&mut response);
            Ok::<_, Infallible>(response)
        }
    });
    let builder = builder(if has_certificate { HEADS } else { STRANGERS_HEADS });
    let shared = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let returned = Returned::default();
    let stream = Gather::new(Lent::new(stream, returned.clone()), shared);
    let outcome = {
        let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        // The library's own limits begin with the first byte of a request.
        let mut silence = std::pin::pin!(tokio::time::sleep(HEAD));
        let (mut stopping, mut waiting) = (false, true);
        loop {
            tokio::select! {
                outcome = connection.as_mut() => break outcome,
                () = cancel.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = silence.as_mut(), if waiting => {
                    waiting = false;
                    if !spoken.load(Ordering::Relaxed) {
                        return debug!(%peer, "no request came");
                    }
                }
            }
        }
    };
    if let Err(error) = outcome {
        debug!(%peer, error, "connection ended");
    }
    let rest = async {
        if let Some(tunnel) = tunnel.take() {
            tunnel.await;
        }
        returned.linger().await;
    };
    cancel.run_until_cancelled(rest).await;
}

/// Sets TCP keepalive, so that a vanished peer is detected even where nothing is ever written: in a
/// stream that waits for a program.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE_AGAIN);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

fn builder(heads: Heads) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(heads.headers)
        .max_buf_size(heads.bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING_ANSWER)
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_header_list_size(heads.list);
    builder
}

/// A client has shown a certificate that proves nothing: the transport puts it into the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedCertificate;

async fn answer(
    mut router: Router,
    caller: Caller,
    known: Known,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Response {
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
    match caller {
        Caller::Nobody => {}
        Caller::Known { user, until } if now <= until => {
            request.extensions_mut().insert(Until(until.saturating_add(1)));
            request.extensions_mut().insert(user);
        }
        Caller::Known { .. } | Caller::Refused => drop(request.extensions_mut().insert(RefusedCertificate)),
    }
    request.extensions_mut().insert(known);
    request.extensions_mut().insert(Source(peer));
    let unread = Unread::default();
    let mut response = match router.call(unread.watch(request)).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    unread.settle(&mut response).await;
    response
}
