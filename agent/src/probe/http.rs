//! GET requests of probes and hooks, as the kubelet makes them (`pkg/probe/http`) by Go's client (`net/http`).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pod::pods;
use bytes::Bytes;
use futures::future::{Either, select};
use http::Response;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{HTTPGetAction, Pod};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::headed::Headed;
use super::names::{self, Way};
use super::url::{Led, Url};
use super::{OUTPUT_BYTES, kernel_words, undialled};

/// Maximum number of requests in a chain of redirects within a host.
const REQUESTS: usize = 10;
/// Maximum number of headers of an answer, and of their bytes: Go accepts ten times as much, which
/// a hundred pods at once could make an agent hold.
const HEADERS: usize = 4096;
const HEADER_BYTES: u32 = 1 << 20;
/// ALPN protocol of HTTP/2.
const HTTP2: &[u8] = b"h2";
const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const LATE_BODY: &str = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
/// Message of Go's client for a server that does not speak TLS.
const PLAIN: &str = "http: server gave HTTP response to HTTPS client";
/// Bytes that must be escaped in a path for HTTP/2.
const BEYOND_HTTP2: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'`')
    .add(b'\\')
    .add(b'^')
    .add(b'|');

/// Destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    url: Url,
    /// `Host` header that differs from the URL's host.
    host: Option<String>,
    /// Other headers, with canonical names as in Go.
    headers: Vec<(String, String)>,
}

/// HTTP response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Beginning of the body, or why it could not be read.
    pub(crate) body: Result<Vec<u8>, String>,
    location: Option<String>,
}

/// A request that got no response: its URL and the error, as Go's `url.Error`.
#[derive(Debug)]
pub(crate) struct Unanswered {
    url: String,
    because: String,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Get {:?}: {}", self.url, self.because)
    }
}

impl Target {
    pub(super) fn new(action: &HTTPGetAction, host: String, port: u16, agent: &str) -> Self {
        let secure = action.scheme.as_deref() == Some("HTTPS");
        let path = action.path.as_deref().unwrap_or_default();
        let mut headers: Vec<(String, String)> = Vec::new();
        for header in action.http_headers.iter().flatten() {
            headers.push((canonical(&header.name), header.value.clone()));
        }
        let mut target = Self {
            url: Url::new(secure, host, port, path),
            host: None,
            headers,
        };
        target.host = target.header("Host").filter(|host| !host.is_empty()).map(str::to_owned);
        for (name, value) in [("User-Agent", agent), ("Accept", "*/*")] {
            match target.header(name) {
                // An empty `User-Agent` or `Accept` in the pod removes the header.
                Some("") => target.headers.retain(|(known, _)| known != name),
                Some(_) => {}
                None => target.headers.push((name.to_owned(), value.to_owned())),
            }
        }
        target.headers.sort_by(|(left, _), (right, _)| left.cmp(right));
        target
    }

    /// Returns the first value of a header.
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns host and port.
    pub(crate) fn authority(&self) -> String {
        self.url.authority()
    }

    /// Returns the target without TLS if `error` says that the server does not speak it. Leaves out
    /// the `Authorization` header: it would be sent in plain text.
    pub(crate) fn insecure(&self, error: &Unanswered) -> Option<Self> {
        let headers = self.headers.iter().filter(|(name, _)| name != "Authorization");
        (self.url.secure && error.because == PLAIN).then(|| Self {
            url: self.url.clone().insecure(),
            host: self.host.clone(),
            headers: headers.cloned().collect(),
        })
    }

