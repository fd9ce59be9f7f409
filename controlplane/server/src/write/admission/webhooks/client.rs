//! HTTPS to one webhook: connections that are kept, answers that are bounded, redirects that are not followed.
//!
//! Webhook servers are untrusted. One can occupy a connection, an answer of [`LIMIT`] bytes and the
//! time that its configuration gives it; a redirect, which could lead to a target that only this
//! server can reach (SSRF), is an error.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use api::url::Url;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::dial::{Address, DialError, dial};
use crate::node::agent::Network;
use crate::transport::body;
use crate::transport::connection::{Connection, HEADER_BYTES, HEADERS, drive};
use crate::transport::dialer;

/// Bytes of an answer: a patch in base64 may replace an object as large as a body.
const LIMIT: usize = 2 * body::LIMIT;
/// Idle timeout of a kept connection (`IdleConnTimeout` of Go's transports).
const IDLE: Duration = Duration::from_secs(90);
/// Connections of one webhook that are kept.
const KEPT: usize = 8;

/// Failure to call a webhook, in Go's words.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    /// The client configuration is invalid.
    #[error("could not get REST client: {because}")]
    Unusable { because: String },
    /// The call failed.
    #[error("failed to call webhook: Post {url:?}: {because}")]
    Failed { url: String, because: String },
    /// The answer could not be read.
    #[error(
        "failed to call webhook: unexpected error when reading response body. Please retry. Original error: {because}"
    )]
    Unread { because: String },
}

impl CallError {
    /// Message without the prefix that admission adds.
    pub(crate) fn because(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("failed to call webhook: ")
            .unwrap_or(&text)
            .to_owned()
    }
}

/// Answer of any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Idle connection that waits for its next request and is not polled meanwhile.
struct Kept {
    sender: SendRequest<Full<Bytes>>,
    connection: Option<Connection>,
    since: Instant,
}

/// Invalid client configuration.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
struct Unusable(String);

