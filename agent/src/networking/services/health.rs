//! Answers health checks of load balancers: at each `healthCheckNodePort` whether the node has
//! endpoints of a Service (`pkg/proxy/healthcheck/service_health.go`), and at a port for all
//! Services whether the node leads to them at all ([`proxy_health`](super::proxy_health)).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv6Addr;
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
    /// Tells the proxy's health at a port, if there is one.
    pub(super) fn new(proxy: Arc<ProxyHealth>, port: Option<u16>) -> Self {
        let (mut servers, places) = (JoinSet::new(), Shares::new(CONNECTIONS, CONNECTIONS_EACH));
        if let Some(port) = port {
            let own = Arc::clone(&proxy);
            let answer: Answer = Arc::new(move |path: &str| own.answer(path));
            servers.spawn(listen(port, answer, Arc::clone(&places)));
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
            let server = self.servers.spawn(listen(port, answer, Arc::clone(&self.places)));
            self.ports.insert(port, (server, told));
        }
    }
}

/// Binds a port of all addresses, as soon as no other program has it.
async fn bind(port: u16) -> TcpListener {
    let mut is_told = false;
    loop {
        let any = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await;
        let listener = match any {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind(("0.0.0.0", port)).await,
        };
        match listener {
            Ok(listener) => return listener,
            Err(_) if is_told => {}
            Err(error) => warn!(port, %error, "load balancers are not told of the health of Services here"),
        }
        is_told = true;
        sleep(RETRY).await;
    }
}

async fn listen(port: u16, answer: Answer, places: Arc<Shares>) {
    let listener = bind(port).await;
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
        let port = other.local_addr().unwrap().port();
        let mut bound = Box::pin(bind(port));
        timeout(Duration::from_mins(1), &mut bound).await.unwrap_err();
        drop(other);
        assert_eq!(bound.await.local_addr().unwrap().port(), port);
    }
}