    /// The request that follows a redirect to the same host (`net/http/client.go`, `do`).
    fn redirected(&self, location: &str, url: Url) -> Self {
        let mut next = Self { url, ..self.clone() };
        // An absolute URL replaces the `Host` header.
        if location
            .split(['/', '?', '#'])
            .next()
            .is_some_and(|first| first.contains(':'))
        {
            next.host = None;
        }
        if next.header("Referer").is_none() && (next.url.secure || !self.url.secure) {
            next.headers.push(("Referer".to_owned(), self.url.to_string()));
            next.headers.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
        next
    }

    /// Returns the headers that are not about the connection, in Go's order.
    fn written(&self) -> Result<Vec<(&str, String)>, String> {
        for (name, value) in &self.headers {
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(format!("net/http: invalid header field name {name:?}"));
            }
            if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
                return Err(format!("net/http: invalid header field value for {name:?}"));
            }
        }
        let agent = self.headers.iter().find(|(name, _)| name == "User-Agent");
        let others = self.headers.iter().filter(|(name, _)| {
            !["Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"].contains(&name.as_str())
        });
        let all = agent.into_iter().chain(others);
        Ok(all
            .map(|(name, value)| (name.as_str(), value.trim().to_owned()))
            .collect())
    }

    fn host(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.authority())
    }

    /// Returns the head of an HTTP/1.1 request, not built by hyper: its URLs cannot have spaces.
    fn head(&self) -> Result<Bytes, String> {
        let line = format!("GET {} HTTP/1.1\r\nHost: {}\r\n", self.url.request(), self.host());
        let headers = self.written()?.into_iter();
        let headers = headers.map(|(name, value)| format!("{name}: {value}\r\n"));
        let mut head: String = std::iter::once(line).chain(headers).collect();
        let connection = self.header("Connection").unwrap_or_default().to_ascii_lowercase();
        let switches = connection.contains("upgrade") && self.header("Upgrade").is_some_and(|value| !value.is_empty());
        if !switches && !connection.contains("close") {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        Ok(head.into())
    }

    /// The request for HTTP/2, which has no headers about connections.
    fn request(&self) -> Result<http::Request<Empty<Bytes>>, String> {
        let uri = format!("https://{}{}", self.host(), self.url.request());
        let mut request = http::Request::get(utf8_percent_encode(&uri, BEYOND_HTTP2).to_string());
        for (name, value) in self.written()? {
            if !["Connection", "Keep-Alive", "Proxy-Connection", "Upgrade"].contains(&name) {
                request = request.header(name, value);
            }
        }
        request.body(Empty::new()).map_err(|error| error.to_string())
    }
}

/// A header's name as Go writes it (`net/textproto`, `CanonicalMIMEHeaderKey`).
fn canonical(name: &str) -> String {
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return name.to_owned();
    }
    let mut upper = true;
    let each = name.chars().map(|letter| {
        let written = if upper {
            letter.to_ascii_uppercase()
        } else {
            letter.to_ascii_lowercase()
        };
        upper = letter == '-';
        written
    });
    each.collect()
}

/// Sends a GET request; follows redirects to the same host.
pub(crate) async fn get(pod: &Pod, target: &Target, limit: Duration) -> Result<Answer, Unanswered> {
    let answer = attempt(pod, target, limit).await;
    answer.unwrap_or_else(|| Err(target.unanswered(LATE.to_owned())))
}

/// Sends a GET request; `None` without an attempt, if other pods have too many name lookups in
/// progress.
pub(super) async fn attempt(pod: &Pod, target: &Target, limit: Duration) -> Option<Result<Answer, Unanswered>> {
    let deadline = Instant::now() + limit;
    let way = names::way(pods::uid(pod), &super::join(&target.url.host, target.url.port()), limit).await?;
    Some(follow(target.clone(), way, deadline).await)
}

impl Target {
    fn unanswered(&self, because: String) -> Unanswered {
        Unanswered {
            url: self.url.to_string(),
            because,
        }
    }
}

async fn follow(mut target: Target, way: Way, deadline: Instant) -> Result<Answer, Unanswered> {
    let host = target.url.host.clone();
    let found = timeout_at(deadline, way.addresses(&super::join(&host, target.url.port()))).await;
    let mut addresses = match found {
        Ok(found) => found.map_err(|error| target.unanswered(names::unknown(&host, &error)))?,
        Err(_late) => return Err(target.unanswered(LATE.to_owned())),
    };
    let mut requests = 0;
    loop {
        // Redirects stay on the host, but the port may differ.
        for address in &mut addresses {
            address.set_port(target.url.port());
        }
        let answer = request(&target, &addresses, deadline).await;
        let answer = answer.map_err(|because| target.unanswered(because))?;
        let location = answer.location.as_deref().filter(|location| !location.is_empty());
        let Some(location) = location.filter(|_| matches!(answer.status, 301 | 302 | 303 | 307 | 308)) else {
            return Ok(answer);
        };
        requests += 1;
        let (url, because) = match target.url.led(location) {
            Led::Away => return Ok(answer),
            Led::Here(_) if requests == REQUESTS => {
                (location.to_owned(), format!("stopped after {REQUESTS} redirects"))
            }
            Led::Here(url) => {
                target = target.redirected(location, url);
                continue;
            }
            Led::Astray(url, because) => (url, because),
        };
        return Err(Unanswered { url, because });
    }
}

