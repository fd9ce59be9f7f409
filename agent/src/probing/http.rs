//! GET requests of probes and hooks.

use std::net::SocketAddr;
use std::time::Duration;

use agent_plan::pods;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{HTTPGetAction, Pod};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::names::{self, Way};
use super::{OUTPUT_BYTES, join, tls, undialled};

/// Redirects that are followed within a host.
const REDIRECTS: usize = 10;
/// What is said of a server that does not answer in time.
const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
/// What is said of a server that does not speak TLS.
const PLAIN: &str = "http: server gave HTTP response to HTTPS client";

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    secure: bool,
    host: String,
    port: u16,
    /// With the query.
    path: String,
    headers: Vec<(String, String)>,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The first part of it.
    pub(crate) body: Bytes,
    location: Option<String>,
}

impl Target {
    pub(super) fn new(action: &HTTPGetAction, host: String, port: u16, agent: &str) -> Self {
        let path = action.path.as_deref().unwrap_or_default();
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        let mut headers: Vec<(String, String)> = Vec::new();
        for header in action.http_headers.iter().flatten() {
            headers.push((header.name.clone(), header.value.clone()));
        }
        for (name, value) in [("User-Agent", agent), ("Accept", "*/*")] {
            if !headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                headers.push((name.to_owned(), value.to_owned()));
            }
        }
        Self {
            secure: action.scheme.as_deref() == Some("HTTPS"),
            host,
            port,
            path,
            headers,
        }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", join(&self.host, self.port), self.path)
    }

    /// The host and its port.
    pub(crate) fn authority(&self) -> String {
        join(&self.host, self.port)
    }

    /// The same without TLS, when `error` says that the server does not speak it. Nobody shall read a password on the way.
    pub(crate) fn insecure(&self, error: &str) -> Option<Self> {
        let headers = self.headers.iter();
        (self.secure && error == PLAIN).then(|| Self {
            secure: false,
            headers: headers
                .filter(|(name, _)| !name.eq_ignore_ascii_case("authorization"))
                .cloned()
                .collect(),
            ..self.clone()
        })
    }

    /// Where a redirect leads; nothing when that is another host.
    fn redirected(&self, location: &str) -> Option<Self> {
        let to: http::Uri = location.parse().ok()?;
        let secure = match to.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return None,
            None => self.secure,
        };
        let path = to.path_and_query().map_or("/", |path| path.as_str());
        let port = match (to.port_u16(), to.host()) {
            (Some(port), _) => port,
            (None, Some(_)) if secure => 443,
            (None, Some(_)) => 80,
            (None, None) => self.port,
        };
        let local = to.host().is_none_or(|host| host.trim_matches(['[', ']']) == self.host);
        local.then(|| Self {
            secure,
            port,
            path: if path.starts_with('/') {
                path.to_owned()
            } else {
                format!("/{path}")
            },
            ..self.clone()
        })
    }
}

/// One GET; redirects to the same host are followed. The failure is in the words of the field.
pub(crate) async fn get(pod: &Pod, target: &Target, limit: Duration) -> Result<Answer, String> {
    let answer = attempt(pod, target, limit).await;
    answer.unwrap_or_else(|| Err(LATE.to_owned()))
}

/// The same; nothing when it could not be tried, because other pods have too many hosts looked up.
pub(super) async fn attempt(pod: &Pod, target: &Target, limit: Duration) -> Option<Result<Answer, String>> {
    let way = names::way(pods::uid(pod), &target.authority(), limit).await?;
    let answer = tokio::time::timeout(limit, follow(target, way)).await;
    Some(answer.unwrap_or_else(|_late| Err(LATE.to_owned())))
}

