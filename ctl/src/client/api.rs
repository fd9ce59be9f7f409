//! Requests to the API server as JSON values, independent of kinds.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use futures::AsyncBufRead;
use http::{Method, Request};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::Kubeconfig;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::arguments::Place;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Timeout of connections to the server.
const CONNECT: std::time::Duration = std::time::Duration::from_secs(10);

/// Client of an API server.
#[derive(Clone)]
pub(crate) struct Api {
    client: kube::Client,
}

/// Error response of the server, in kubectl's words.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    pub(crate) reason: String,
    message: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.reason.is_empty() {
            write!(formatter, "Error from server: {}", self.message)
        } else {
            write!(formatter, "Error from server ({}): {}", self.reason, self.message)
        }
    }
}

impl std::error::Error for Refused {}

/// True if the server's answer is 404 Not Found.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Refused>()
        .is_some_and(|refused| refused.code == 404 && refused.reason == "NotFound")
}

/// True if the server has no output of a container yet, because it is still to start.
pub(crate) fn is_starting(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Refused>()
        .is_some_and(|refused| refused.code == 400 && refused.message.contains(" is waiting to start"))
}

/// True if the server's answer is 403 Forbidden.
pub(crate) fn is_forbidden(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Refused>()
        .is_some_and(|refused| refused.code == 403)
}

impl Api {
    pub(crate) async fn of(place: &Place) -> anyhow::Result<Self> {
        let path = place.kubeconfig();
        if !path.exists() {
            // Those of clusters here are hidden from others than root.
            let hidden = if rustix::process::geteuid().is_root() {
                ""
            } else {
                "; what is root's on this machine, `sudo` shows"
            };
            bail!("no cluster: there is no {}; {}{hidden}", path.display(), place.remedy());
        }
        let config = configuration(&path).await?;
        if let Err(why) = listens(config.proxy_url.as_ref(), &config.cluster_url).await {
            let address = config.cluster_url.to_string();
            let address = address.trim_end_matches('/');
            bail!("no API server answers at {address} ({why}); {}", place.remedy());
        }
        Self::new(config)
    }

    pub(crate) async fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        Self::new(configuration(path).await?)
    }

    pub(crate) fn new(mut config: kube::Config) -> anyhow::Result<Self> {
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = None;
        Ok(Self {
            client: client(config)?,
        })
    }

    /// Pods of a namespace, for streams to their containers.
    pub(crate) fn pods(&self, namespace: &str) -> kube::Api<Pod> {
        kube::Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::GET, path, "application/json", None).await
    }

    /// Returns a list or object as a Table.
    pub(crate) async fn table(&self, path: &str) -> anyhow::Result<Value> {
        self.accepting(path, TABLE).await
    }

    pub(crate) async fn accepting(&self, path: &str, accept: &str) -> anyhow::Result<Value> {
        let request = Request::get(path).header("Accept", accept).body(Vec::new())?;
        let text = self.client.request_text(request).await.map_err(refused)?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let bytes = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("Accept", "application/json");
        if body.is_some() {
            request = request.header("Content-Type", content_type);
        }
        let text = self.client.request_text(request.body(bytes)?).await.map_err(refused)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns an object with the server's time from the `Date` header, if present.
    pub(crate) async fn get_dated(&self, path: &str) -> anyhow::Result<(Value, Option<OffsetDateTime>)> {
        let request = Request::get(path).header("Accept", "application/json");
        let answer = self.client.send(request.body(Body::empty())?).await.map_err(refused)?;
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok());
        let code = answer.status();
        let body: Value = serde_json::from_slice(&answer.into_body().collect_bytes().await?).unwrap_or_default();
        if code.is_success() {
            return Ok((body, date));
        }
        let message = match text_at(&body, "/message") {
            "" => code.to_string(),
            message => message.to_owned(),
        };
        let reason = text_at(&body, "/reason").to_owned();
        let code = code.as_u16();
        Err(Refused { code, reason, message }.into())
    }

    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        self.client
            .request_text(Request::get(path).body(Vec::new())?)
            .await
            .map_err(refused)
    }

    /// Returns a streamed body: a watch or a log.
    pub(crate) async fn stream(&self, path: &str, table: bool) -> anyhow::Result<impl AsyncBufRead + Unpin + use<>> {
        let accept = if table { TABLE } else { "application/json, */*" };
        let request = Request::get(path).header("Accept", accept).body(Vec::new())?;
        Ok(Box::pin(self.client.request_stream(request).await.map_err(refused)?))
    }
}

pub(crate) async fn configuration(path: &Path) -> anyhow::Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("read the kubeconfig {}", path.display()))?;
    Ok(common_proxy::configuration(kubeconfig).await?)
}

/// Creates a client like kube's own, with the proxies of [`common_proxy`].
fn client(config: kube::Config) -> kube::Result<kube::Client> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    let proxied = common_proxy::Connector::new(direct, config.proxy_url.clone());
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(proxied)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    let client: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let retries = config
        .default_retry
        .then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retries)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Fails with the reason if nothing listens on an address. A server behind a proxy may be reachable
/// only through it; `given` is the kubeconfig's.
pub(crate) async fn listens(given: Option<&http::Uri>, address: &http::Uri) -> Result<(), String> {
    if common_proxy::towards(given, address).is_some() {
        return Ok(());
    }
    let host = address.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = address.port_u16().unwrap_or(443);
    match tokio::time::timeout(CONNECT, tokio::net::TcpStream::connect((host, port))).await {
        Ok(Ok(_connected)) => Ok(()),
        Ok(Err(error)) => Err(plain(&error)),
        Err(_elapsed) => Err(format!("nothing within {CONNECT:?}")),
    }
}

/// Converts an error: the server's answer in kubectl's words, or that there was none.
pub(crate) fn refused(error: kube::Error) -> anyhow::Error {
    if let kube::Error::Api(status) = error {
        let (code, reason, message) = (status.code, status.reason, status.message);
        return Refused { code, reason, message }.into();
    }
    // The libraries' intermediate errors do not help users.
    let error = anyhow::Error::new(error);
    anyhow!("the API server gives no answer: {}", plain(&error.root_cause()))
}

/// Text of an error without the number by which the kernel knows it.
pub(crate) fn plain(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let words = text.split_once(" (os error ").map(|(words, _)| words.to_owned());
    words.unwrap_or(text)
}

/// Adds `key=value` to a path, percent-encoded; nothing for `None`.
pub(crate) fn with_query(path: &str, pairs: &[(&str, Option<&str>)]) -> String {
    let mut text = path.to_owned();
    for (key, value) in pairs {
        let Some(value) = value else { continue };
        text.push(if text.contains('?') { '&' } else { '?' });
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                text.push(char::from(byte));
            } else {
                text.push('%');
                for nibble in [byte >> 4, byte & 15] {
                    text.extend(char::from_digit(u32::from(nibble), 16).map(|digit| digit.to_ascii_uppercase()));
                }
            }
        }
    }
    text
}

/// Returns a field by its JSON pointer, `""` if it is absent.
pub(crate) fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::with_query;

    #[test]
    fn queries_are_encoded() {
        let path = with_query(
            "/api",
            &[
                ("labelSelector", Some("a in (b,c)")),
                ("limit", None),
                ("watch", Some("true")),
            ],
        );
        assert_eq!(path, "/api?labelSelector=a%20in%20%28b%2Cc%29&watch=true");
    }
}
