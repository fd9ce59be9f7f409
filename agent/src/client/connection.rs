//! Connection to the API server. If its packets are dropped, the kernel reports it after half a
//! minute: an idle watch would not notice it otherwise.
//!
//! Of several servers of the cluster, one is asked. When it does not answer, the next one is:
//! requests that were certainly not sent go there at once, others fail and are retried by their
//! callers, and watches of the server that was left end, so that they begin again there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::middleware::{BaseUri, BaseUriLayer};
use kube::client::{Body, ClientBuilder, ConfigExt as _, retry::RetryPolicy};
use tokio::sync::watch;
use tower::retry::RetryLayer;
use tower::{BoxError, Layer as _, Service, ServiceBuilder, ServiceExt as _};

use crate::node::{VERSION, architecture};

/// Longest time that sent data may stay unacknowledged by the peer.
const SILENCE: Duration = Duration::from_secs(30);
/// An idle connection is probed after this time, and then at this interval.
const IDLE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);

/// Time after which a connection is closed that pods' starts needed beside others; renewals of the
/// lease come before it.
const UNUSED: Duration = Duration::from_secs(15);

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

/// Client of several servers.
#[derive(Clone)]
struct Failover<S> {
    servers: Servers,
    /// One client, with the address of each server.
    ways: Arc<[BaseUri<S>]>,
}

