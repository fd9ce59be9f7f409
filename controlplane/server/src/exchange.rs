//! One HTTP request over a connection of its own, and its answer, which may switch protocols.

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

use crate::agents::{Answer, Stream};

/// The time for the answer's head.
const ANSWER: Duration = Duration::from_secs(30);

type Connection = BoxFuture<'static, hyper::Result<()>>;

/// Sends a request; the answer's body streams.
pub(crate) async fn exchange(stream: Box<dyn Stream>, request: Request<Body>) -> io::Result<Answer> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let mut connection: Option<Connection> = Some(connection.with_upgrades().boxed());
    let mut asked = std::pin::pin!(sender.send_request(request));
    let answer = poll_fn(|context| {
        drive(&mut connection, context);
        asked.as_mut().poll(context)
    });
    let answer = tokio::time::timeout(ANSWER, answer).await?;
    let mut answer = answer.map_err(io::Error::other)?;
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

/// The connection's own work. How it ends shows in what is waited for over it.
fn drive(connection: &mut Option<Connection>, context: &mut Context<'_>) {
    if let Some(running) = connection
        && running.as_mut().poll(context).is_ready()
    {
        *connection = None;
    }
}

/// An answer's body that drives its connection: when the reader goes away, so does the connection.
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
