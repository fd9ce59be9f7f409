//! Connection to the API server. If its packets are dropped, the kernel reports it after half a
//! minute: an idle watch would not notice it otherwise.

use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _, retry::RetryPolicy};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::node::{VERSION, architecture};

/// Longest time that sent data may stay unacknowledged by the peer.
const SILENCE: Duration = Duration::from_secs(30);
/// An idle connection is probed after this time, and then at this interval.
const IDLE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);

/// Creates a client like kube's own, with a kubelet's user agent: it is the manager of the fields
/// that it writes.
pub fn open(mut configuration: kube::Config) -> kube::Result<kube::Client> {
    configuration.headers.push((USER_AGENT, user_agent()?));
    if configuration.proxy_url.is_some() {
        return kube::Client::try_from(configuration);
    }
    let mut connector = TimeoutConnector::new(configuration.rustls_https_connector_with_connector(connector())?);
    connector.set_connect_timeout(configuration.connect_timeout);
    connector.set_read_timeout(configuration.read_timeout);
    let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let retries = configuration
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(configuration.base_uri_layer())
        .option_layer(retries)
        .option_layer(configuration.auth_layer()?)
        .layer(configuration.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, configuration.default_namespace).build())
}

fn user_agent() -> kube::Result<HeaderValue> {
    let name = format!(
        "kubelet/{VERSION} ({}/{}) kubernetes/skiff",
        std::env::consts::OS,
        architecture()
    );
    HeaderValue::from_str(&name).map_err(|error| kube::Error::HttpError(error.into()))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_tcp_user_timeout(Some(SILENCE));
    connector.set_keepalive(Some(IDLE));
    connector.set_keepalive_interval(Some(PROBE));
    connector
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_connection_whose_packets_vanish_ends_soon() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let uri = format!("https://{address}/").parse().unwrap();
        let stream = connector().oneshot(uri).await.unwrap().into_inner();
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENCE));
        assert!(
            socket.keepalive().unwrap(),
            "what waits for news is asked for a sign of life"
        );
        assert_eq!(socket.tcp_keepalive_time().unwrap(), IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE);
    }
}
