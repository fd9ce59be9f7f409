//! Documents of issuers, over HTTPS: bounded, and without redirects.

use std::sync::Arc;
use std::time::Duration;

use api::url::Url;
use axum::body::Body;
use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::node::agents::Answer;
use crate::transport::connection::exchange;
use crate::transport::dialer;
use crate::write::admission::webhooks::client::trust;

/// Time for a request and its answer (`http.Client` of upstream's `oidc.go`).
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that a document may have.
const LIMIT: usize = 1 << 20;

/// Client of an issuer's server.
pub(super) struct Client(TlsConnector);

impl Client {
    /// A client that trusts these authorities, or those of the machine if there are none.
    pub(super) fn new(authorities: &str) -> Result<Self, String> {
        let mut config = trust(authorities.as_bytes())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// The document at a URL. The error is in Go's words.
    pub(super) async fn get(&self, url: &str) -> Result<Bytes, String> {
        let got = tokio::time::timeout(TIMEOUT, self.ask(url)).await;
        let got = got.unwrap_or_else(|_late| Err("context deadline exceeded".to_owned()));
        got.map_err(|because| format!("Get {url:?}: {because}"))
    }

    async fn ask(&self, url: &str) -> Result<Bytes, String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        if url.scheme != "https" {
            return Err(format!("unsupported protocol scheme {:?}", url.scheme));
        }
        let (host, port) = url.host_and_port();
        let port = port.map_or(Ok(443), str::parse::<u16>);
        let port = port.map_err(|_error| format!("dial tcp: address {}: invalid port", url.host))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| format!("dial tcp {}: {}", url.host, dialer::plain(&error)))?;
        let stream = self
            .0
            .connect(name, stream)
            .await
            .map_err(|error| dialer::unsecured(&error))?;
        let mut path = if url.path.is_empty() { "/".to_owned() } else { url.path };
        if !url.query.is_empty() {
            path = format!("{path}?{}", url.query);
        }
        let request = Request::get(path)
            .header(HOST, &url.host)
            .header(USER_AGENT, "kube-apiserver")
            .body(Body::empty())
            .map_err(|error| error.to_string())?;
        let answer = exchange(Box::new(stream), request, None).await;
        let Answer::Whole(answer) = answer.map_err(|error| error.to_string())? else {
            return Err("unexpected switch of protocols".to_owned());
        };
        let status = answer.status();
        if status != StatusCode::OK {
            return Err(status.to_string());
        }
        let body = Limited::new(answer.into_body(), LIMIT).collect().await;
        Ok(body.map_err(|error| error.to_string())?.to_bytes())
    }
}
