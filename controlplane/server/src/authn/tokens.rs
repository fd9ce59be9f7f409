//! Service account tokens: signed JWTs bound to objects that must still exist.
//!
//! A token's signature and claims are verified once; after that only what may change is checked on
//! each request: the time, and whether the account and the bound object still exist with the
//! token's UIDs. So deleting an account or pod invalidates its tokens at once.

mod bonds;
mod bootstrap;
mod cache;
mod claims;
mod key;
mod legacy;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use sha2::{Digest, Sha256};
use store::{Key, Store};

use crate::authn::identity::User;
use crate::authn::oidc::Issuers;
use bonds::Bond;
use cache::Cache;
use claims::{Issued, SECRET_ISSUER, SecretClaims};

pub use claims::ISSUER;
pub(crate) use claims::{Claims, Named, Private};
pub use key::{KeyError, SigningKey};
use legacy::Home;
pub(crate) use legacy::{LAST_USED, Origin, Used, day};

/// Seconds in which a token is taken before it begins: the clock of the control plane that issued it
/// may be ahead. As go-jose's `DefaultLeeway`, by which upstream checks (`pkg/serviceaccount/claims.go`).
const LEEWAY_SECONDS: i64 = 60;

/// Reason for which a token is invalid. The texts are those of a `TokenReview`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The token was not issued by this cluster.
    #[error("invalid bearer token")]
    Unknown,
    /// Its time is over.
    #[error("[invalid bearer token, service account token has expired]")]
    Expired,
    /// Its time has not come.
    #[error("[invalid bearer token, service account token is not valid yet]")]
    Early,
    /// The account or the bound object is gone, or has another UID.
    #[error("[invalid bearer token, service account token has been invalidated]")]
    Invalidated,
    /// Its Secret is marked.
    #[error("[invalid bearer token, {0}]")]
    Marked(Box<Used>),
    /// It is of another issuer, and proves nothing.
    #[error("[invalid bearer token, {0}]")]
    Outside(String),
    /// The token is for another audience.
    #[error("[invalid bearer token, token audiences {found:?} is invalid for the target audiences {wanted:?}]")]
    Audience {
        /// Audiences of the token.
        found: Vec<String>,
        /// Accepted audiences.
        wanted: Vec<String>,
    },
}

/// Result of authenticating a token.
#[derive(Debug, Clone)]
pub(crate) struct Proven {
    pub(crate) user: User,
    /// Accepted audiences that the token is for.
    pub(crate) audiences: Vec<String>,
    /// Set when a token is used past its original lifetime: annotation for the audit log.
    pub(crate) stale: Option<String>,
    /// Use of a Secret-based token.
    pub(crate) used: Option<Used>,
    /// First second in which the token is no longer valid, if it has such a claim.
    pub(crate) until: Option<i64>,
}

/// Verified contents of a token.
#[derive(Debug)]
pub(crate) struct Verified {
    user: User,
    /// `None` for the default audiences.
    audiences: Option<Vec<String>>,
    begins: i64,
    ends: i64,
    promised_until: Option<i64>,
    bonds: Vec<Bond>,
    /// The Secret that it lives in, and its account.
    lives: Option<Home>,
}

/// Recognizes tokens, and signs them.
pub(crate) struct Tokens {
    key: Option<Arc<SigningKey>>,
    issuers: Vec<String>,
    cache: Mutex<Cache>,
    /// Issuers outside of the cluster, and audiences that their tokens stand for here.
    outside: Option<(Arc<Issuers>, Vec<String>)>,
}

impl Tokens {
    pub(crate) fn new(key: Option<Arc<SigningKey>>, issuers: Vec<String>) -> Self {
        Self {
            key,
            issuers,
            cache: Mutex::new(Cache::default()),
            outside: None,
        }
    }

    /// Takes tokens of other issuers, too. They have audiences of their own, and stand for all of
    /// these.
    pub(crate) fn and(mut self, outside: Option<Arc<Issuers>>, audiences: &[String]) -> Self {
        self.outside = outside.map(|outside| (outside, audiences.to_vec()));
        self
    }

