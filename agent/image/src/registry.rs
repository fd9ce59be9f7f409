//! Client that reads manifests and blobs from one registry.
//!
//! A hostile registry must not choose how much memory an answer takes: each is read up to a limit.
//! The `Authorization` for one origin (scheme, host and port) is never sent to another.
//!
//! * [`authorities`], [`credentials`], [`token`]: trust in its certificate, credentials
//! * [`proxies`], [`redirects`]: proxies of the environment, the addresses that a redirect may name
//! * [`download`], [`retries`], [`slots`]: blobs, repeated requests, limits on parallel downloads

pub(crate) mod authorities;
pub(crate) mod credentials;
pub(crate) mod download;
pub(crate) mod failure;
mod proxies;
pub(crate) mod redirects;
pub(crate) mod retries;
pub(crate) mod slots;
pub(crate) mod token;

use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Method, Response, StatusCode, Url};
use tokio::sync::Mutex;

use crate::config::{Config, Registry};
use crate::content::ContentError;
use crate::content::digest::Digest;
use crate::content::manifest;
use crate::reference::Reference;
use credentials::Credentials;
use failure::RegistryError;
use redirects::{Reach, Redirects};
use token::{Challenge, TokenError};

/// Session with a registry: one repository and one set of credentials, for the duration of one
/// pull.
pub(crate) struct Session {
    client: reqwest::Client,
    address: String,
    reach: Reach,
    /// Detected scheme of an unconfigured registry on loopback: set by its first answer.
    scheme: OnceLock<&'static str>,
    repository: String,
    /// Query that tells a mirror the registry which is meant.
    query: String,
    credentials: Option<Credentials>,
    /// Authorization by origin.
    authorization: Mutex<BTreeMap<String, HeaderValue>>,
}

impl Session {
    /// Credentials for the registry.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Registry host.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// `host` is the registry of the reference or one of its mirrors, which may have a path.
    pub(crate) fn new(
        config: &Config,
        host: &str,
        image: &Reference,
        credentials: Option<&Credentials>,
    ) -> Result<Self, RegistryError> {
        // A second installation fails and has no effect.
        drop(common_tls::provider().install_default());
        // As containerd (`docs/hosts.md`, "Registry Host Namespace"): one mirror may be of several registries.
        let query = if host == image.domain() {
            String::new()
        } else {
            format!("?ns={}", image.domain())
        };
        let (host, repository) = match host.split_once('/') {
            Some((host, path)) => (host, format!("{path}/{}", image.path())),
            None => (host, image.path().to_owned()),
        };
        let settings = config.registry(host);
        let scheme = OnceLock::new();
        if settings.plain_http {
            scheme.get_or_init(|| HTTP);
        } else if !is_loopback(host) || !settings.authorities.is_empty() {
            scheme.get_or_init(|| HTTPS);
        }
        let address = if host == "docker.io" { "index.docker.io" } else { host };
        let reach = Reach::new(address, is_loopback(host), |name| std::env::var(name).ok());
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(config.limits.read_timeout)
            .redirect(Policy::none())
            .dns_resolver(reach.clone());
        builder = if is_loopback(host) {
            // As Go's clients (`golang.org/x/net/http/httpproxy`): a proxy has another loopback.
            builder.no_proxy()
        } else {
            proxies::through(builder, |name| std::env::var(name).ok()).map_err(RegistryError::Request)?
        };
        let given = read_authorities(&settings)?;
        if !given.is_empty() {
            let trust = authorities::configuration(address, &given).map_err(RegistryError::Trust)?;
            builder = builder.tls_backend_preconfigured(trust);
        }
        Ok(Self {
            client: builder.build().map_err(RegistryError::Request)?,
            address: address.to_owned(),
            reach,
            scheme,
            repository,
            query,
            credentials: credentials.cloned(),
            authorization: Mutex::default(),
        })
    }

    /// Fetches a manifest or index by tag or digest, of at most `limit` bytes.
    pub(crate) async fn manifest(&self, tag_or_digest: &str, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let path = format!("manifests/{tag_or_digest}");
        read_bounded(self.get(&path, 0).await?, "manifest", limit).await
    }