/// Address and server name of the webhook.
type Known = Result<(Address, ServerName<'static>), Unusable>;

/// Client of a webhook.
pub(crate) struct Client {
    target: Known,
    /// Host with its port, as the URL has it.
    authority: String,
    path: String,
    bundle: Vec<u8>,
    tls: OnceLock<Result<TlsConnector, Unusable>>,
    kept: Mutex<Vec<Kept>>,
}

impl Client {
    pub(crate) fn new(config: &WebhookClientConfig) -> Self {
        let (authority, path, target) = match (&config.service, &config.url) {
            (Some(service), _) => {
                let port = service.port.unwrap_or(443);
                let host = format!("{}.{}.svc", service.name, service.namespace);
                let address = Address::Service {
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    port,
                };
                let path = service.path.clone().unwrap_or_default();
                (format!("{host}:{port}"), path, known(address, &host))
            }
            (None, Some(text)) => match Url::parse(text) {
                Ok(url) => {
                    let (host, port) = url.host_and_port();
                    let port = port.map_or(Ok(443), str::parse);
                    let target = match port {
                        Ok(port) => known(
                            Address::Host {
                                name: host.to_owned(),
                                port,
                            },
                            host,
                        ),
                        Err(_) => Err(Unusable(format!("dial tcp: address {}: invalid port", url.host))),
                    };
                    (url.host.clone(), url.path, target)
                }
                Err(error) => (
                    String::new(),
                    String::new(),
                    Err(Unusable(format!("Unparsable URL: {error}"))),
                ),
            },
            (None, None) => {
                let because = "webhook configuration must have either service or URL";
                (String::new(), String::new(), Err(Unusable(because.to_owned())))
            }
        };
        Self {
            target,
            authority,
            path: clean(&path),
            bundle: config
                .ca_bundle
                .as_ref()
                .map(|bundle| bundle.0.clone())
                .unwrap_or_default(),
            tls: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    /// Posts JSON and reads the whole answer. The webhook gets its timeout in seconds.
    pub(crate) async fn post(&self, network: &Network, body: Bytes, limit: Duration) -> Result<Answer, CallError> {
        let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
        let path = format!("{}?timeout={seconds}s", self.path);
        let url = format!("https://{}{path}", self.authority);
        let failed = |because: String| CallError::Failed {
            url: url.clone(),
            because,
        };
        let request = || {
            Request::post(&path)
                .header(HOST, &self.authority)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json, */*")
                .header(USER_AGENT, "kube-apiserver-admission")
                .body(Full::new(body.clone()))
                .map_err(|error| failed(error.to_string()))
        };
        let asked = async {
            let mut reused = self.reused().await;
            loop {
                let again = reused.is_some();
                let mut link = match reused.take() {
                    Some(link) => link,
                    None => self
                        .connect(network)
                        .await?
                        .map_err(|error| failed(error.to_string()))?,
                };
                let sent = link.sender.send_request(request()?);
                match driven(&mut link.connection, sent).await {
                    Ok(answer) => break self.read(link, answer).await,
                    // The peer closed the kept connection before it saw the request.
                    Err(error) if again && error.is_canceled() => {}
                    Err(error) => break Err(failed(dialer::broken(&error))),
                }
            }
        };
        let late = |_| Err(failed("context deadline exceeded".to_owned()));
        timeout_at(Instant::now() + limit, asked).await.unwrap_or_else(late)
    }

    async fn read(&self, mut link: Kept, answer: hyper::Response<hyper::body::Incoming>) -> Result<Answer, CallError> {
        let (head, body) = answer.into_parts();
        let collected = driven(&mut link.connection, Limited::new(body, LIMIT).collect()).await;
        let body = collected.map_err(|error| CallError::Unread {
            because: if error.is::<LengthLimitError>() {
                format!("http: response body is larger than {LIMIT} bytes")
            } else {
                "unexpected EOF".to_owned()
            },
        })?;
        self.keep(link);
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    /// A connection that was kept and is still there.
    async fn reused(&self) -> Option<Kept> {
        loop {
            let mut link = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            poll_fn(|context| {
                drive(&mut link.connection, context);
                Poll::Ready(())
            })
            .await;
            if link.connection.is_some() && link.sender.is_ready() && link.since.elapsed() < IDLE {
                return Some(link);
            }
        }
    }

    fn keep(&self, link: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|link| link.since.elapsed() < IDLE);
        if link.connection.is_some() && kept.len() < KEPT {
            kept.push(Kept {
                since: Instant::now(),
                ..link
            });
        }
    }

    /// Opens a TLS connection; the inner error is Go's text after the URL.
    async fn connect(&self, network: &Network) -> Result<Result<Kept, DialError>, CallError> {
        let unusable = |because: &Unusable| CallError::Unusable {
            because: because.to_string(),
        };
        let (address, name) = self.target.as_ref().map_err(unusable)?;
        let connector = self
            .tls
            .get_or_init(|| connector(&self.bundle))
            .as_ref()
            .map_err(unusable)?;
        let stream = match dial(network, address).await {
            Ok(stream) => stream,
            Err(error) => return Ok(Err(error)),
        };
        let stream = match connector.connect(name.clone(), stream).await {
            Ok(stream) => stream,
            Err(error) => return Ok(Err(DialError(dialer::unsecured(&error)))),
        };
        let mut builder = Builder::new();
        builder.max_headers(HEADERS).max_buf_size(HEADER_BYTES);
        Ok(match builder.handshake(TokioIo::new(stream)).await {
            Ok((sender, connection)) => Ok(Kept {
                sender,
                connection: Some(Box::pin(connection)),
                since: Instant::now(),
            }),
            Err(error) => Err(DialError(dialer::broken(&error))),
        })
    }
}

fn known(address: Address, host: &str) -> Known {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_error| Unusable(format!("{host:?} is no name of a host")))?;
    Ok((address, name))
}

fn connector(bundle: &[u8]) -> Result<TlsConnector, Unusable> {
    let mut config = trust(bundle).map_err(Unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// TLS configuration that trusts the CA bundle, or the system's roots where there is none. The
/// error is in Go's words.
pub(crate) fn trust(bundle: &[u8]) -> Result<ClientConfig, String> {
    if bundle.is_empty() {
        return machine().map_err(|error| error.to_string());
    }
    common_tls::Bundle::client(bundle).map_err(|error| error.to_string())
}

fn machine() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(common_tls::provider());
    let verifier = rustls_platform_verifier::Verifier::new(Arc::clone(&provider))?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(builder.with_no_client_auth())
}

/// Waits for a future while driving the connection.
async fn driven<F: Future>(connection: &mut Option<Connection>, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        drive(connection, context);
        work.as_mut().poll(context)
    })
    .await
}

/// A path as Go's `path.Join("/", …)` writes it.
fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}
