//! Tokens of issuers outside of the cluster, by OpenID Connect
//! (`k8s.io/apiserver/plugin/pkg/authenticator/token/oidc`).
//!
//! An issuer's discovery document names its public keys; it is asked for until it comes, and the
//! keys when a token comes that the known ones have not signed. Distributed claims are not resolved.

mod config;
mod fetch;
mod keys;
mod mapping;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::authn::identity::User;
use config::{Configuration, Issuer, Jwt};
use fetch::Client;
use keys::{Key, Token};
use mapping::Claims;
use validate::Rules;

/// Interval of requests for a discovery document that has not come yet.
const RETRY: Duration = Duration::from_secs(10);
/// Shortest time between two requests for the keys of an issuer: anyone can show a token of its
/// name.
const REFETCH: Duration = Duration::from_secs(2);
/// Seconds in which a token is taken before it begins (`verify.go` of go-oidc).
const LEEWAY: i64 = 60;

/// Reason for which a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file is empty.
    #[error("empty config data")]
    Empty,
    /// The file cannot be read.
    #[error("read the file")]
    Read(#[source] std::io::Error),
    /// The file cannot be parsed.
    #[error("decode the configuration")]
    Parse(#[source] serde_yaml::Error),
    /// The file holds an object of another kind.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind {
        /// Kind found in the file.
        kind: String,
        /// API version found in the file.
        version: String,
    },
    /// The configuration breaks rules; all of them are named, in upstream's words.
    #[error("invalid authentication configuration: {0}")]
    Invalid(String),
    /// An algorithm that does not exist, or proves nothing.
    #[error("oidc: unsupported signing alg: {0:?}")]
    Algorithm(String),
    /// The machine's authorities cannot be used.
    #[error("set up TLS towards an issuer: {0}")]
    Tls(String),
}

/// User of a token, and the first second in which it is no longer valid.
pub(crate) struct Known {
    pub(crate) user: User,
    pub(crate) until: i64,
}

/// Authenticators of tokens of other issuers.
pub struct Issuers {
    all: Vec<Authenticator>,
    anonymous: Option<(bool, Vec<String>)>,
}

impl std::fmt::Debug for Issuers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Issuers").finish_non_exhaustive()
    }
}

impl Issuers {
    /// Authenticators of an `AuthenticationConfiguration` in a file; its tokens may be signed by any
    /// algorithm. None of its issuers may be `disallowed`, as those of service accounts' tokens are.
    ///
    /// # Errors
    /// When the file cannot be read, or breaks a rule.
    pub fn load(path: &Path, disallowed: &[String]) -> Result<Self, ConfigurationError> {
        let text = std::fs::read_to_string(path).map_err(ConfigurationError::Read)?;
        Self::parse(&text, &keys::ALGORITHMS.map(str::to_owned), disallowed)
    }

    /// The same of a text, and of some algorithms.
    ///
    /// # Errors
    /// As [`Issuers::load`].
    pub fn parse(text: &str, algorithms: &[String], disallowed: &[String]) -> Result<Self, ConfigurationError> {
        let configuration = Configuration::parse(text)?;
        let (rules, errors) = validate::compile(&configuration, disallowed);
        // `NewAggregate` of `k8s.io/apimachinery/pkg/util/errors`
        let mut seen = BTreeSet::new();
        let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        texts.retain(|text| seen.insert(text.clone()));
        match texts.as_slice() {
            [] => {}
            [one] => return Err(ConfigurationError::Invalid(one.clone())),
            several => return Err(ConfigurationError::Invalid(format!("[{}]", several.join(", ")))),
        }
        let unknown = algorithms
            .iter()
            .find(|name| !keys::ALGORITHMS.contains(&name.as_str()));
        if let Some(unknown) = unknown {
            return Err(ConfigurationError::Algorithm(unknown.clone()));
        }
        let algorithms: Arc<[String]> = algorithms.into();
        let pairs = configuration.jwt.into_iter().zip(rules);
        let all = pairs.map(|(jwt, rules)| {
            Ok(Authenticator {
                client: Client::new(&jwt.issuer.certificate_authority).map_err(ConfigurationError::Tls)?,
                jwt,
                rules,
                algorithms: Arc::clone(&algorithms),
                keys_url: OnceLock::new(),
                keys: Mutex::default(),
                fetched: tokio::sync::Mutex::default(),
            })
        });
        let anonymous = configuration.anonymous.map(|anonymous| {
            let paths = anonymous.conditions.into_iter().map(|condition| condition.path);
            (anonymous.enabled, paths.collect())
        });
        Ok(Self {
            all: all.collect::<Result<_, ConfigurationError>>()?,
            anonymous,
        })
    }

