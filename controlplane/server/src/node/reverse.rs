//! Connections that nodes open for requests to their agents: nothing else leads to a node behind NAT.
//!
//! An agent asks each server at [`REVERSE_CONNECTION`](api::kinds::node::REVERSE_CONNECTION). A server that sees it at an
//! address of its Node, or else reaches it there, answers 204. Otherwise it answers 101 and keeps the connection until it has
//! a request; then the agent opens another one. Both sides prove themselves by TLS within it, as over a connection to the
//! node's address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::kinds::node::REVERSE_PROTOCOL;
use axum::body::Body;
use futures::FutureExt as _;
use http::header::UPGRADE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::agent::{self, Network};
use super::agents::Within;
use crate::authn::identity::{Source, User};
use crate::authz;
use crate::request::failure::Failure;
use crate::transport::respond::Response;
use crate::transport::tunnel;

/// Unused connections of a node; of more, the oldest one ends.
const UNUSED: usize = 4;
/// The time that a node has to open the next connection.
const ARRIVAL: Duration = Duration::from_secs(5);
/// The time for an attempt to reach an agent at its Node's address.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Bytes on the way in one direction.
const BUFFER: usize = 64 << 10;

/// Connections of nodes behind NAT.
#[derive(Default)]
pub struct ReverseConnections(Mutex<HashMap<String, Arc<Node>>>);

#[derive(Default)]
struct Node {
    unused: Mutex<Vec<DuplexStream>>,
    arrived: Notify,
}

impl ReverseConnections {
    fn nodes(&self) -> MutexGuard<'_, HashMap<String, Arc<Node>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection to a node's agent; `None` if the node opens none.
    pub(crate) async fn take(&self, node: &str) -> Option<DuplexStream> {
        let node = self.nodes().get(node).cloned()?;
        timeout(ARRIVAL, node.take()).await.ok()
    }

    fn has(&self, node: &str) -> bool {
        self.nodes().contains_key(node)
    }

    fn add(&self, node: &str, connection: DuplexStream) {
        let node = Arc::clone(self.nodes().entry(node.to_owned()).or_default());
        node.add(connection);
    }

    fn forget(&self, node: &str) {
        self.nodes().remove(node);
    }
}

impl Node {
    fn unused(&self) -> MutexGuard<'_, Vec<DuplexStream>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self) -> DuplexStream {
        loop {
            let newest = self.unused().pop();
            let Some(mut connection) = newest else {
                self.arrived.notified().await;
                continue;
            };
            if is_open(&mut connection) {
                return connection;
            }
        }
    }

    fn add(&self, connection: DuplexStream) {
        let mut unused = self.unused();
        unused.retain_mut(is_open);
        if unused.len() >= UNUSED {
            unused.remove(0);
        }
        unused.push(connection);
        self.arrived.notify_one();
    }
}

/// True for a connection that has not ended, and over which nothing has come unasked.
fn is_open(connection: &mut DuplexStream) -> bool {
    connection.read(&mut [0]).now_or_never().is_none()
}

/// Answers an agent that asks whether it has to keep a connection open.
///
/// # Errors
/// 404 for users that are no node; 503 before the Node has addresses; 400 for a connection that cannot be kept
pub(crate) async fn answer(
    network: &Network,
    reverse: &ReverseConnections,
    user: &User,
    parts: &mut Parts,
) -> Result<Response, Failure> {
    let node = authz::node(user).ok_or(Failure::NoSuchPath)?;
    let addresses = agent::addresses(&network.store, node).unwrap_or_default();
    if addresses.is_empty() {
        return Err(Failure::Unavailable {
            message: format!("the Node {node} has no addresses yet").into(),
        });
    }
    let peer = parts.extensions.get::<Source>().map(|source| source.0.ip());
    let is_direct = peer.is_some_and(|peer| addresses.contains(&peer));
    if is_direct || (!reverse.has(node) && is_reached(network, node).await) {
        reverse.forget(node);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let mut headers = HeaderMap::new();
    headers.insert(UPGRADE, HeaderValue::from_static(REVERSE_PROTOCOL));
    let (near, far) = tokio::io::duplex(BUFFER);
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let response = tunnel::open(upgrade, tunnel::headers(&headers), Box::new(far))?;
    reverse.add(node, near);
    Ok(response)
}

/// True if the agent answers at its Node's address: it may have come through a proxy, or from an address that its Node does
/// not tell.
async fn is_reached(network: &Network, node: &str) -> bool {
    let (Some(agents), Ok(agent)) = (&network.agents, agent::of_node(&network.store, node)) else {
        return false;
    };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static("/healthz");
    request.extensions_mut().insert(Within(ATTEMPT));
    timeout(2 * ATTEMPT, agents.ask(agent, request))
        .await
        .is_ok_and(|answer| answer.is_ok())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_takes_the_newest_connection_that_is_open_or_waits_for_one() {
        let reverse = ReverseConnections::default();
        assert!(reverse.take("n1").await.is_none(), "it opens none");
        let mut fars = Vec::new();
        for _ in 0..3 {
            let (near, far) = tokio::io::duplex(BUFFER);
            reverse.add("n1", near);
            fars.push(far);
        }
        let (first, mut second, third) = {
            let mut all = fars.into_iter();
            (all.next().unwrap(), all.next().unwrap(), all.next().unwrap())
        };
        drop(third);
        let mut taken = reverse.take("n1").await.unwrap();
        taken.write_all(b"request").await.unwrap();
        let mut seen = [0; 7];
        second.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"request");
        drop(first);
        assert!(reverse.take("n1").await.is_none(), "none came in time");
        let arrives = async {
            tokio::time::sleep(ARRIVAL / 2).await;
            let (near, far) = tokio::io::duplex(BUFFER);
            reverse.add("n1", near);
            far
        };
        let (taken, _far) = tokio::join!(reverse.take("n1"), arrives);
        assert!(taken.is_some());
    }

    #[tokio::test]
    async fn attack_a_node_that_opens_many_connections_keeps_few() {
        let reverse = ReverseConnections::default();
        let mut fars = Vec::new();
        for _ in 0..100 {
            let (near, far) = tokio::io::duplex(BUFFER);
            reverse.add("n1", near);
            fars.push(far);
        }
        fars.retain_mut(is_open);
        assert_eq!(fars.len(), UNUSED);
    }
}