    /// Looks after the other issuers for as long as it is polled.
    pub(crate) async fn run(&self) -> Infallible {
        match &self.outside {
            Some((outside, _)) => outside.run().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn key(&self) -> Option<&SigningKey> {
        self.key.as_deref()
    }

    /// Authenticates the bearer of a token for one of these audiences.
    pub(crate) async fn authenticate(
        &self,
        store: &Store,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<Proven, Refused> {
        if let Some(user) = bootstrap::authenticate(store, token, now) {
            return Ok(Proven {
                user,
                audiences: audiences.to_vec(),
                stale: None,
                used: None,
                until: None,
            });
        }
        if let Some(proven) = self.of_others(token, audiences, now).await {
            return proven;
        }
        let verified = self.verified(token)?;
        let second = now.as_second();
        if second >= verified.ends {
            return Err(Refused::Expired);
        }
        if second < verified.begins {
            return Err(Refused::Early);
        }
        let common = match &verified.audiences {
            None => audiences.to_vec(),
            Some(own) => audiences
                .iter()
                .filter(|wanted| own.contains(wanted))
                .cloned()
                .collect(),
        };
        if common.is_empty() {
            return Err(Refused::Audience {
                found: verified.audiences.clone().unwrap_or_default(),
                wanted: audiences.to_vec(),
            });
        }
        if !verified.bonds.iter().all(|bond| bond.holds(store, token, now)) {
            return Err(Refused::Invalidated);
        }
        let used = verified.lives.as_ref().and_then(|home| home.used(store, now));
        if let Some(used) = used.as_ref().filter(|used| used.origin == Origin::Marked) {
            return Err(Refused::Marked(Box::new(used.clone())));
        }
        let late = verified.promised_until.filter(|until| second > *until);
        let stale = late.map(|until| {
            let (subject, seconds) = (&verified.user.name, second - until);
            format!("subject: {subject}, seconds after warning threshold: {seconds}")
        });
        Ok(Proven {
            user: verified.user.clone(),
            audiences: common,
            stale,
            used,
            until: Some(verified.ends),
        })
    }

    /// The bearer of a token of another issuer; `None` for other tokens. It is for all audiences of
    /// the server (`k8s.io/apiserver/pkg/authentication/authenticator/audagnostic.go`).
    async fn of_others(&self, token: &str, audiences: &[String], now: Timestamp) -> Option<Result<Proven, Refused>> {
        let (outside, own) = self.outside.as_ref()?;
        let known = Box::pin(outside.authenticate(token, now)).await?;
        let common: Vec<String> = audiences
            .iter()
            .filter(|wanted| own.contains(wanted))
            .cloned()
            .collect();
        if common.is_empty() {
            return Some(Err(Refused::Unknown));
        }
        let proven = known.map(|known| Proven {
            user: known.user,
            audiences: common,
            stale: None,
            used: None,
            until: Some(known.until),
        });
        Some(proven.map_err(Refused::Outside))
    }

    fn verified(&self, token: &str) -> Result<Arc<Verified>, Refused> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cache().get(&digest) {
            return Ok(known);
        }
        let key = self.key.as_ref().ok_or(Refused::Unknown)?;
        let claims = key.verify(token).ok_or(Refused::Unknown)?;
        let verified = Arc::new(read(&claims, &self.issuers).ok_or(Refused::Unknown)?);
        cache().put(digest, Arc::clone(&verified));
        Ok(verified)
    }
}

impl SigningKey {
    /// Token for a Secret. It never expires, but becomes invalid with the Secret or the account.
    pub fn secret_token(&self, namespace: &str, account: &str, uid: &str, secret: &str) -> Result<String, KeyError> {
        self.sign(&SecretClaims {
            iss: SECRET_ISSUER.to_owned(),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            account: account.to_owned(),
            uid: uid.to_owned(),
            sub: User::account_name(namespace, account),
        })
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokens")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Parses claims with a valid signature; `None` when they are inconsistent.
fn read(claims: &[u8], issuers: &[String]) -> Option<Verified> {
    let Issued { iss } = serde_json::from_slice(claims).ok()?;
    if iss == SECRET_ISSUER {
        return of_secret(&serde_json::from_slice(claims).ok()?);
    }
    issuers
        .contains(&iss)
        .then(|| of_claims(serde_json::from_slice(claims).ok()?))
        .flatten()
}

/// Reads claims as if they were signed.
pub(crate) fn fuzz(claims: &[u8]) {
    drop(read(claims, &[ISSUER.to_owned()]));
}

fn of_claims(claims: Claims) -> Option<Verified> {
    let Private {
        namespace,
        node,
        pod,
        secret,
        serviceaccount,
        warnafter,
    } = claims.kubernetes;
    let key = |plural: &str, namespace: &str, name: &str| Key::new("", plural, namespace, name).ok();
    let mut bonds = vec![Bond::uid(
        key("serviceaccounts", &namespace, &serviceaccount.name)?,
        &serviceaccount.uid,
    )];
    let mut user = User::account(&namespace, &serviceaccount.name);
    user.uid = serviceaccount.uid;
    let mut add = |name: &str, value: &str| {
        if !value.is_empty() {
            let name = format!("authentication.kubernetes.io/{name}");
            user.extra.insert(name, vec![value.to_owned()]);
        }
    };
    if let Some(secret) = &secret {
        bonds.push(Bond::uid(key("secrets", &namespace, &secret.name)?, &secret.uid));
    }
    if let Some(pod) = &pod {
        bonds.push(Bond::uid(key("pods", &namespace, &pod.name)?, &pod.uid));
        add("pod-name", &pod.name);
        add("pod-uid", &pod.uid);
    }
    if let Some(node) = &node {
        if pod.is_none() {
            bonds.push(Bond::uid(key("nodes", "", &node.name)?, &node.uid));
        }
        add("node-name", &node.name);
        add("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        add("credential-id", &format!("JTI={}", claims.jti));
    }
    (claims.sub == user.name).then_some(Verified {
        user,
        audiences: Some(claims.aud),
        begins: claims.nbf.saturating_sub(LEEWAY_SECONDS),
        ends: claims.exp,
        promised_until: warnafter,
        bonds,
        lives: None,
    })
}

fn of_secret(claims: &SecretClaims) -> Option<Verified> {
    let account = Key::new("", "serviceaccounts", &claims.namespace, &claims.account).ok()?;
    let secret = Key::new("", "secrets", &claims.namespace, &claims.secret).ok()?;
    let mut user = User::account(&claims.namespace, &claims.account);
    user.uid.clone_from(&claims.uid);
    (claims.sub == user.name).then_some(Verified {
        user,
        audiences: None,
        begins: i64::MIN,
        ends: i64::MAX,
        promised_until: None,
        bonds: vec![Bond::uid(account.clone(), &claims.uid), Bond::contents(secret.clone())],
        lives: Some(Home::new(secret, account)),
    })
}