    /// True if requests without credentials pass, with the paths for which they do if not for all;
    /// `None` if the configuration does not say it.
    pub fn anonymous(&self) -> Option<&(bool, Vec<String>)> {
        self.anonymous.as_ref()
    }

    /// The user of a token; `None` for one of another issuer. The error is upstream's text.
    pub(crate) async fn authenticate(&self, token: &str, now: Timestamp) -> Option<Result<Known, String>> {
        let token = Token::parse(token)?;
        let mut all = self.all.iter();
        let authenticator = all.find(|known| known.jwt.issuer.url == token.issuer)?;
        Some(authenticator.authenticate(&token, now).await)
    }

    /// Asks the issuers for the places of their keys until all have answered.
    pub(crate) async fn run(&self) -> Infallible {
        join_all(self.all.iter().map(Authenticator::initialize)).await;
        pending().await
    }
}

/// Authenticator of one issuer's tokens.
struct Authenticator {
    jwt: Jwt,
    rules: Rules,
    algorithms: Arc<[String]>,
    client: Client,
    /// Place of the keys, once the issuer has told it.
    keys_url: OnceLock<String>,
    keys: Mutex<Arc<[Key]>>,
    /// End of the last request for the keys. Who asks for them holds it.
    fetched: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

/// Claims that are checked for every issuer.
#[derive(Deserialize)]
struct Registered {
    #[serde(default)]
    aud: Value,
    #[serde(default)]
    exp: f64,
    nbf: Option<f64>,
}

impl Authenticator {
    /// Asks for the discovery document until it has come.
    async fn initialize(&self) {
        while self.keys_url.get().is_none() {
            match self.discover().await {
                Ok(url) => drop(self.keys_url.set(url)),
                Err(error) => {
                    warn!(issuer = self.jwt.issuer.url, %error, "oidc authenticator: initializing plugin");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Follows `NewProvider` of go-oidc.
    async fn discover(&self) -> Result<String, String> {
        let Issuer { url, discovery_url, .. } = &self.jwt.issuer;
        let usual = format!(
            "{}/.well-known/openid-configuration",
            url.strip_suffix('/').unwrap_or(url)
        );
        let place = if discovery_url.is_empty() {
            &usual
        } else {
            discovery_url
        };
        let document = self.client.get(place).await?;
        let Discovered { issuer, jwks_uri } = serde_json::from_slice(&document)
            .map_err(|error| format!("oidc: failed to decode provider discovery object: {error}"))?;
        if issuer != *url {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {url:?} got {issuer:?}"
            ));
        }
        if jwks_uri.is_empty() {
            return Err("provider did not return JWKS URL".to_owned());
        }
        Ok(jwks_uri)
    }

    async fn authenticate(&self, token: &Token<'_>, now: Timestamp) -> Result<Known, String> {
        let url = self.keys_url.get().ok_or("oidc: authenticator not initialized")?;
        self.verify(token, url)
            .await
            .and_then(|()| self.check(token, now))
            .map_err(|error| format!("oidc: verify token: {error}"))
            .and_then(|(claims, until)| {
                let user = mapping::user(&self.jwt, &self.rules, &claims)?;
                Ok(Known { user, until })
            })
    }

    async fn verify(&self, token: &Token<'_>, url: &str) -> Result<(), String> {
        if !self.algorithms.iter().any(|name| name == token.algorithm()) {
            let (known, alg) = (listed(self.algorithms.iter().map(String::as_str)), token.algorithm());
            return Err(format!(
                "oidc: id token signed with unsupported algorithm, expected {known} got {alg:?}"
            ));
        }
        if token.is_signed_by(&self.keys()) {
            return Ok(());
        }
        let fetched = self.fetch(url).await;
        fetched.map_err(|error| format!("failed to verify signature: fetching keys {error}"))?;
        if token.is_signed_by(&self.keys()) {
            return Ok(());
        }
        Err("failed to verify signature: failed to verify id token signature".to_owned())
    }

    fn keys(&self) -> Arc<[Key]> {
        Arc::clone(&self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for the keys, unless that has just been done.
    async fn fetch(&self, url: &str) -> Result<(), String> {
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|at| at.elapsed() < REFETCH) {
            return Ok(());
        }
        let set = self.client.get(url).await;
        *fetched = Some(Instant::now());
        let set = set.map_err(|error| format!("oidc: get keys failed {error}"))?;
        let keys = keys::published(&set).map_err(|error| format!("oidc: failed to decode keys: {error}"))?;
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = keys.into();
        Ok(())
    }

    /// Checks audience and time, in the order of go-oidc's `Verify`, and returns the claims with the
    /// token's end.
    fn check(&self, token: &Token<'_>, now: Timestamp) -> Result<(Claims, i64), String> {
        let unread = |error: serde_json::Error| format!("oidc: failed to unmarshal claims: {error}");
        let claims: Claims = serde_json::from_slice(&token.payload).map_err(unread)?;
        let Registered { aud, exp, nbf } = serde_json::from_slice(&token.payload).map_err(unread)?;
        let found: Vec<&str> = if let Value::Array(several) = &aud {
            several.iter().filter_map(Value::as_str).collect()
        } else {
            aud.as_str().into_iter().collect()
        };
        let audiences = &self.jwt.issuer.audiences;
        if !audiences.iter().any(|wanted| found.contains(&wanted.as_str())) {
            let found = listed(found.into_iter());
            return Err(match audiences.as_slice() {
                [one] => format!("oidc: expected audience {one:?} got {found}"),
                several => {
                    let several: BTreeSet<&str> = several.iter().map(String::as_str).collect();
                    format!("oidc: expected audience in {} got {found}", listed(several.into_iter()))
                }
            });
        }
        let (begins, ends) = (nbf.map(second), second(exp));
        if ends.as_second() <= now.as_second() {
            return Err(format!("oidc: token is expired (Token Expiry: {})", shown(ends)));
        }
        if let Some(begins) = begins.filter(|begins| now.as_second().saturating_add(LEEWAY) < begins.as_second()) {
            let (now, begins) = (shown(now), shown(begins));
            return Err(format!(
                "oidc: current time {now} before the nbf (not before) time: {begins}"
            ));
        }
        Ok((claims, ends.as_second()))
    }
}

/// A second that a claim names; such beyond what there is are the first or the last.
fn second(claim: f64) -> Timestamp {
    // The standard library has no checked conversion; parsing the decimal text is one.
    let second = format!("{:.0}", claim.trunc()).parse::<i64>().ok();
    let outer = if claim > 0.0 { Timestamp::MAX } else { Timestamp::MIN };
    second
        .and_then(|second| Timestamp::from_second(second).ok())
        .unwrap_or(outer)
}

/// A time as Go prints it.
fn shown(time: Timestamp) -> impl std::fmt::Display {
    time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
}

/// Texts as Go's `%q` prints a list of them.
fn listed<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.map(|text| format!("{text:?}")).collect();
    format!("[{}]", texts.join(" "))
}