    /// Fetches the digest of a tag; `None` if the registry does not state it.
    pub(crate) async fn digest(&self, tag_or_digest: &str) -> Result<Option<Digest>, RegistryError> {
        let path = format!("manifests/{tag_or_digest}");
        let response = self.request(&Method::HEAD, &path, 0).await?;
        let stated = response.headers().get("docker-content-digest");
        let stated = stated.and_then(|digest| digest.to_str().ok());
        Ok(stated.and_then(|digest| Digest::parse(digest).ok()))
    }

    /// Fetches a small blob.
    pub(crate) async fn blob(&self, digest: &str, what: &'static str, limit: u64) -> Result<Vec<u8>, RegistryError> {
        read_bounded(self.get(&format!("blobs/{digest}"), 0).await?, what, limit).await
    }

    /// Fetches a blob from `offset` on, or from its start if the registry does not support ranges.
    /// Returns the offset at which the answer begins.
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
        self.request(&Method::GET, path, offset).await
    }

    async fn request(&self, method: &Method, path: &str, offset: u64) -> Result<Response, RegistryError> {
        let mut redirects = Redirects::default();
        let mut elsewhere = None;
        let mut challengers = Vec::new();
        loop {
            let (response, shown) = self.send(method, elsewhere.as_ref(), path, offset).await?;
            let status = response.status();
            if let Some(next) = redirects.next(&response).map_err(RegistryError::Redirect)? {
                self.reach.check(&next).map_err(RegistryError::Redirect)?;
                elsewhere = Some(next);
                continue;
            }
            // Once per request: tokens expire during long pulls.
            let origin = origin(response.url());
            if status == StatusCode::UNAUTHORIZED && !challengers.contains(&origin) {
                challengers.push(origin.clone());
                if self.authorize(origin, response.headers(), shown).await? {
                    continue;
                }
            }
            return match status {
                _ if status.is_success() => Ok(response),
                StatusCode::NOT_FOUND => Err(RegistryError::NotFound(format!("{}/{path}", self.repository))),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryError::Denied(status)),
                _ => Err(RegistryError::Status {
                    url: self.url(path),
                    status,
                    retry_after: retry_after(&response),
                }),
            };
        }
    }

    /// Sends a request and follows redirects; also returns the authorization that was sent.
    async fn send(
        &self,
        method: &Method,
        elsewhere: Option<&Url>,
        path: &str,
        offset: u64,
    ) -> Result<(Response, Option<HeaderValue>), RegistryError> {
        loop {
            let unknown = self.scheme.get().is_none();
            let url = elsewhere.map_or_else(|| self.url(path), Url::to_string);
            let request = self.client.request(method.clone(), url);
            let mut request = request.header(ACCEPT, manifest::ACCEPTED.join(", "));
            if offset > 0 {
                request = request.header(RANGE, format!("bytes={offset}-"));
            }
            let mut request = request.build().map_err(RegistryError::Request)?;
            let authorization = self.authorization.lock().await.get(&origin(request.url())).cloned();
            request
                .headers_mut()
                .extend(authorization.clone().map(|value| (AUTHORIZATION, value)));
            let sent = self.client.execute(request).await;
            let wants_tls = unknown && wants_tls(&sent, &self.address);
            if unknown && (wants_tls || sent.is_ok()) {
                self.scheme.get_or_init(|| if wants_tls { HTTPS } else { HTTP });
            }
            if !wants_tls {
                return Ok((sent.map_err(RegistryError::Request)?, authorization));
            }
        }
    }

    fn scheme(&self) -> &'static str {
        self.scheme.get().copied().unwrap_or(HTTP)
    }

    fn url(&self, path: &str) -> String {
        let Self {
            address,
            repository,
            query,
            ..
        } = self;
        format!("{}://{address}/v2/{repository}/{path}{query}", self.scheme())
    }

    /// Registry credentials, for the registry itself and its token server, not for other redirect
    /// targets.
    fn credentials_at(&self, challenger: &str) -> Option<HeaderValue> {
        let own = self.url("").parse::<Url>().is_ok_and(|own| origin(&own) == challenger);
        self.credentials.as_ref().filter(|_| own).and_then(Credentials::basic)
    }

    /// Handles the challenge of a 401 answer, unless another request has done so since `shown` was
    /// sent. Returns whether there is a new authorization to try.
    ///
    /// As in containerd (`core/remotes/docker/authorizer.go`), the challenge of each answer counts,
    /// also of redirected ones. Credentials are sent only to an origin that refused an anonymous
    /// request.
    async fn authorize(
        &self,
        challenger: String,
        headers: &HeaderMap,
        shown: Option<HeaderValue>,
    ) -> Result<bool, RegistryError> {
        let mut known = self.authorization.lock().await;
        if known.get(&challenger) != shown.as_ref() {
            return Ok(true);
        }
        let credentials = self.credentials_at(&challenger);
        let mut value = match token::challenge(headers) {
            Some(challenge) => self.fetch_token(&challenge, credentials).await?,
            None => match credentials {
                Some(credentials) => credentials,
                None => return Ok(false),
            },
        };
        value.set_sensitive(true);
        let news = shown.as_ref() != Some(&value);
        known.insert(challenger, value);
        Ok(news)
    }

    async fn fetch_token(
        &self,
        challenge: &Challenge,
        mut credentials: Option<HeaderValue>,
    ) -> Result<HeaderValue, RegistryError> {
        let kind = if credentials.is_some() { "oauth" } else { "anonymous" };
        let mut redirects = Redirects::default();
        let mut url = challenge
            .url(&self.repository, self.scheme() == HTTP)
            .map_err(RegistryError::Authorize)?;
        loop {
            self.reach.check(&url).map_err(RegistryError::Redirect)?;
            let mut request = self.client.get(url.clone());
            if let Some(credentials) = &credentials {
                request = request.header(AUTHORIZATION, credentials);
            }
            let response = request.send().await.map_err(RegistryError::Request)?;
            if let Some(next) = redirects.next(&response).map_err(RegistryError::Redirect)? {
                credentials = credentials.filter(|_| origin(&next) == origin(&url));
                url = next;
                continue;
            }
            if response.status() != StatusCode::OK {
                // Does not echo the body: a user who names an internal URL could read it (SSRF).
                return Err(RegistryError::Authorize(TokenError::Status {
                    kind,
                    url: token::shown(response.url()),
                    status: response.status(),
                }));
            }
            let answer = read_bounded(response, "token", token::LIMIT).await?;
            return token::read(&answer).map_err(RegistryError::Authorize);
        }
    }
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

