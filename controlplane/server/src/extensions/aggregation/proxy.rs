//! Proxy to the server behind a Service
//! (`staging/src/k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go`).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, IF_NONE_MATCH, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::Remote;
use crate::authn::identity::User;
use crate::node::agents::{Answer, Stream};
use crate::node::proxy::forward::{forbid_sharing, strip, switched};
use crate::request::context::Wire;
use crate::request::failure::Failure;
use crate::request::path::escape;
use crate::server::shared::Shared;
use crate::transport::connection::exchange;
use crate::transport::dialer;
use crate::transport::respond::{self, Response};
use crate::transport::tunnel;
use crate::write::admission::webhooks::client;
use crate::write::admission::webhooks::dial::{Address, dial};

/// Prefix of the front proxy's headers. The backend trusts them, so those of clients are removed.
const OF_USERS: &str = "x-remote-";

/// The time that a connection and its handshake may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Hands a request on and the answer back.
///
/// # Errors
/// 500 for a request that cannot be written.
pub(crate) async fn answer(
    shared: &Shared,
    remote: &Remote,
    (mut wire, headers, body): (Wire, HeaderMap, Body),
    user: &User,
) -> Result<Response, Failure> {
    if !remote.is_available {
        return Ok(unavailable("service unavailable"));
    }
    let mut request = Request::new(body);
    *request.method_mut() = wire.method.clone();
    *request.uri_mut() = wire
        .uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str)
        .parse()
        .map_err(Failure::internal)?;
    *request.headers_mut() = forwarded(remote, &wire, headers, user)?;
    let answer = match ask(shared, remote, request, None).await {
        Ok(answer) => answer,
        Err(because) => return Ok(unavailable(&because)),
    };
    match answer {
        Answer::Switched(head, back) => tunnel::open(wire.upgrade.take(), switched(&head.headers), back),
        // It would lead clients, with their credentials, to where this server never looked.
        Answer::Whole(answer) if answer.status().is_redirection() && answer.headers().contains_key("location") => {
            let message = "the backend attempted to redirect this request, which is not permitted";
            Ok(respond::text(StatusCode::BAD_GATEWAY, message))
        }
        Answer::Whole(mut answer) => {
            strip(answer.headers_mut());
            forbid_sharing(answer.headers_mut());
            Ok(answer)
        }
    }
}

fn unavailable(because: &str) -> Response {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, format!("{because}\n"))
}

/// Headers of the request, with the front proxy's about the user.
fn forwarded(remote: &Remote, wire: &Wire, mut headers: HeaderMap, user: &User) -> Result<HeaderMap, Failure> {
    let upgrade = tunnel::is_wanted(&headers)
        .then(|| headers.get(UPGRADE).cloned())
        .flatten();
    strip(&mut headers);
    headers.remove(AUTHORIZATION);
    let of_users = headers.keys().filter(|name| name.as_str().starts_with(OF_USERS));
    for name in of_users.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    let value = |text: &str| HeaderValue::from_str(text).map_err(Failure::internal);
    headers.insert(HOST, value(&remote.host())?);
    if let Some(source) = wire.source {
        let before = headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let own = source.0.ip().to_string();
        let all = before.map_or_else(|| own.clone(), |before| format!("{before}, {own}"));
        headers.insert("x-forwarded-for", value(&all)?);
    }
    identify(&mut headers, user)?;
    Ok(headers)
}

/// `SetAuthProxyHeaders` of `staging/src/k8s.io/client-go/transport/round_trippers.go`.
pub(super) fn identify(headers: &mut HeaderMap, user: &User) -> Result<(), Failure> {
    // Names beyond ASCII go as the bytes that they are.
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).map_err(Failure::internal);
    headers.insert("x-remote-user", value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert("x-remote-uid", value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append("x-remote-group", value(group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", escape(key).replace('/', "%2F").to_lowercase());
        let name: HeaderName = name.parse().map_err(Failure::internal)?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// Sends a request over a new connection; the error is in Go's words.
pub(super) async fn ask(
    shared: &Shared,
    remote: &Remote,
    request: Request<Body>,
    limit: Option<Duration>,
) -> Result<Answer, String> {
    let address = Address::Service {
        namespace: remote.namespace.clone(),
        name: remote.service.clone(),
        port: remote.port,
    };
    let connector = remote.tls.get_or_init(|| connector(shared, remote)).clone()?;
    let name = ServerName::try_from(remote.host()).map_err(|error| error.to_string())?;
    let connected = async {
        let stream = dial(&shared.network, &address)
            .await
            .map_err(|error| error.to_string())?;
        let secured = connector.connect(name, stream).await;
        secured.map_err(|error| dialer::unsecured(&error))
    };
    let connected = tokio::time::timeout(CONNECT, connected).await;
    let stream: Box<dyn Stream> = Box::new(connected.map_err(|_elapsed| "dial tcp: i/o timeout".to_owned())??);
    exchange(stream, request, limit)
        .await
        .map_err(|error| error.to_string())
}

/// A GET request of this server's own.
pub(super) struct Get<'g> {
    pub(super) path: &'g str,
    pub(super) user: &'g User,
    /// Entity tag of the document that is known.
    pub(super) tag: Option<&'g str>,
    /// Time and bytes that the answer may take.
    pub(super) limits: (Duration, usize),
}

/// Sends a GET request and reads the answer; the error is in Go's words.
pub(super) async fn get(shared: &Shared, remote: &Remote, get: Get<'_>) -> Result<http::Response<Bytes>, String> {
    let (limit, bytes) = get.limits;
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = get
        .path
        .parse()
        .map_err(|_error| format!("{:?} is no path", get.path))?;
    let headers = request.headers_mut();
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    headers.insert(HOST, value(&remote.host())?);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(tag) = get.tag {
        headers.insert(IF_NONE_MATCH, value(tag)?);
    }
    identify(headers, get.user).map_err(|error| error.to_string())?;
    let asked = async {
        match ask(shared, remote, request, Some(limit)).await? {
            Answer::Whole(answer) => {
                let (head, body) = answer.into_parts();
                let body = Limited::new(body, bytes).collect().await;
                let body = body.map_err(|error| error.to_string())?;
                Ok::<_, String>(http::Response::from_parts(head, body.to_bytes()))
            }
            Answer::Switched(head, _) => Ok(http::Response::from_parts(head, Bytes::new())),
        }
    };
    let late = |_elapsed| "context deadline exceeded".to_owned();
    tokio::time::timeout(limit, asked).await.map_err(late)?
}

fn connector(shared: &Shared, remote: &Remote) -> Result<TlsConnector, String> {
    let config: Result<ClientConfig, String> = if remote.is_insecure {
        common_tls::trusting().map_err(|error| error.to_string())
    } else {
        client::trust(&remote.bundle)
    };
    let mut config = config?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if let Some(front_proxy) = &shared.options.front_proxy {
        config.client_auth_cert_resolver = Arc::clone(front_proxy) as _;
    }
    Ok(TlsConnector::from(Arc::new(config)))
}
