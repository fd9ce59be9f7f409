//! Requests to the API server with timeouts. When the packets of a connection are dropped, its
//! requests are never answered: only a timeout makes the client retry over another connection,
//! before the cluster marks the node as lost.

use std::time::Duration;

use http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
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

/// Pauses of an interrupted watch. Other than those of client-go (`tools/cache/reflector.go`), they do
/// not grow: a node that renews its Lease again is Ready, and has to hear of its pods.
#[derive(Default)]
pub(crate) struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.reset();
        self.0.next()
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

fn is_watch(uri: &Uri) -> bool {
    let mut words = uri.query().unwrap_or_default().split('&');
    words.any(|word| word.starts_with("watch=") && word != "watch=false")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::pin::pin;

    use bytes::Bytes;
    use futures::future::{self, Either};
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

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
