//! Reads manifests and blobs from one registry.
//!
//! A hostile registry must not choose how much memory an answer takes: each is read to a bound. Redirects to another host
//! lose the `Authorization` header (reqwest's rule).

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RANGE, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use tokio::sync::Mutex;

use crate::authorities;
use crate::config::{Config, Registry};
use crate::content::ContentError;
use crate::credentials::Credentials;
use crate::manifest;
use crate::reference::Reference;
use crate::token::{self, TokenError};

/// A registry did not give what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It has no such image.
    #[error("{0}: not found")]
    NotFound(String),
    /// It wants credentials, or others.
    #[error("pull access denied, repository does not exist or may require authorization: server message: {0}")]
    Denied(StatusCode),
    /// It gave no token.
    #[error("failed to authorize")]
    Authorize(#[source] TokenError),
    /// It answered with another failure.
    #[error("unexpected status from GET request to {url}: {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The answer.
        status: StatusCode,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It could not be reached, or the connection broke.
    #[error("failed to do request")]
    Request(#[source] reqwest::Error),
    /// It sends a layer, but hardly.
    #[error("the registry has sent {received} bytes of a layer in {seconds} s")]
    Slow {
        /// What came.
        received: u64,
        /// In which time.
        seconds: u64,
    },
    /// A certificate authority could not be read.
    #[error("read the certificate authority {path:?}")]
    Authority {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What it gave is not what it should be.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// What was given to be trusted of it cannot be.
    #[error("trust the certificate authorities")]
    Trust(#[source] rustls::Error),
    /// Neither it nor any of its mirrors gave the image.
    #[error("{}registry {origin:?}", told(.mirrors))]
    Everywhere {
        /// The mirrors, in the order in which they were asked.
        mirrors: Vec<(String, RegistryError)>,
        /// The registry.
        origin: String,
        /// What it answered.
        source: Box<RegistryError>,
    },
}

fn told(mirrors: &[(String, RegistryError)]) -> String {
    let each = mirrors.iter();
    let each = each.map(|(host, error)| format!("mirror {host:?}: {}; ", crate::chain(error)));
    each.collect::<Vec<_>>().concat()
}

impl RegistryError {
    /// Whether no connection came about at all.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_connect())
    }

    /// With what the mirrors, if any were asked before, answered.
    pub(crate) fn after_mirrors(self, mirrors: Vec<(String, Self)>, origin: &str) -> Self {
        if mirrors.is_empty() {
            return self;
        }
        Self::Everywhere {
            mirrors,
            origin: origin.to_owned(),
            source: Box::new(self),
        }
    }

    /// Whether another try may go better, and the time that the registry wants to be left alone.
    pub(crate) fn retry(&self) -> Option<Duration> {
        match self {
            Self::Status {
                status, retry_after, ..
            } if *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                Some(retry_after.unwrap_or_default())
            }
            // A truncated or garbled transfer.
            Self::Request(_)
            | Self::Slow { .. }
            | Self::Content(ContentError::Digest { .. } | ContentError::Size { .. } | ContentError::Io { .. }) => {
                Some(Duration::ZERO)
            }
            Self::Status { .. }
            | Self::NotFound(_)
            | Self::Denied(_)
            | Self::Authorize(_)
            | Self::Authority { .. }
            | Self::Trust(_)
            | Self::Everywhere { .. }
            | Self::Content(_) => None,
        }
    }
}

/// Whether a registry is spoken to without TLS.
enum Plain {
    Never,
    Always,
    /// It is on this machine: when it turns out not to speak TLS.
    Perhaps(OnceLock<()>),
}

/// One registry, one repository and one set of credentials, for the time of one pull.
pub(crate) struct Session {
    client: reqwest::Client,
    address: String,
    plain: Plain,
    repository: String,
    credentials: Option<Credentials>,
    authorization: Mutex<Option<HeaderValue>>,
}

impl Session {
    /// What it shows the registry.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The host that it asks.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// `host` is the registry of the reference or one of its mirrors.
    pub(crate) fn new(
        config: &Config,
        host: &str,
        image: &Reference,
        credentials: Option<&Credentials>,
    ) -> Result<Self, RegistryError> {
        // A second installation fails, and changes nothing.
        drop(rustls::crypto::ring::default_provider().install_default());
        let settings = config.registry(host);
        let plain = if settings.plain_http {
            Plain::Always
        } else if is_loopback(host) && settings.authorities.is_empty() {
            Plain::Perhaps(OnceLock::new())
        } else {
            Plain::Never
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(config.limits.read_timeout);
        let address = if host == "docker.io" { "index.docker.io" } else { host };
        let given = read_authorities(&settings)?;
        if !given.is_empty() {
            let trust = authorities::configuration(address, &given).map_err(RegistryError::Trust)?;
            builder = builder.tls_backend_preconfigured(trust);
        }
        Ok(Self {
            client: builder.build().map_err(RegistryError::Request)?,
            address: address.to_owned(),
            plain,
            repository: image.path().to_owned(),
            credentials: credentials.cloned(),
            authorization: Mutex::new(None),
        })
    }

    fn is_plain(&self) -> bool {
        match &self.plain {
            Plain::Never => false,
            Plain::Always => true,
            Plain::Perhaps(known) => known.get().is_some(),
        }
    }

    fn base(&self) -> String {
        let scheme = if self.is_plain() { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }

    /// A manifest or index by tag or digest, of at most `limit` bytes.
    pub(crate) async fn manifest(&self, tag_or_digest: &str, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let path = format!("manifests/{tag_or_digest}");
        read_bounded(self.get(&path, 0).await?, "manifest", limit).await
    }

    /// A small blob.
    pub(crate) async fn blob(&self, digest: &str, what: &'static str, limit: u64) -> Result<Vec<u8>, RegistryError> {
        read_bounded(self.get(&format!("blobs/{digest}"), 0).await?, what, limit).await
    }

    /// A blob from `offset` on where the registry can do that; else from its start. Returns where it begins.
    pub(crate) async fn blob_from(&self, digest: &str, offset: u64) -> Result<(Response, u64), RegistryError> {
        let response = self.get(&format!("blobs/{digest}"), offset).await?;
        let begins = if response.status() == StatusCode::PARTIAL_CONTENT {
            offset
        } else {
            0
        };
        Ok((response, begins))
    }

    async fn get(&self, path: &str, offset: u64) -> Result<Response, RegistryError> {
        let mut refreshed = false;
        loop {
            // Known before the first request for anything: it asks how to ask.
            let authorization = self.authorization(refreshed).await?;
            let url = format!("{}/v2/{}/{path}", self.base(), self.repository);
            let mut request = self.client.get(&url).header(ACCEPT, manifest::ACCEPTED.join(", "));
            if let Some(authorization) = authorization {
                request = request.header(AUTHORIZATION, authorization);
            }
            if offset > 0 {
                request = request.header(RANGE, format!("bytes={offset}-"));
            }
            let response = request.send().await.map_err(RegistryError::Request)?;
            let status = response.status();
            // Tokens expire during long pulls.
            if status == StatusCode::UNAUTHORIZED && !refreshed {
                refreshed = true;
                continue;
            }
            return match status {
                _ if status.is_success() => Ok(response),
                StatusCode::NOT_FOUND => Err(RegistryError::NotFound(format!("{}/{path}", self.repository))),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryError::Denied(status)),
                _ => Err(RegistryError::Status {
                    url,
                    status,
                    retry_after: retry_after(&response),
                }),
            };
        }
    }

    /// The value of the `Authorization` header, negotiated once, and again when asked to.
    async fn authorization(&self, refresh: bool) -> Result<Option<HeaderValue>, RegistryError> {
        let mut known = self.authorization.lock().await;
        if known.is_none() || refresh {
            *known = self.negotiate(refresh).await?;
            if let Some(value) = known.as_mut() {
                value.set_sensitive(true);
            }
        }
        Ok(known.clone())
    }

    /// Asks the registry how it wants to be asked. One that refuses nothing, neither now nor before (`refused`), is told no password.
    async fn negotiate(&self, refused: bool) -> Result<Option<HeaderValue>, RegistryError> {
        let mut asked = self.client.get(format!("{}/v2/", self.base())).send().await;
        if let (Plain::Perhaps(known), Err(error)) = (&self.plain, &asked)
            && speaks_no_tls(error, &self.address)
            && known.set(()).is_ok()
        {
            asked = self.client.get(format!("{}/v2/", self.base())).send().await;
        }
        let asked = asked.map_err(RegistryError::Request)?;
        let refused = refused || asked.status() == StatusCode::UNAUTHORIZED;
        let credentials = self.credentials.as_ref().filter(|_| refused);
        let Some(challenge) = token::challenge(asked.headers()) else {
            return Ok(credentials.and_then(Credentials::basic));
        };
        let url = challenge
            .url(&self.repository, self.is_plain())
            .map_err(RegistryError::Authorize)?;
        let mut request = self.client.get(url);
        if let Some(authorization) = credentials.and_then(Credentials::basic) {
            request = request.header(AUTHORIZATION, authorization);
        }
        let response = request.send().await.map_err(RegistryError::Request)?;
        if response.status() != StatusCode::OK {
            // Nothing of what it says: whoever names it could have us read it to them.
            return Err(RegistryError::Authorize(TokenError::Status {
                kind: if credentials.is_some() { "oauth" } else { "anonymous" },
                url: token::shown(response.url()),
                status: response.status(),
            }));
        }
        let answer = read_bounded(response, "token", token::LIMIT).await?;
        let token = token::read(&answer).map_err(RegistryError::Authorize)?;
        Ok(Some(token))
    }
}

const USER_AGENT: &str = concat!("skiff-agent/", env!("CARGO_PKG_VERSION"));
/// For name resolution, connection and handshake together. A pod shows why it waits soon; the back-off asks again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

fn read_authorities(settings: &Registry) -> Result<Vec<Vec<u8>>, RegistryError> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read(path).map_err(|source| RegistryError::Authority {
            path: path.clone(),
            source,
        })
    };
    settings.authorities.iter().map(read).collect()
}

