//! Answers health checks of load balancers: at each `healthCheckNodePort` whether the node has
//! endpoints of a Service (`pkg/proxy/healthcheck/service_health.go`), and at a port for all
//! Services whether the node leads to them at all ([`proxy_health`](super::proxy_health)); at one
//! more port the proxy's metrics are told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_plan::network::proxy::HealthCheck;
use axum::response::{IntoResponse, Response};
use common::shares::Shares;
use common::task::JoinSet;
use http::StatusCode;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::proxy_health::ProxyHealth;
use crate::context::{Context, ServiceProxy};
use crate::serve::metrics;

/// Maximum number of connections to all ports, and of one client; further ones are closed at once.
const CONNECTIONS: usize = 256;
const CONNECTIONS_EACH: usize = 16;
/// Timeout of a connection: load balancers send one request.
const DEADLINE: Duration = Duration::from_secs(5);
/// Delay after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval of the attempts to get a port that another program has (`serveHealthz`,
/// `cmd/kube-proxy/app/server.go`).
const RETRY: Duration = Duration::from_secs(5);

type Told = Arc<Mutex<HealthCheck>>;

/// Answers a request for a path.
type Answer = Arc<dyn Fn(&str) -> Response + Send + Sync>;

/// Ports of the health checks.
pub(super) struct HealthChecks {
    servers: JoinSet<()>,
    places: Arc<Shares>,
    ports: BTreeMap<u16, (AbortHandle, Told)>,
    proxy: Arc<ProxyHealth>,
}

impl HealthChecks {
    /// Tells the proxy's health and its metrics at their ports, if there are any.
    pub(super) fn new(context: &Arc<Context>, proxy: Arc<ProxyHealth>, wanted: &ServiceProxy) -> Self {
        let (mut servers, places) = (JoinSet::new(), Shares::new(CONNECTIONS, CONNECTIONS_EACH));
        if let Some(port) = wanted.health_port {
            let own = Arc::clone(&proxy);
            let answer: Answer = Arc::new(move |path: &str| own.answer(path));
            servers.spawn(listen(everywhere(port), answer, Arc::clone(&places)));
        }
        if let Some(address) = wanted.metrics_address {
            let (own, context) = (Arc::clone(&proxy), Arc::clone(context));
            let answer: Answer =
                Arc::new(move |path: &str| metrics::proxy::at(path, &context.programmed, &own.counts()));
            servers.spawn(listen(address, answer, Arc::clone(&places)));
        }
        Self {
            servers,
            places,
            ports: BTreeMap::new(),
            proxy,
        }
    }

    /// Listens on exactly these ports.
    pub(super) fn serve(&mut self, checks: BTreeMap<u16, HealthCheck>) {
        self.ports.retain(|port, (server, _)| {
            let wanted = checks.contains_key(port);
            if !wanted {
                server.abort();
            }
            wanted
        });
        while self.servers.try_join_next().is_some() {}
        for (port, check) in checks {
            if let Some((server, told)) = self.ports.get(&port)
                && !server.is_finished()
            {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = check;
                continue;
            }
            let told = Arc::new(Mutex::new(check));
            let (own, proxy) = (Arc::clone(&told), Arc::clone(&self.proxy));
            let answer: Answer = Arc::new(move |_: &str| of_service(&own, proxy.is_healthy()));
            let server = self
                .servers
                .spawn(listen(everywhere(port), answer, Arc::clone(&self.places)));
            self.ports.insert(port, (server, told));
        }
    }
}

/// A port of all addresses.
fn everywhere(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

/// Binds an address, as soon as no other program has it.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut is_told = false;
    loop {
        match crate::serve::listen(address).await {
            Ok(listener) => return listener,
            Err(_) if is_told => {}
            Err(error) => warn!(%address, %error, "nothing tells of Services here until no other program does"),
        }
        is_told = true;
        sleep(RETRY).await;
    }
}

async fn listen(address: SocketAddr, answer: Answer, places: Arc<Shares>) {
    let listener = bind(address).await;
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let Some(place) = places.take(client.ip()) else {
            continue;
        };
        let answer = Arc::clone(&answer);
        let answered = service_fn(move |request: hyper::Request<Incoming>| {
            std::future::ready(Ok::<_, Infallible>(answer(request.uri().path())))
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answered);
        connections.spawn(async move {
            let _place = place;
            timeout(DEADLINE, served).await.ok();
        });
    }
}

fn of_service(told: &Told, is_healthy: bool) -> Response {
    let check = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (namespace, name) = check.service.parts();
    let status = if is_healthy && check.endpoints > 0 {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = [
        (CONTENT_TYPE, "application/json".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (
            http::HeaderName::from_static("x-load-balancing-endpoint-weight"),
            check.endpoints.to_string(),
        ),
    ];
    let text = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\"localEndpoints\": {},\n\t\
         \"serviceProxyHealthy\": {is_healthy}\n}}",
        check.endpoints
    );
    (status, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_is_taken_once_another_program_leaves_it() {
        let other = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address = other.local_addr().unwrap();
        let mut bound = Box::pin(bind(address));
        timeout(Duration::from_mins(1), &mut bound).await.unwrap_err();
        drop(other);
        assert_eq!(bound.await.local_addr().unwrap().port(), address.port());
    }
}