const HTTP: &str = "http";
const HTTPS: &str = "https";
const USER_AGENT: &str = concat!("skiff-agent/", env!("CARGO_PKG_VERSION"));
/// Timeout of name resolution, connection and TLS handshake together. The error appears in the
/// pod's status soon; the kubelet's back-off retries. More than the 5 s for which the C library waits
/// for a dead name server, before it asks the next one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

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

/// Detects a TLS server by its answer to plain HTTP: status 400 without a document, as from Go and
/// nginx, or no HTTP at all; or port 80 is closed.
fn wants_tls(sent: &reqwest::Result<Response>, address: &str) -> bool {
    let error = match sent {
        Ok(response) => {
            // A registry's own error is a JSON document.
            let kind = response.headers().get(CONTENT_TYPE);
            let document = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
            return response.status() == StatusCode::BAD_REQUEST && !document;
        }
        Err(error) => error,
    };
    let without_port = !address.ends_with(|last: char| last.is_ascii_digit()) || address.parse::<IpAddr>().is_ok();
    if error.is_connect() {
        return without_port;
    }
    let causes = std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (**cause).source());
    causes
        .filter_map(<dyn Error>::downcast_ref::<hyper::Error>)
        .any(hyper::Error::is_parse)
}

/// True if the registry is on this node's loopback.
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
