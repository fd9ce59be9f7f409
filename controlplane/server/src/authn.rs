//! Authentication: a client certificate that the transport verified, a bearer token, a browser
//! session, or anonymous.

pub(crate) mod cookie;
pub mod identity;
mod impersonation;
pub mod oidc;
pub mod pki;
pub(crate) mod review;
pub(crate) mod sessions;
pub(crate) mod token_request;
pub mod tokens;
mod websocket;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;

use crate::authn::identity::{ANONYMOUS, Until, User};
use crate::authn::sessions::Proof;
use crate::authn::tokens::{Refused, Used};
use crate::request::failure::Failure;
use crate::server::shared::Shared;
use crate::transport::tls::{Known, RefusedCertificate};

pub(crate) use impersonation::{Impersonated, USER as IMPERSONATED, headers_of, impersonated};

/// Authenticated user, with annotations for the audit log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    pub(crate) user: User,
    pub(crate) annotations: Vec<(&'static str, String)>,
}

impl From<User> for Caller {
    fn from(user: User) -> Self {
        let annotations = Vec::new();
        Self { user, annotations }
    }
}

/// Token that authenticated a request.
#[derive(Debug, Clone)]
pub(crate) struct Bearer(pub(crate) String);

/// The audiences of tokens that the server itself takes.
pub(crate) fn audiences(shared: &Shared) -> &[String] {
    &shared.options.audiences
}

/// The caller of a request. The token is taken out of it: nothing behind here has use for it. That it lives in a Secret is
/// left there as [`Used`].
///
/// # Errors
/// 401 for a token, a session or a certificate that proves nothing.
pub(crate) async fn caller(shared: &Shared, parts: &mut Parts) -> Result<Caller, Failure> {
    let known = parts.extensions.remove::<Known>();
    // So far the transport alone has set it, for a certificate.
    if let Some(Until(until)) = parts.extensions.get() {
        let remaining = until.saturating_sub((shared.options.clock)().as_second());
        let remaining = i32::try_from(remaining).unwrap_or(i32::MAX);
        shared.metrics.lifetimes.observe(f64::from(remaining));
    }
    let caller = prove(shared, parts).await?;
    if let Some(known) = known.filter(|_| caller.user.name != ANONYMOUS) {
        known.set();
    }
    Ok(caller)
}

async fn prove(shared: &Shared, parts: &mut Parts) -> Result<Caller, Failure> {
    let token = bearer(&parts.headers).map(str::to_owned);
    parts.headers.remove(AUTHORIZATION);
    cookie::take(parts);
    let offered = websocket::take_token(&mut parts.headers);
    if let Some(user) = parts.extensions.get::<User>() {
        return Ok(user.clone().into());
    }
    let token = match token {
        Some(token) => Some(token),
        None => offered.map_err(|refused| {
            tracing::debug!(%refused, "a WebSocket's token was refused");
            Failure::Unauthorized
        })?,
    };
    let session = if token.is_some() {
        None
    } else {
        cookie::session(shared, parts)?
    };
    // Its impersonation is checked and audited as if the client had sent the headers.
    let proof = session.map(|credential| {
        impersonation::set_headers(&mut parts.headers, credential.impersonation);
        credential.proof
    });
    let token = match proof {
        None => token,
        Some(Proof::Token(token, _)) => Some(token),
        Some(Proof::User(user)) => return Ok(user.into()),
    };
    let Some(token) = token else {
        let (options, path) = (&shared.options, parts.uri.path());
        // Follows `k8s.io/apiserver/pkg/authentication/request/anonymous/anonymous.go`.
        let is_named = options.anonymous_paths.iter().any(|named| named == path);
        let passes = options.anonymous && (is_named || options.anonymous_paths.is_empty());
        if !passes && !cookie::is_page(parts) || parts.extensions.get::<RefusedCertificate>().is_some() {
            return Err(Failure::Unauthorized);
        }
        return Ok(User::anonymous().into());
    };
    let now = (shared.options.clock)();
    let proven = shared
        .tokens
        .authenticate(&shared.store, &token, audiences(shared), now);
    match proven.await {
        Ok(proven) => {
            parts.extensions.insert(Bearer(token));
            if let Some(until) = proven.until {
                parts.extensions.insert(Until(until));
            }
            if let Some(used) = proven.used {
                parts.extensions.insert(used);
            }
            let stale = proven.stale.map(|stale| ("authentication.k8s.io/stale-token", stale));
            Ok(Caller {
                user: proven.user,
                annotations: stale.into_iter().collect(),
            })
        }
        Err(refused) => {
            if let Refused::Marked(used) = &refused {
                parts.extensions.insert(Used::clone(used));
            }
            tracing::debug!(%refused, "a bearer token was refused");
            Err(Failure::Unauthorized)
        }
    }
}

/// Token of `Authorization: Bearer TOKEN`; other schemes are ignored.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, rest) = header.split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