async fn follow(target: &Target, way: Way) -> Result<Answer, String> {
    let mut target = target.clone();
    let authority = target.authority();
    let mut addresses = way
        .addresses(&authority)
        .await
        .map_err(|error| undialled(&authority, &error))?;
    for _ in 0..=REDIRECTS {
        // Redirects stay on the host, but they may lead to another port.
        for address in &mut addresses {
            address.set_port(target.port);
        }
        let answer = request(&target, &addresses).await?;
        let next = answer
            .location
            .as_deref()
            .and_then(|location| target.redirected(location));
        match next {
            Some(next) if matches!(answer.status, 301 | 302 | 303 | 307 | 308) => target = next,
            Some(_) | None => return Ok(answer),
        }
    }
    Err(format!("stopped after {REDIRECTS} redirects"))
}

async fn request(target: &Target, addresses: &[SocketAddr]) -> Result<Answer, String> {
    let stream = TcpStream::connect(addresses)
        .await
        .map_err(|error| undialled(&target.authority(), &error))?;
    if !target.secure {
        return exchange(stream, target).await;
    }
    let name = ServerName::try_from(target.host.clone()).map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(tls::trusting()?);
    let stream = connector.connect(name, stream).await.map_err(|error| shaken(&error))?;
    exchange(stream, target).await
}

/// Why the other side does not speak TLS, in the words that people know.
fn shaken(error: &std::io::Error) -> String {
    let own = error.get_ref().and_then(|inner| inner.downcast_ref());
    if matches!(
        own,
        Some(rustls::Error::InvalidMessage(
            rustls::InvalidMessage::InvalidContentType
        ))
    ) {
        PLAIN.to_owned()
    } else {
        error.to_string()
    }
}

async fn exchange<S>(stream: S, target: &Target) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut request = http::Request::get(&target.path).header("Connection", "close");
    let mut named = false;
    for (name, value) in &target.headers {
        named |= name.eq_ignore_ascii_case("host");
        request = request.header(name, value);
    }
    if !named {
        request = request.header("Host", join(&target.host, target.port));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let talk = async move {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let location = response.headers().get("location").and_then(|value| value.to_str().ok());
        let location = location.map(str::to_owned);
        // The end of a small body lets the server close in peace; a large one is not kept.
        let body = Limited::new(response.into_body(), OUTPUT_BYTES).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Ok(Answer { status, body, location })
    };
    // The connection may end together with the answer: both are heard to their end.
    let (answer, _ended) = tokio::join!(talk, connection);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_does_not_speak_tls_is_asked_without() {
        let of = |scheme: &str| {
            let headers = serde_json::json!([{"name": "authorization", "value": "x"}, {"name": "A", "value": "b"}]);
            let action = serde_json::json!({"port": 80, "scheme": scheme, "httpHeaders": headers});
            let action: HTTPGetAction = serde_json::from_value(action).expect("an action");
            Target::new(&action, "10.0.0.7".to_owned(), 8080, "test")
        };
        let (secure, plain) = (of("HTTPS"), of("HTTP"));
        assert_eq!(secure.insecure("connection refused"), None);
        assert_eq!(plain.insecure(PLAIN), None);
        let again = secure.insecure(PLAIN).expect("another try");
        assert_eq!(
            (again.url().as_str(), again.authority().as_str()),
            ("http://10.0.0.7:8080/", "10.0.0.7:8080")
        );
        let names: Vec<&str> = again.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["A", "User-Agent", "Accept"]);
    }

    #[test]
    fn redirects_stay_on_the_host() {
        let action: HTTPGetAction =
            serde_json::from_value(serde_json::json!({"port": 80, "path": "a?b=c"})).expect("an action");
        let target = Target::new(&action, "10.0.0.7".to_owned(), 8080, "test");
        assert_eq!(target.url(), "http://10.0.0.7:8080/a?b=c");
        for (location, expected) in [
            ("/x?y", Some("http://10.0.0.7:8080/x?y")),
            ("http://10.0.0.7:9/x", Some("http://10.0.0.7:9/x")),
            ("https://10.0.0.7/", Some("https://10.0.0.7:443/")),
            ("http://10.0.0.8:8080/", None),
            ("http://0.0.0.0/", None),
            ("ftp://10.0.0.7/", None),
        ] {
            let led = target.redirected(location).map(|target| target.url());
            assert_eq!(led.as_deref(), expected, "{location}");
        }
    }
}
