//! Asks the agent of a node, over HTTPS with both sides' certificates checked.
//!
//! The agent must prove the node's name with a certificate of the cluster's authority: an address
//! alone, which a node reports itself, is not trusted. Addresses that cannot be a node's are
//! rejected all the same: unspecified, multicast, link-local (cloud metadata services), and
//! loopback, except where the whole cluster is on one machine and its server listens on loopback
//! itself. Redirects are refused, not followed. A node behind NAT is reached over connections that it opens (`reverse`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::Body;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::authn::pki::{Identity, Pki};
use crate::node::agents::{Agent, AgentError, Agents, Answer, Stream, Within};
use crate::node::reverse::ReverseConnections;
use crate::transport::connection;
use crate::transport::dialer;
use crate::transport::tls::TlsError;

/// The time for the connection and the handshake, unless the request has its own.
const CONNECT: Duration = Duration::from_secs(10);
/// The time for the handshake over a connection that a node has opened.
const REVERSE: Duration = Duration::from_secs(3);
/// The time for the head of an agent's answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Time that a node has to acknowledge sent data (`TCP_USER_TIMEOUT`).
const SILENCE: Duration = Duration::from_secs(30);
/// TCP keepalive: idle time, interval and number of probes.
const IDLE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Asks agents over the network.
pub struct NodeProxy {
    connector: RwLock<TlsConnector>,
    loopback: bool,
    reverse: Arc<ReverseConnections>,
}

impl NodeProxy {
    /// `identity` is the client certificate for agents; `loopback` permits loopback addresses of
    /// nodes.
    pub fn new(pki: &Pki, identity: &Identity, loopback: bool) -> Result<Self, TlsError> {
        Ok(Self {
            connector: RwLock::new(connector(pki, identity)?),
            loopback,
            reverse: Arc::default(),
        })
    }

    /// Connections of nodes that cannot be reached at their addresses.
    pub fn reverse(&self) -> Arc<ReverseConnections> {
        Arc::clone(&self.reverse)
    }

    /// Shows agents another certificate from now on; connections that there are go on.
    pub fn renew(&self, pki: &Pki, identity: &Identity) -> Result<(), TlsError> {
        let renewed = connector(pki, identity)?;
        *self.connector.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }
}

fn connector(pki: &Pki, identity: &Identity) -> Result<TlsConnector, TlsError> {
    let mut roots = RootCertStore::empty();
    roots
        .add(pki.authority_der().map_err(TlsError::Certificates)?)
        .map_err(TlsError::Setup)?;
    let (chain, key) = identity.to_der().map_err(TlsError::Certificates)?;
    let provider = Arc::new(common_tls::provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Setup)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Agents for NodeProxy {
    fn ask(&self, agent: Agent, request: Request<Body>) -> BoxFuture<'static, Result<Answer, AgentError>> {
        let connector = self.connector.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (loopback, reverse) = (self.loopback, self.reverse());
        Box::pin(ask(connector, (loopback, reverse), agent, request))
    }
}

