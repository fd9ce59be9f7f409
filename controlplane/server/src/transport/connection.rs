//! HTTP request over a connection of its own, and its answer, which may switch protocols.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::error::Elapsed;

use crate::node::agents::{Answer, Stream};
use crate::transport::dialer;

/// Headers of an answer, and their bytes. Go takes ten times as many bytes, which any pod could have the server hold.
pub(crate) const HEADERS: usize = 4096;
pub(crate) const HEADER_BYTES: usize = 1 << 20;

pub(crate) type Connection = BoxFuture<'static, hyper::Result<()>>;

/// Sends a request; the answer's body streams. The head of the answer must come within `limit`;
/// without one, the caller waits for it as long as it wants.
pub(crate) async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Body>,
    limit: Option<Duration>,
) -> io::Result<Answer> {
    let handshake = http1::Builder::new()
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let mut connection: Option<Connection> = Some(connection.with_upgrades().boxed());
    let mut asked = std::pin::pin!(sender.send_request(request));
    let answer = poll_fn(|context| {
        drive(&mut connection, context);
        asked.as_mut().poll(context)
    });
    let answer = match limit {
        Some(limit) => tokio::time::timeout(limit, answer).await.map_err(late)?,
        None => answer.await,
    };
    let mut answer = answer.map_err(|error| io::Error::other(dialer::broken(&error)))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let mut upgrade = std::pin::pin!(hyper::upgrade::on(&mut answer));
        let upgraded = poll_fn(|context| {
            drive(&mut connection, context);
            upgrade.as_mut().poll(context)
        });
        let stream = TokioIo::new(upgraded.await.map_err(io::Error::other)?);
        let (head, _) = answer.into_parts();
        return Ok(Answer::Switched(head, Box::new(stream)));
    }
    let (head, body) = answer.into_parts();
    let body = Body::new(Driven { connection, body });
    Ok(Answer::Whole(Response::from_parts(head, body)))
}

fn late(_: Elapsed) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "net/http: timeout awaiting response headers")
}

/// Drives the connection. Its failure shows in the future that uses it.
pub(crate) fn drive(connection: &mut Option<Connection>, context: &mut Context<'_>) {
    if let Some(running) = connection
        && running.as_mut().poll(context).is_ready()
    {
        *connection = None;
    }
}

/// Body that drives its connection: dropping it closes the connection.
struct Driven {
    connection: Option<Connection>,
    body: Incoming,
}

impl http_body::Body for Driven {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        drive(&mut self.connection, context);
        Pin::new(&mut self.body).poll_frame(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Sends a request to a server that answers after ten minutes.
    async fn slow(limit: Option<Duration>) -> io::Result<StatusCode> {
        let (near, mut far) = tokio::io::duplex(1024);
        let answering = async move {
            let mut request = [0; 1024];
            let _some = far.read(&mut request).await?;
            tokio::time::sleep(Duration::from_mins(10)).await;
            far.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?;
            Ok(far)
        };
        let request = Request::get("/").header("host", "a").body(Body::empty()).unwrap();
        let (answer, far) = tokio::join!(exchange(Box::new(near), request, limit), answering);
        drop::<io::Result<_>>(far);
        answer.map(|answer| match answer {
            Answer::Whole(answer) => answer.status(),
            Answer::Switched(..) => panic!("nobody asked for another protocol"),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_behind_a_proxy_takes_its_time() {
        assert_eq!(slow(None).await.unwrap(), StatusCode::NO_CONTENT);
        let late = slow(Some(Duration::from_secs(30))).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
