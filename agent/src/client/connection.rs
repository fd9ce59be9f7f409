//! Connection to the API server, which all requests share over HTTP/2: each costs the server a
//! handshake and buffers. If its packets are dropped, the kernel reports it after half a minute: an
//! idle watch would not notice it otherwise.
//!
//! Of several servers of the cluster, one is asked. When it does not answer, the next one is:
//! requests that were certainly not sent go there at once, others fail and are retried by their
//! callers, and watches of the server that was left end, so that they begin again there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::go::architecture;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::middleware::{BaseUri, BaseUriLayer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _, RustlsTlsError};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};
use tower::retry::RetryLayer;
use tower::{BoxError, Layer as _, Service, ServiceBuilder, ServiceExt as _};

use super::requests::is_watch;
use crate::node::VERSION;
use crate::serve::metrics::own::requests::ASKED;

/// Longest time that sent data may stay unacknowledged by the peer.
const SILENCE: Duration = Duration::from_secs(30);
/// An idle connection is probed after this time, and then at this interval; over HTTP/2 a server
/// that sends nothing for as long is pinged, too.
const IDLE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);
/// Time that a server has to answer a ping: then the connection ends, early enough for a renewal of
/// the lease over another one before the node counts as lost.
const PING_ANSWER: Duration = Duration::from_secs(10);

/// Time after which a connection is closed that only a burst of requests needed. Renewals of the
/// lease keep the first one.
const UNUSED: Duration = Duration::from_secs(15);

/// Requests and watches that share a connection; the next one goes to another connection. A server
/// makes the client wait beyond its limit, for ever if they are watches: Skiff's takes 250, an API
/// server of upstream's library (`k8s.io/apiserver/pkg/server/secure_serving.go`) and many proxies 100.
const STREAMS: usize = 90;
/// Bytes that a connection takes before they are read, as many as in Go's client: a watch that is
/// read late holds up no other.
const WINDOW: u32 = 1 << 30;
/// Connections to a server: for as many watches as a node's pods refer to objects.
const CONNECTIONS: usize = 16;

/// Longest time until an answer begins, before the server is asked whether it lives.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest time that a slow server has to show that it lives.
const ALIVE: Duration = Duration::from_secs(3);

/// Servers of the cluster, in the order in which they are asked. Clones turn to another one together.
#[derive(Clone, Debug)]
pub struct Servers {
    uris: Arc<[Uri]>,
    current: watch::Sender<usize>,
}

impl Servers {
    /// Creates servers at these addresses; without any, the one of the kubeconfig is asked.
    #[must_use]
    pub fn new(uris: &[Uri]) -> Self {
        Self {
            uris: uris.into(),
            current: watch::Sender::new(0),
        }
    }

    /// Name or address of a server, with its port where that is given.
    fn host(&self, at: usize) -> String {
        let authority = self.uris.get(at).and_then(Uri::authority);
        authority.map(ToString::to_string).unwrap_or_default()
    }

    /// Turns to the next one, unless another request has done so.
    fn leave(&self, at: usize) {
        let count = self.uris.len();
        let turned = self.current.send_if_modified(|current| {
            let turns = *current == at && count > 1;
            if turns {
                *current = (at + 1) % count;
            }
            turns
        });
        let next = *self.current.borrow();
        if turned && let (Some(left), Some(next)) = (self.uris.get(at), self.uris.get(next)) {
            tracing::warn!(%left, %next, "the API server does not answer; the next one is asked");
        }
    }

    /// Returns when another server is asked than this one; never if there is no other.
    fn left(&self, at: usize) -> Option<BoxFuture<'static, ()>> {
        if self.uris.len() < 2 {
            return None;
        }
        let mut current = self.current.subscribe();
        Some(Box::pin(async move {
            if current.wait_for(|current| *current != at).await.is_err() {
                std::future::pending::<()>().await;
            }
        }))
    }
}

/// The servers that do not answer were left.
#[derive(Debug, thiserror::Error)]
#[error("another API server is asked now")]
struct Left;

/// Client of one connection, and the number of its open requests.
struct Connection<C> {
    client: legacy::Client<C, Body>,
    requests: Arc<()>,
}

/// Client that spreads requests over connections: the first one with less than [`STREAMS`] open requests
/// is used.
#[derive(Clone)]
struct Connections<C> {
    all: Arc<[Connection<C>; CONNECTIONS]>,
    /// Longest time without data of an answer: others keep its connection busy.
    silence: Option<Duration>,
}