async fn ask(
    connector: TlsConnector,
    ways: (bool, Arc<ReverseConnections>),
    agent: Agent,
    mut request: Request<Body>,
) -> Result<Answer, AgentError> {
    let within = request.extensions().get().map_or(CONNECT, |within: &Within| within.0);
    let dialed = dial(&connector, ways, &agent, within).await;
    let (stream, silence) = dialed.map_err(|because| AgentError::Unreachable { because })?;
    let silent = |error: io::Error| AgentError::Silent {
        because: error.to_string(),
    };
    let host = HeaderValue::from_str(&agent.node).map_err(|error| silent(io::Error::other(error)))?;
    request.headers_mut().insert(header::HOST, host);
    let answer = connection::exchange(Box::new(stream), request, Some(ANSWER)).await;
    let answer = match answer.map_err(silent)? {
        Answer::Whole(answer) => answer,
        switched @ Answer::Switched(..) => {
            silence.map_or(Ok(()), Silence::allow).map_err(silent)?;
            return Ok(switched);
        }
    };
    if answer.status().is_redirection() {
        return Err(AgentError::Silent {
            because: "redirects forbidden".to_owned(),
        });
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(Answer::Whole(response))
}

/// Opens a connection to an agent with a verified certificate, or returns the error's message.
async fn dial(
    connector: &TlsConnector,
    (loopback, reverse): (bool, Arc<ReverseConnections>),
    agent: &Agent,
    within: Duration,
) -> Result<(TlsStream<Box<dyn Stream>>, Option<Silence>), String> {
    let deadline = Instant::now() + within;
    let address = address(&agent.address, loopback).map_err(|error| error.to_string())?;
    let address = SocketAddr::new(address, agent.port);
    let name = ServerName::try_from(agent.node.clone()).map_err(|error| error.to_string())?;
    // The machine of one that waits may have lost its power.
    while let Ok(Some(stream)) = timeout_at(deadline, reverse.take(&agent.node)).await {
        let secured = timeout(
            REVERSE,
            connector.connect(name.clone(), Box::new(stream) as Box<dyn Stream>),
        );
        if let Ok(Ok(Ok(stream))) = timeout_at(deadline, secured).await {
            return Ok((stream, None));
        }
    }
    let connected = timeout_at(deadline, TcpStream::connect(address)).await;
    let stream = connected.map_err(io::Error::from).flatten();
    let stream = stream.map_err(|error| dialer::refused(address, &error))?;
    let kept = stream.set_nodelay(true).and_then(|()| Silence::limit(&stream));
    let silence = kept.map_err(|error| dialer::plain(&error))?;
    let secured = timeout_at(deadline, connector.connect(name, Box::new(stream) as Box<dyn Stream>)).await;
    let secured = secured.map_err(|_late| "net/http: TLS handshake timeout".to_owned())?;
    let stream = secured.map_err(|error| dialer::unsecured(&error))?;
    Ok((stream, Some(silence)))
}

/// Timeout for a node that has to send or acknowledge something.
struct Silence(Socket);

impl Silence {
    /// Sets keepalive and timeout: otherwise a client that follows a log of a dead machine would
    /// wait for minutes.
    fn limit(stream: &TcpStream) -> io::Result<Self> {
        let probes = TcpKeepalive::new()
            .with_time(IDLE)
            .with_interval(PROBE)
            .with_retries(PROBES);
        let socket = SockRef::from(stream);
        socket.set_tcp_keepalive(&probes)?;
        socket.set_tcp_user_timeout(Some(SILENCE))?;
        Ok(Self(socket.try_clone()?))
    }

    /// Disables the timeout: a program may leave its input unread for any time, which the kernel
    /// counts as silence, too.
    fn allow(self) -> io::Result<()> {
        self.0.set_tcp_user_timeout(None)
    }
}

/// Parses the address of a node; rejects those that no node can have.
fn address(text: &str, loopback: bool) -> io::Result<IpAddr> {
    let refused = |because: &str| io::Error::other(format!("the node's address {text} is refused: {because}"));
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(refused("it is no IP address"));
    };
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    match address {
        address if address.is_unspecified() || address.is_multicast() || link_local => {
            Err(refused("no node can have it"))
        }
        address if address.is_loopback() && !loopback => Err(refused("it is this machine's loopback")),
        address => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_a_node_can_have() {
        let known = |text: &str| address(text, false).is_ok();
        assert!(known("10.1.2.3") && known("fd00::7") && known("::ffff:10.1.2.3"));
        for text in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "255.255.255.255",
            "metadata.internal",
            "10.0.0.1:80",
            "",
        ] {
            assert!(!known(text), "{text}");
        }
        assert!(address("127.0.0.1", true).is_ok() && address("169.254.169.254", true).is_err());
    }
}
