//! Connections to webhooks: to a host that a URL names, or to a ready endpoint of a Service.
//!
//! The control plane's machine may have no route to Services or pods. A pod is reached through the
//! agent of its node, as by the proxy of Services; an endpoint without a pod is dialed at its
//! address.

use std::io;
use std::net::SocketAddr;

use axum::body::Body;
use http::Request;
use k8s_openapi::api::core::v1::Service;
use rand::seq::IndexedRandom;
use store::Key;
use thiserror::Error;
use tokio::net::TcpStream;

use crate::node::agent::{self, Network};
use crate::node::agents::{Agent, Answer, Stream};
use crate::node::proxy::endpoints::{Endpoint, ready};
use crate::transport::dialer;

/// The place where a webhook is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Host { name: String, port: u16 },
    Service { namespace: String, name: String, port: i32 },
}

/// Failure to connect, in Go's words.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct DialError(pub(super) String);

type Dialed = Result<Box<dyn Stream>, DialError>;

/// Opens a connection.
pub(crate) async fn dial(network: &Network, address: &Address) -> Dialed {
    match address {
        Address::Host { name, port } => host(name, *port).await,
        Address::Service { namespace, name, port } => service(network, namespace, name, *port).await,
    }
}

async fn host(name: &str, port: u16) -> Dialed {
    let unknown = |error: Option<io::Error>| {
        let known = error.filter(|error| error.raw_os_error().is_some());
        DialError(match known {
            Some(error) => format!("dial tcp: lookup {name}: {}", dialer::plain(&error)),
            None => format!("dial tcp: lookup {name}: no such host"),
        })
    };
    let found = tokio::net::lookup_host((name, port)).await;
    let mut last = unknown(None);
    for address in found.map_err(|error| unknown(Some(error)))? {
        match connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect(address: SocketAddr) -> Dialed {
    let stream = TcpStream::connect(address).await;
    let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
    let refused = |error: io::Error| DialError(dialer::refused(address, &error));
    Ok(Box::new(stream.map_err(refused)?))
}

/// `ResolveEndpoint` and `ResolveCluster` of upstream's `pkg/util/proxy/proxy.go`, for machines
/// without a route to Services.
async fn service(network: &Network, namespace: &str, name: &str, port: i32) -> Dialed {
    let missing = || DialError(format!("service {name:?} not found"));
    let key = Key::new("", "services", namespace, name).map_err(|_invalid| missing())?;
    let entry = network.store.get(&key).ok_or_else(missing)?;
    let service: Service = serde_json::from_slice(&entry.bytes).map_err(|error| DialError(error.to_string()))?;
    let spec = service.spec.unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        let port = u16::try_from(port).map_err(|_error| missing())?;
        return host(&spec.external_name.unwrap_or_default(), port).await;
    }
    let own = spec.ports.iter().flatten().find(|own| own.port == port);
    let own = own.ok_or_else(|| DialError(format!("no service port {port} found for service {name:?}")))?;
    let found = ready(&network.store, namespace, name, own.name.as_deref().unwrap_or_default());
    let found = found.map_err(|error| DialError(error.to_string()))?;
    let chosen = found.choose(&mut rand::rng());
    let chosen = chosen.ok_or_else(|| DialError(format!("no endpoints available for service {name:?}")))?;
    endpoint(network, namespace, chosen).await
}

async fn endpoint(network: &Network, namespace: &str, endpoint: &Endpoint) -> Dialed {
    if let (Some(pod), Some(node), Some(agents)) = (&endpoint.pod, &endpoint.node, &network.agents) {
        let agent: Agent = agent::of_node(&network.store, node).map_err(|error| DialError(error.to_string()))?;
        let request = Request::get(format!("/dial/{namespace}/{pod}/{}", endpoint.port))
            .header("connection", "Upgrade")
            .header("upgrade", "tcp")
            .body(Body::empty())
            .map_err(|error| DialError(error.to_string()))?;
        return match agents.ask(agent, request).await {
            Ok(Answer::Switched(_, stream)) => Ok(stream),
            Ok(Answer::Whole(answer)) => Err(DialError(agent::words(answer).await)),
            Err(error) => Err(DialError(error.to_string())),
        };
    }
    match endpoint.address.parse() {
        Ok(address) => connect(SocketAddr::new(address, endpoint.port)).await,
        Err(_) => host(&endpoint.address, endpoint.port).await,
    }
}