impl<C> Service<Request<Body>> for Connections<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Held>;
    type Error = legacy::Error;
    type Future = BoxFuture<'static, Result<Self::Response, legacy::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), legacy::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let [.., last] = &*self.all;
        let free = |one: &&Connection<C>| Arc::strong_count(&one.requests) <= STREAMS;
        let connection = self.all.iter().find(free).unwrap_or(last);
        let (asked, held) = (connection.client.request(request), Arc::clone(&connection.requests));
        let silence = self.silence;
        Box::pin(async move {
            let answer = asked.await?;
            Ok(answer.map(|inner| Held {
                inner,
                left: None,
                silence: silence.map(|limit| (limit, Box::pin(sleep(limit)))),
                _connection: held,
            }))
        })
    }
}

/// Request that is counted when it ends, also where nobody waits for the answer any longer.
struct Pending {
    begun: Instant,
    method: Method,
    watch: bool,
    host: String,
    status: Option<StatusCode>,
}

impl Pending {
    fn new(request: &Request<Body>, host: String) -> Self {
        Self {
            begun: Instant::now(),
            method: request.method().clone(),
            watch: is_watch(request.uri()),
            host,
            status: None,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let took = (!self.watch).then(|| self.begun.elapsed());
        ASKED.count(self.status, &self.method, &self.host, took);
    }
}

/// Client of several servers.
#[derive(Clone)]
struct Failover<S> {
    servers: Servers,
    /// One client, with the address of each server.
    ways: Arc<[BaseUri<S>]>,
}

impl<S> Failover<S>
where
    S: Service<Request<Body>, Response = Response<Held>, Error = legacy::Error> + Clone,
{
    async fn ask(&self, mut request: Request<Body>) -> Result<Response<Held>, BoxError> {
        let mut others = self.ways.len();
        let several = others > 1;
        let limit = if several { ANSWER } else { Duration::MAX };
        loop {
            let at = *self.servers.current.borrow();
            let way = self.ways.get(at).cloned().ok_or(Left)?;
            let again = several.then(|| copy(&request)).flatten();
            let mut pending = Pending::new(&request, self.servers.host(at));
            let mut asked = Box::pin(way.clone().oneshot(request));
            let answer = match tokio::time::timeout(limit, asked.as_mut()).await {
                // Slow, as with a webhook that is: callers have limits of their own.
                Err(_) if is_alive(way).await => Ok(asked.await),
                answer => answer,
            };
            pending.status = answer
                .as_ref()
                .ok()
                .and_then(|answer| Some(answer.as_ref().ok()?.status()));
            drop(pending);
            let (unsent, failure) = match answer {
                // A server that has lost its store answers so.
                Ok(Ok(answer)) if several && answer.status() == StatusCode::GATEWAY_TIMEOUT => {
                    self.servers.leave(at);
                    return Ok(answer);
                }
                Ok(Ok(mut answer)) => {
                    answer.body_mut().left = self.servers.left(at);
                    return Ok(answer);
                }
                Ok(Err(error)) => (error.is_connect(), BoxError::from(error)),
                Err(elapsed) => (false, elapsed.into()),
            };
            self.servers.leave(at);
            others = others.saturating_sub(1);
            match again {
                Some(again) if unsent && others > 0 => request = again,
                Some(_) | None => return Err(failure),
            }
        }
    }
}

impl<S> Service<Request<Body>> for Failover<S>
where
    S: Service<Request<Body>, Response = Response<Held>, Error = legacy::Error> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    type Response = Response<Held>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let own = self.clone();
        Box::pin(async move { own.ask(request).await })
    }
}

async fn is_alive<S>(way: BaseUri<S>) -> bool
where
    S: Service<Request<Body>, Response = Response<Held>, Error = legacy::Error>,
{
    let Ok(request) = Request::get("/livez").body(Body::empty()) else {
        return false;
    };
    let answer = tokio::time::timeout(ALIVE, way.oneshot(request)).await;
    answer.is_ok_and(|answer| answer.is_ok())
}

/// Copies a request, unless its body is a stream.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    copy.extensions_mut().clone_from(request.extensions());
    Some(copy)
}

