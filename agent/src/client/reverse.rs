//! Connections that the node opens for the API servers' requests to it: nothing else leads to a node behind NAT.
//!
//! A server that reaches the node at its address needs none, and says so. Otherwise a few connections wait for requests, with
//! which they are handed on to the agent's own server, and the next ones are opened.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tower::BoxError;
use tracing::debug;

/// Time after which a server that needed no connection is asked again.
const AGAIN: Duration = Duration::from_mins(10);
/// Pause after a failure, twice as long after each further one, and after the end of a connection that was not used.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The time that a server has to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Connections that wait for a request: the server may have several at once.
const WAITING: usize = 3;
/// Connections in use and waiting.
const USED: usize = 256;
/// Bytes of a request's beginning.
const BEGINNING: usize = 4 << 10;

/// Keeps connections to one server as long as it needs some; `own` is where the agent listens.
pub async fn run<Connecting, Failed>(connect: impl Fn() -> Connecting, mut own: SocketAddr) -> Infallible
where
    Connecting: Future<Output = Result<kube::Client, Failed>>,
    Failed: Into<BoxError>,
{
    if own.ip().is_unspecified() {
        own.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let waiting = Arc::new(Semaphore::new(WAITING));
    let mut used = JoinSet::new();
    let mut pause = PAUSE;
    loop {
        while used.try_join_next().is_some() || (used.len() >= USED && used.join_next().await.is_some()) {}
        // It is never closed.
        let Ok(place) = Arc::clone(&waiting).acquire_owned().await else {
            continue;
        };
        let opened = match connect().await {
            Ok(client) => open(client).await,
            Err(error) => Err(error.into()),
        };
        match opened {
            Ok(Some(connection)) => {
                pause = PAUSE;
                used.spawn(serve(connection, own, place));
            }
            Ok(None) => {
                pause = PAUSE;
                sleep(AGAIN).await;
            }
            Err(error) => {
                debug!(error, "no connection for the API server's requests");
                sleep(pause).await;
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        }
    }
}

/// Opens a connection for requests of the server; `None` if it needs none.
async fn open(client: kube::Client) -> Result<Option<TokioIo<Upgraded>>, BoxError> {
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
    let upgraded = hyper::upgrade::on(&mut answer).await?;
    Ok(Some(TokioIo::new(upgraded)))
}

/// Waits for a request, and joins its connection with the agent's own server. Then another one takes the place of those that
/// wait.
async fn serve(mut connection: TokioIo<Upgraded>, own: SocketAddr, place: OwnedSemaphorePermit) {
    let mut beginning = vec![0; BEGINNING];
    let length = connection.read(&mut beginning).await.unwrap_or(0);
    if length == 0 {
        // The server ended it, or is gone.
        return sleep(PAUSE).await;
    }
    drop(place);
    beginning.truncate(length);
    if let Err(error) = join(connection, &beginning, own).await {
        debug!(%error, "a connection of an API server ended");
    }
}

async fn join(mut connection: TokioIo<Upgraded>, beginning: &[u8], own: SocketAddr) -> std::io::Result<()> {
    let mut server = TcpStream::connect(own).await?;
    server.set_nodelay(true)?;
    server.write_all(beginning).await?;
    copy_bidirectional(&mut connection, &mut server).await.map(drop)
}