async fn read_bounded(mut response: Response, what: &'static str, limit: u64) -> Result<Vec<u8>, RegistryError> {
    let too_large = || RegistryError::Content(ContentError::TooLarge { what, limit });
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(RegistryError::Request)? {
        if bytes.len() as u64 + chunk.len() as u64 > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Whether nobody speaks TLS where a connection went: the answer is none, or does not come, or nobody listens where TLS has its
/// place. A certificate that is not trusted is another matter.
fn speaks_no_tls(error: &reqwest::Error, address: &str) -> bool {
    if error.is_connect() && error.is_timeout() {
        return true;
    }
    let without_port = !address.ends_with(|last: char| last.is_ascii_digit()) || address.parse::<IpAddr>().is_ok();
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(known) = cause {
        let of_system = known.downcast_ref::<io::Error>();
        let refused = of_system.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        let foreign = matches!(known.downcast_ref(), Some(rustls::Error::InvalidMessage(_)));
        if foreign || refused && without_port {
            return true;
        }
        cause = match of_system {
            // What it wraps; its source is only that one's source.
            Some(error) => error.get_ref().map(|inner| -> &(dyn Error + 'static) { inner }),
            None => known.source(),
        };
    }
    false
}

/// Whether a registry is on this machine.
fn is_loopback(host: &str) -> bool {
    let name = authorities::name(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_address() {
        for (host, wanted) in [
            ("127.0.0.1:5000", true),
            ("localhost:5000", true),
            ("LocalHost", true),
            ("[::1]:5000", true),
            ("127.0.0.1.example", false),
            ("localhost.example:80", false),
            ("docker.io", false),
        ] {
            assert_eq!(is_loopback(host), wanted, "{host}");
        }
    }
}