/// An answer, which fails once its server is left.
struct Held {
    inner: Incoming,
    left: Option<BoxFuture<'static, ()>>,
    silence: Option<(Duration, Pin<Box<Sleep>>)>,
    /// Counts the requests of its connection.
    _connection: Arc<()>,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            if let Some((limit, silence)) = &mut self.silence {
                silence.as_mut().reset(Instant::now() + *limit);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let is_left = |left: &mut BoxFuture<'static, ()>| left.as_mut().poll(context).is_ready();
        if self.left.as_mut().is_some_and(is_left) {
            self.left = None;
            return Poll::Ready(Some(Err(Left.into())));
        }
        let is_over = |(_, silence): &mut (_, Pin<Box<Sleep>>)| silence.as_mut().poll(context).is_ready();
        if self.silence.as_mut().is_some_and(is_over) {
            self.silence = None;
            return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Creates a client like kube's own, with a kubelet's user agent: it is the manager of the fields
/// that it writes. Proxies are those of [`common_proxy`].
pub fn open(configuration: kube::Config, servers: &Servers) -> kube::Result<kube::Client> {
    build(configuration, servers, &[b"h2", b"http/1.1"])
}

/// Creates a client whose requests may switch protocols, which HTTP/2 does not do. Nothing has to come over its connections.
pub fn open_switching(mut configuration: kube::Config, servers: &Servers) -> kube::Result<kube::Client> {
    configuration.read_timeout = None;
    build(configuration, servers, &[b"http/1.1"])
}

fn build(mut configuration: kube::Config, servers: &Servers, protocols: &[&[u8]]) -> kube::Result<kube::Client> {
    configuration.headers.push((USER_AGENT, user_agent()?));
    let proxied = common_proxy::Connector::new(connector(), configuration.proxy_url.clone());
    let mut connector = TimeoutConnector::new(secure(&configuration, proxied, protocols)?);
    connector.set_connect_timeout(configuration.connect_timeout);
    connector.set_read_timeout(configuration.read_timeout);
    let connection = |_| {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(UNUSED);
        builder.http2_initial_connection_window_size(WINDOW);
        // A proxy acknowledges data for a server that is gone.
        builder
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(IDLE)
            .http2_keep_alive_timeout(PING_ANSWER);
        Connection {
            client: builder.build(connector.clone()),
            requests: Arc::new(()),
        }
    };
    let client = Connections {
        all: Arc::new(std::array::from_fn(connection)),
        silence: configuration.read_timeout,
    };
    let servers = if servers.uris.is_empty() {
        Servers::new(std::slice::from_ref(&configuration.cluster_url))
    } else {
        servers.clone()
    };
    let ways = servers.uris.iter();
    let ways = ways.map(|uri| BaseUriLayer::new(uri.clone()).layer(client.clone()));
    let failover = Failover {
        ways: ways.collect(),
        servers,
    };
    let retries = configuration
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .option_layer(retries)
        .option_layer(configuration.auth_layer()?)
        .layer(configuration.extra_headers_layer()?)
        .service(failover);
    Ok(ClientBuilder::new(service, configuration.default_namespace).build())
}

/// Returns a connector like kube's own, but one that offers these protocols.
fn secure<C>(configuration: &kube::Config, connector: C, protocols: &[&[u8]]) -> kube::Result<HttpsConnector<C>> {
    let mut tls = configuration.rustls_client_config()?;
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let Some(name) = &configuration.tls_server_name else {
        return Ok(HttpsConnector::from((connector, tls)));
    };
    let name = name.clone().try_into();
    let name = name.map_err(|error| kube::Error::RustlsTls(RustlsTlsError::InvalidServerName(error)))?;
    let resolver = Arc::new(FixedServerNameResolver::new(name));
    Ok(HttpsConnector::new(connector, tls, false, resolver))
}

fn user_agent() -> kube::Result<HeaderValue> {
    let name = format!(
        "kubelet/{VERSION} ({}/{}) kubernetes/skiff",
        std::env::consts::OS,
        architecture()
    );
    HeaderValue::from_str(&name).map_err(|error| kube::Error::HttpError(error.into()))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_tcp_user_timeout(Some(SILENCE));
    connector.set_keepalive(Some(IDLE));
    connector.set_keepalive_interval(Some(PROBE));
    connector
}

#[cfg(test)]
mod tests;
