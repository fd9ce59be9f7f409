//! Questions over TCP. hickory-server would take any number of connections, and a pod could take all descriptors of the
//! agent: here each client has its part of them.

use std::net::SocketAddr;
use std::time::Duration;

use common::shares::{Share, Shares};
use futures::StreamExt as _;
use hickory_server::net::runtime::TokioTime;
use hickory_server::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_server::net::tcp::TcpStream;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::MessageType;
use hickory_server::server::{Request, RequestHandler, ResponseHandle, TimeoutStream};
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::debug;

/// Longest time that a connection may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// Answers that may wait on a connection.
const ANSWERS: usize = 8;
/// Connections, and those of one client; further ones are closed at once.
const CONNECTIONS: usize = 512;
const CONNECTIONS_EACH: usize = 32;
/// Time before the next try when no connection could be taken.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers clients of these ranges for ever.
pub(crate) async fn serve<H: RequestHandler + Clone>(listener: TcpListener, handler: H, clients: Vec<IpNet>) {
    let places = Shares::new(CONNECTIONS, CONNECTIONS_EACH);
    let mut connections = JoinSet::new();
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "a connection was lost before it began");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if !clients.iter().any(|range| range.contains(&client.ip())) {
            continue;
        }
        let Some(place) = places.take(client.ip()) else {
            debug!(%client, "too many connections");
            continue;
        };
        connections.spawn(answer(stream, client, handler.clone(), place));
    }
}

async fn answer<H: RequestHandler>(stream: tokio::net::TcpStream, client: SocketAddr, handler: H, _place: Share) {
    let (stream, answers) = TcpStream::from_stream_with_buffer_size(AsyncIoTokioAsStd(stream), client, ANSWERS);
    let mut questions = TimeoutStream::new(stream, SILENCE);
    // One after the other: no client has more than one of a connection's questions under way.
    while let Some(Ok(question)) = questions.next().await {
        let (bytes, _) = question.into_parts();
        let Ok(request) = Request::from_bytes(bytes, client, Protocol::Tcp) else {
            return;
        };
        if request.metadata.message_type == MessageType::Response {
            return;
        }
        let out = ResponseHandle::new(client, answers.clone(), Protocol::Tcp);
        handler.handle_request::<_, TokioTime>(&request, out).await;
    }
}
