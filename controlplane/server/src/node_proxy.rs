//! Asks the agent of a node for containers' output, over HTTPS with both sides' certificates checked.
//!
//! The agent must prove the node's name with a certificate of the cluster's authority: an address alone, which a node
//! reports itself, opens nothing. Addresses that could only mean something else than a node are refused all the same:
//! unspecified, multicast, link-local (where clouds keep their metadata), and loopback, except where the whole cluster is on
//! one machine and its server listens on loopback itself. Redirects are refused, not followed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body::Frame;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::logs::{LogError, LogRequest, LogSource};
use crate::pki::{Identity, Pki};
use crate::tls::TlsError;

/// The time for the connection and the handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// The time for the answer's head.
const ANSWER: Duration = Duration::from_secs(30);

/// Asks agents over the network.
pub struct NodeProxy {
    connector: TlsConnector,
    loopback: bool,
}

impl NodeProxy {
    /// `identity` is what agents know the server by; `loopback` says whether nodes may have loopback addresses.
    pub fn new(pki: &Pki, identity: &Identity, loopback: bool) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        roots
            .add(pki.authority_der().map_err(TlsError::Certificates)?)
            .map_err(TlsError::Setup)?;
        let (chain, key) = identity.to_der().map_err(TlsError::Certificates)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(TlsError::Setup)?;
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            loopback,
        })
    }
}

impl LogSource for NodeProxy {
    fn logs(&self, request: LogRequest) -> BoxFuture<'static, Result<Response<Body>, LogError>> {
        let (connector, loopback) = (self.connector.clone(), self.loopback);
        Box::pin(async move {
            let node = request.node_name.clone();
            ask(connector, loopback, request)
                .await
                .map_err(|error| LogError::Unreachable {
                    node,
                    because: error.to_string(),
                })
        })
    }
}

async fn ask(connector: TlsConnector, loopback: bool, request: LogRequest) -> io::Result<Response<Body>> {
    let address = address(&request.node_address, loopback)?;
    let name = ServerName::try_from(request.node_name.clone()).map_err(io::Error::other)?;
    let dial = async {
        let stream = TcpStream::connect(SocketAddr::new(address, request.port)).await?;
        stream.set_nodelay(true)?;
        connector.connect(name, stream).await
    };
    let stream = tokio::time::timeout(CONNECT, dial).await??;
    let head = Request::get(&request.path_and_query)
        .header(header::HOST, &request.node_name)
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let mut connection = Box::pin(connection);
    let exchange = async {
        tokio::select! {
            answer = sender.send_request(head) => answer.map_err(io::Error::other),
            ended = connection.as_mut() => Err(match ended {
                Ok(()) => io::ErrorKind::ConnectionReset.into(),
                Err(error) => io::Error::other(error),
            }),
        }
    };
    let answer = tokio::time::timeout(ANSWER, exchange).await??;
    if answer.status().is_redirection() {
        return Err(io::Error::other(
            "the agent answered with a redirect, which is not followed",
        ));
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(Body::new(Driven {
        connection: Some(connection),
        body,
    }));
    *response.status_mut() = head.status;
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}

/// The address of a node, unless it could only be something else.
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

type Connection = http1::Connection<TokioIo<TlsStream<TcpStream>>, Empty<Bytes>>;

/// An answer's body that drives its connection: when the reader goes away, so does the connection.
struct Driven {
    connection: Option<Pin<Box<Connection>>>,
    body: Incoming,
}

impl http_body::Body for Driven {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(ended) = connection.as_mut().poll(context)
        {
            self.connection = None;
            if let Err(error) = ended {
                return Poll::Ready(Some(Err(error)));
            }
        }
        Pin::new(&mut self.body).poll_frame(context)
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
