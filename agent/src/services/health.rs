//! Answers load balancers that ask at `healthCheckNodePort` whether the node has endpoints of a Service:
//! `pkg/proxy/healthcheck/service_health.go`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};

use agent_plan::proxy::HealthCheck;
use axum::Router;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tracing::warn;

type Told = Arc<Mutex<HealthCheck>>;

/// The ports that are listened at.
pub(super) struct HealthChecks {
    servers: JoinSet<()>,
    ports: BTreeMap<u16, (AbortHandle, Told)>,
}

impl HealthChecks {
    pub(super) fn new() -> Self {
        Self {
            servers: JoinSet::new(),
            ports: BTreeMap::new(),
        }
    }

    /// Listens at these ports and no others.
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
            let server = self.servers.spawn(listen(port, Arc::clone(&told)));
            self.ports.insert(port, (server, told));
        }
    }
}

async fn listen(port: u16, told: Told) {
    let served = async {
        let any = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await;
        let listener = match any {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(("0.0.0.0", port)).await?,
        };
        let router = Router::new().fallback(move || std::future::ready(answer(&told)));
        axum::serve(listener, router).await
    };
    if let Err(error) = served.await {
        warn!(port, %error, "load balancers are not told of a Service's health");
    }
}

fn answer(told: &Told) -> Response {
    let check = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (namespace, name) = check.service;
    let status = if check.endpoints == 0 {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
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
         \"serviceProxyHealthy\": true\n}}",
        check.endpoints
    );
    (status, headers, text).into_response()
}
