//! Connections that the node opens for the API servers' requests to it: nothing else leads to a node behind NAT.
//!
//! A server that reaches the node at its address needs none, and says so. Otherwise one connection waits for a request, with
//! which it is handed on to the agent's own server, and the next one is opened.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use api::kinds::node::{REVERSE_CONNECTION, REVERSE_PROTOCOL};
use common::task::JoinSet;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tower::BoxError;
use tracing::debug;

/// Time after which a server that needed no connection is asked again.
const AGAIN: Duration = Duration::from_mins(10);
/// Pause after a failure, or the end of a connection that was not used.
const PAUSE: Duration = Duration::from_secs(2);
/// The time that a server has to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Connections in use.
const USED: usize = 256;
/// Bytes of a request's beginning.
const BEGINNING: usize = 4 << 10;

/// A connection over which a request has begun to come.
struct Begun {
    connection: TokioIo<Upgraded>,
    beginning: Vec<u8>,
}

/// Keeps a connection to one server as long as it needs one; `own` is where the agent listens.
pub async fn run<Connecting, Failed>(connect: impl Fn() -> Connecting, own: SocketAddr) -> Infallible
where
    Connecting: Future<Output = Result<kube::Client, Failed>>,
    Failed: Into<BoxError>,
{
    let mut own = own;
    if own.ip().is_unspecified() {
        own.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let mut used = JoinSet::new();
    loop {
        while used.try_join_next().is_some() || (used.len() >= USED && used.join_next().await.is_some()) {}
        let asked = match connect().await {
            Ok(client) => ask(client).await,
            Err(error) => Err(error.into()),
        };
        match asked {
            Ok(Some(begun)) => drop(used.spawn(hand_on(begun, own))),
            Ok(None) => sleep(AGAIN).await,
            Err(error) => {
                debug!(error, "no connection for the API server's requests");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Waits for a request of the server; `None` if it needs no connection.
async fn ask(client: kube::Client) -> Result<Option<Begun>, BoxError> {
    let request = Request::get(REVERSE_CONNECTION)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, REVERSE_PROTOCOL)
        .body(Body::empty())?;
    let mut answer = timeout(ANSWER, client.send(request)).await??;
    match answer.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        // Other servers than Skiff's know no such path.
        StatusCode::NO_CONTENT | StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => return Ok(None),
        other => return Err(format!("the server answers {other}").into()),
    }
    let mut connection = TokioIo::new(hyper::upgrade::on(&mut answer).await?);
    let mut beginning = vec![0; BEGINNING];
    let length = connection.read(&mut beginning).await?;
    if length == 0 {
        return Err("it ended without a request".into());
    }
    beginning.truncate(length);
    Ok(Some(Begun { connection, beginning }))
}

/// Joins a connection with the agent's own server.
async fn hand_on(begun: Begun, own: SocketAddr) {
    let Begun {
        mut connection,
        beginning,
    } = begun;
    let joined = async {
        let mut server = TcpStream::connect(own).await?;
        server.set_nodelay(true)?;
        server.write_all(&beginning).await?;
        copy_bidirectional(&mut connection, &mut server).await
    };
    if let Err(error) = joined.await {
        debug!(%error, "a connection of an API server ended");
    }
}