impl<S> Failover<S>
where
    S: Service<Request<Body>, Response = Response<Incoming>, Error = legacy::Error> + Clone,
{
    async fn ask(&self, mut request: Request<Body>) -> Result<Response<Held>, BoxError> {
        let mut others = self.ways.len();
        let several = others > 1;
        let limit = if several { ANSWER } else { Duration::MAX };
        loop {
            let at = *self.servers.current.borrow();
            let way = self.ways.get(at).cloned().ok_or(Left)?;
            let again = several.then(|| copy(&request)).flatten();
            let mut asked = Box::pin(way.clone().oneshot(request));
            let answer = match tokio::time::timeout(limit, asked.as_mut()).await {
                // Slow, as with a webhook that is: callers have limits of their own.
                Err(_) if is_alive(way).await => Ok(asked.await),
                answer => answer,
            };
            let (unsent, failure) = match answer {
                // A server that has lost its store answers so.
                Ok(Ok(answer)) if several && answer.status() == StatusCode::GATEWAY_TIMEOUT => {
                    self.servers.leave(at);
                    return Ok(answer.map(|inner| Held { inner, left: None }));
                }
                Ok(Ok(answer)) => {
                    let left = self.servers.left(at);
                    return Ok(answer.map(|inner| Held { inner, left }));
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
    S: Service<Request<Body>, Response = Response<Incoming>, Error = legacy::Error> + Clone + Send + Sync + 'static,
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
    S: Service<Request<Body>, Response = Response<Incoming>, Error = legacy::Error>,
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
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let is_left = |left: &mut BoxFuture<'static, ()>| left.as_mut().poll(context).is_ready();
        if self.left.as_mut().is_some_and(is_left) {
            self.left = None;
            return Poll::Ready(Some(Err(Left.into())));
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
pub fn open(mut configuration: kube::Config, servers: &Servers) -> kube::Result<kube::Client> {
    configuration.headers.push((USER_AGENT, user_agent()?));
    let proxied = common_proxy::Connector::new(connector(), configuration.proxy_url.clone());
    let mut connector = TimeoutConnector::new(configuration.rustls_https_connector_with_connector(proxied)?);
    connector.set_connect_timeout(configuration.connect_timeout);
    connector.set_read_timeout(configuration.read_timeout);
    let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(UNUSED)
        .build(connector);
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
    connector.set_tcp_user_timeout(Some(SILENCE));
    connector.set_keepalive(Some(IDLE));
    connector.set_keepalive_interval(Some(PROBE));
    connector
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;

    async fn listen() -> (TcpListener, Uri) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        (listener, uri)
    }

    fn client(uris: &[Uri]) -> kube::Client {
        open(kube::Config::new(uris[0].clone()), &Servers::new(uris)).unwrap()
    }

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    /// Reads the head of a request.
    async fn request(connection: &mut TcpStream) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(connection.read_u8().await.unwrap());
        }
        String::from_utf8(request).unwrap()
    }

    /// Reads a request of the next connection, and answers it with this.
    async fn answer(listener: &TcpListener, text: &str) -> TcpStream {
        let (mut connection, _) = listener.accept().await.unwrap();
        request(&mut connection).await;
        connection.write_all(text.as_bytes()).await.unwrap();
        connection
    }

    const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    const BEGUN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";

    #[tokio::test]
    async fn the_next_server_is_asked_and_watches_begin_again_when_one_is_gone() {
        let ((first, one), (second, other)) = (listen().await, listen().await);
        let client = client(&[one, other]);
        let (begun, _connection) = tokio::join!(client.send(get("/watch")), answer(&first, BEGUN));
        let mut watch = begun.unwrap().into_body();
        watch.frame().await.unwrap().unwrap();
        drop(first);
        for _ in 0..2 {
            let (asked, _) = tokio::join!(client.send(get("/")), answer(&second, WHOLE));
            assert_eq!(asked.unwrap().into_body().collect().await.unwrap().to_bytes(), "{}");
        }
        assert!(watch.frame().await.unwrap().is_err(), "the watch of the first one ends");
    }

    #[tokio::test]
    async fn a_connection_that_nothing_uses_is_closed() {
        let (listener, uri) = listen().await;
        let client = client(&[uri]);
        let kept = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        let (asked, mut connection) = tokio::join!(client.send(get("/")), answer(&listener, kept));
        asked.unwrap().into_body().collect().await.unwrap();
        tokio::time::pause();
        let ended = tokio::time::timeout(UNUSED * 3, connection.read_u8()).await;
        assert!(ended.expect("it ends").is_err());
    }

    #[tokio::test]
    async fn a_server_that_has_lost_its_store_is_left() {
        let ((first, one), (second, other)) = (listen().await, listen().await);
        let client = client(&[one, other]);
        let lost = "HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (asked, ..) = tokio::join!(client.send(get("/")), answer(&first, lost), answer(&second, WHOLE));
        assert_eq!(asked.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn the_kubeconfigs_proxy_leads_to_the_server() {
        let (proxy, at) = listen().await;
        let mut configuration = kube::Config::new("http://192.0.2.1:6443".parse().unwrap());
        configuration.proxy_url = Some(at);
        let client = open(configuration, &Servers::new(&[])).unwrap();
        let led = async {
            let (mut connection, _) = proxy.accept().await.unwrap();
            let asked = request(&mut connection).await;
            assert!(asked.starts_with("CONNECT 192.0.2.1:6443 HTTP/1.1\r\n"), "{asked}");
            connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            request(&mut connection).await;
            connection.write_all(WHOLE.as_bytes()).await.unwrap();
            connection
        };
        let (asked, _connection) = tokio::join!(client.send(get("/")), led);
        assert_eq!(asked.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_request_fails_once_no_server_is_there_and_goes_on_when_one_is() {
        // Ports that nobody else gets, and at which nobody listens yet.
        let [first, second] = [(); 2].map(|()| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            socket
        });
        let uris: [Uri; 2] = [&first, &second].map(|socket| {
            let uri = format!("http://{}", socket.local_addr().unwrap());
            uri.parse().unwrap()
        });
        let client = client(&uris);
        client.send(get("/")).await.unwrap_err();
        let first = first.listen(1).unwrap();
        let (asked, _) = tokio::join!(client.send(get("/")), answer(&first, WHOLE));
        asked.unwrap();
    }

    #[tokio::test]
    async fn a_connection_whose_packets_vanish_ends_soon() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let uri = format!("https://{address}/").parse().unwrap();
        let stream = connector().oneshot(uri).await.unwrap().into_inner();
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENCE));
        assert!(
            socket.keepalive().unwrap(),
            "what waits for news is asked for a sign of life"
        );
        assert_eq!(socket.tcp_keepalive_time().unwrap(), IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE);
    }
}