async fn request(target: &Target, addresses: &[SocketAddr], deadline: Instant) -> Result<Answer, String> {
    let late = |_late| LATE.to_owned();
    let dialled = timeout_at(deadline, TcpStream::connect(addresses))
        .await
        .map_err(late)?;
    let address = super::join(&target.url.host, target.url.port());
    let stream = dialled.map_err(|error| undialled(&address, &error))?;
    let ends = |end: io::Result<SocketAddr>| end.map(|end| end.to_string()).unwrap_or_default();
    let line = format!("{}->{}", ends(stream.local_addr()), ends(stream.peer_addr()));
    if !target.url.secure {
        return exchange(stream, target, &line, deadline).await;
    }
    let name = ServerName::try_from(target.url.host.clone()).map_err(|error| error.to_string())?;
    let mut config = common_tls::trusting().map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let shaken_hands = timeout_at(deadline, connector.connect(name, stream))
        .await
        .map_err(late)?;
    let stream = shaken_hands.map_err(|error| shaken(&error))?;
    if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
        return exchange(stream, target, &line, deadline).await;
    }
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_header_list_size(HEADER_BYTES);
    let opened = timeout_at(deadline, builder.handshake(TokioIo::new(stream)))
        .await
        .map_err(late)?;
    let (mut sender, connection) = opened.map_err(|error| told(&error, &line))?;
    let sent = sender.send_request(target.request()?);
    receive(sent, connection, &line, deadline).await
}

/// Returns the message of a failed TLS handshake, in the words of Go's client.
fn shaken(error: &io::Error) -> String {
    let own = error.get_ref().and_then(|inner| inner.downcast_ref());
    match own {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => PLAIN.to_owned(),
        Some(_) => error.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => kernel_words(error),
    }
}

async fn exchange<S>(stream: S, target: &Target, line: &str, deadline: Instant) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Headed::new(stream, target.head()?);
    let handshake = http1::Builder::new()
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES as usize)
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(|error| told(&error, line))?;
    let sent = sender.send_request(http::Request::new(Empty::<Bytes>::new()));
    receive(sent, connection, line, deadline).await
}

async fn receive(
    sent: impl Future<Output = hyper::Result<Response<Incoming>>>,
    connection: impl Future<Output = hyper::Result<()>>,
    line: &str,
    deadline: Instant,
) -> Result<Answer, String> {
    let talk = async {
        let response = timeout_at(deadline, sent).await.map_err(|_late| LATE.to_owned())?;
        let response = response.map_err(|error| told(&error, line))?;
        let status = response.status().as_u16();
        let location = response.headers().get("location").and_then(|value| value.to_str().ok());
        let location = location.map(str::to_owned);
        let body = timeout_at(deadline, read(response.into_body(), line)).await;
        let body = body.unwrap_or_else(|_late| Err(LATE_BODY.to_owned()));
        Ok(Answer { status, body, location })
    };
    // The connection may end before its last answer has been received.
    match select(pin!(talk), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_ended, talk)) => talk.await,
    }
}

/// Reads the beginning of a body: errors beyond it do not count (`ReadAtMost`).
async fn read(mut body: Incoming, line: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while bytes.len() < OUTPUT_BYTES
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(|error| match told(&error, line).as_str() {
            "EOF" => "unexpected EOF".to_owned(),
            other => other.to_owned(),
        })?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    bytes.truncate(OUTPUT_BYTES);
    Ok(bytes)
}

/// Returns Go's text for a connection error.
fn told(error: &hyper::Error, line: &str) -> String {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause {
        _ if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => "EOF".to_owned(),
        Some(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        Some(cause) if cause.raw_os_error().is_some() => format!("read tcp {line}: read: {}", kernel_words(cause)),
        // Error of hyper's decoder of chunks.
        Some(cause) if cause.kind() == io::ErrorKind::InvalidInput => {
            let of_size = cause.to_string().contains("size");
            let why = if of_size {
                "invalid byte in chunk length"
            } else {
                "malformed chunked encoding"
            };
            why.to_owned()
        }
        _ if error.is_parse_too_large() => {
            format!("net/http: server response headers exceeded {HEADER_BYTES} bytes; aborted")
        }
        _ if error.is_parse() => "net/http: HTTP/1.x transport connection broken: malformed HTTP response".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
