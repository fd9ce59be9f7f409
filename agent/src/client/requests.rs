//! Requests to the API server with timeouts. When the packets of a connection are dropped, its
//! requests are never answered: they fail, and are repeated once the connection was found dead.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests that take longer than this are retried.
const LIMIT: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request, and reads the whole answer. Watches are streamed: only the start has a timeout.
pub async fn send(client: kube::Client, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let watch = is_watch(request.uri());
    let answer = async {
        let (head, mut body) = client.send(request).await?.into_parts();
        if !watch {
            body = Body::from(body.collect().await?.to_bytes());
        }
        Ok::<_, Failure>(Response::from_parts(head, body))
    };
    timeout(LIMIT, answer).await?
}

/// Watches objects without end; an interrupted watch is resumed after a pause.
pub(crate) fn watch<K>(
    api: Api<K>,
    configuration: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let pauses = Pauses::default();
    let refused = Arc::clone(&pauses.refused);
    let changes = watcher::watcher(api, configuration).inspect(move |change| match change {
        // Each attempt begins with this one.
        Ok(Event::Init) => {}
        Err(error) if is_refusal(error) => {
            if !refused.swap(true, Ordering::Relaxed) {
                let (kind, error) = (K::kind(&()), image::chain(error));
                tracing::warn!(%kind, error, "a watch is refused; it will be tried again");
            }
        }
        Ok(_) | Err(_) => refused.store(false, Ordering::Relaxed),
    });
    changes.backoff(pauses)
}

fn is_refusal(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    matches!(
        error,
        InitialListFailed(kube::Error::Api(status))
            | WatchStartFailed(kube::Error::Api(status))
            | WatchFailed(kube::Error::Api(status))
            | WatchError(status)
            if status.code == 403
    )
}

/// Pauses of an interrupted watch. Other than those of client-go (`tools/cache/reflector.go`), they
/// grow only while it is refused: a node that renews its Lease again is Ready, and has to hear of
/// its pods.
#[derive(Default)]
struct Pauses {
    growing: DefaultBackoff,
    refused: Arc<AtomicBool>,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if !self.refused.load(Ordering::Relaxed) {
            self.growing.reset();
        }
        self.growing.next()
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}

/// Returns when earlier requests with a connection have been written. Each passes several tasks of
/// the client, which also wake the caller, so a single yield would return too early.
pub(crate) async fn written() {
    let mut turn = JoinSet::new();
    turn.spawn(tokio::task::yield_now());
    turn.join_next().await;
}

pub(super) fn is_watch(uri: &Uri) -> bool {
    let mut words = uri.query().unwrap_or_default().split('&');
    words.any(|word| word.starts_with("watch=") && word != "watch=false")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use bytes::Bytes;
    use futures::future::{self, Either};
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    async fn asked(client: &kube::Client, path: &str) -> Result<Response<Body>, Failure> {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let day = Duration::from_hours(24);
        timeout(day, send(client.clone(), request)).await.expect("it ends")
    }

    #[test]
    fn a_watch_is_resumed_soon_after_a_long_outage() {
        let pauses: Vec<Duration> = Pauses::default().take(20).collect();
        let are_short = pauses.iter().all(|pause| *pause < Duration::from_secs(2));
        assert!(are_short && pauses.len() == 20, "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_watch_is_tried_less_and_less() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let refusing = move |_: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let answer = Response::builder().status(403).body(Body::empty());
            future::ready(Ok::<_, Failure>(answer.unwrap()))
        };
        let client = kube::Client::new(tower::service_fn(refusing), "default");
        let changes = watch(Api::<ConfigMap>::all(client), watcher::Config::default());
        let endless = changes.for_each(|_| future::ready(()));
        timeout(Duration::from_mins(10), endless).await.unwrap_err();
        let asked = asked.load(Ordering::Relaxed);
        assert!((10..40).contains(&asked), "{asked}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_answered_ends() {
        let silent = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Failure>>();
        let client = kube::Client::new(tower::service_fn(silent), "default");
        for path in ["/api/v1/nodes/n", "/api/v1/pods?limit=5&watch=true"] {
            asked(&client, path).await.unwrap_err();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_ends_unless_it_is_a_watch() {
        type Part = Result<Frame<Bytes>, Failure>;
        let stopping = |_: Request<Body>| async {
            let body = StreamBody::new(stream::pending::<Part>());
            Ok::<_, Failure>(Response::new(body))
        };
        let client = kube::Client::new(tower::service_fn(stopping), "default");
        asked(&client, "/api/v1/nodes/n").await.unwrap_err();
        asked(&client, "/api/v1/pods?watch=true").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_arrives_whole() {
        let good = |_: Request<Body>| async { Ok::<_, Failure>(Response::new(Body::from(b"{}".to_vec()))) };
        let client = kube::Client::new(tower::service_fn(good), "default");
        let answer = asked(&client, "/api/v1/nodes/n").await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "{}");
    }

    /// Answers the first request of the only connection.
    fn answer_one(listener: &TcpListener) -> TcpStream {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        connection.write_all(answer.as_bytes()).unwrap();
        connection
    }

    #[tokio::test]
    async fn what_was_asked_is_on_its_way_before_other_work() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let configuration = kube::Config::new(server.parse().unwrap());
        let client =
            crate::client::connection::open(configuration, &crate::client::connection::Servers::new(&[])).unwrap();
        let answered = tokio::task::spawn_blocking(move || answer_one(&listener));
        let (answer, connection) = tokio::join!(asked(&client, "/"), answered);
        answer.unwrap();
        let mut connection = connection.unwrap();
        // The client's task, of this same thread, writes nothing while a read waits.
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = pin!(asked(&client, "/"));
        let other = pin!(async {
            written().await;
            connection.read(&mut [0; 1024])
        });
        match future::select(request, other).await {
            Either::Left((answer, _)) => panic!("{answer:?}"),
            Either::Right((read, _)) => assert!(read.unwrap() > 0),
        }
    }
}
