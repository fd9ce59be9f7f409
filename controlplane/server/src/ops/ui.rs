//! The page at `/ui/`: its files, and how a browser becomes a user of the API.
//!
//! ```text
//! skiff ui ── POST /ui/codes ──► code ── link ──► browser ── POST /ui/login ──► cookie ──► every request of the page
//! ```
//!
//! Proxied backends share this server's origin, too: a session's [cookie] alone gives no access, and their documents are
//! [sandboxed](confine) in a browser that has a session, or could have one.

pub(crate) mod attempts;
mod audit;
pub(crate) mod measures;
pub(crate) mod writes;

use std::time::Duration;

use axum::body::Body;
use http::header::{CONTENT_ENCODING, CONTENT_SECURITY_POLICY, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::Body as _;
use serde::Deserialize;

use crate::authn::cookie::{self, Shown};
use crate::authn::identity::{ANONYMOUS, Source, Until, User};
use crate::authn::sessions::{self, Credential, Proof};
use crate::authn::{self, Bearer};
use crate::ops::audit::recording::Outcome;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::transport::respond::{self, Response};

/// Content security policy: same origin only, nothing inline, no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types svelte-trusted-html";
const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// Policy for documents that others serve under this server's origin. Their scripts run in an
/// opaque origin: they can neither read the page nor use its session.
const CONFINED: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-downloads");

/// Limits of a login's body: its bytes, and the time in which it has to arrive.
const LOGIN_BYTES: u64 = 64 << 10;
const LOGIN_TIME: Duration = Duration::from_secs(5);
/// Maximum size of the impersonation headers that a session keeps.
const IMPERSONATION_BYTES: usize = 4 << 10;

/// A file of the page.
struct File {
    name: &'static str,
    media: &'static str,
    /// Part of the login, which everybody may have.
    open: bool,
    /// gzip.
    bytes: &'static [u8],
}

macro_rules! file {
    ($name:literal, $media:literal, $open:literal) => {
        File {
            name: $name,
            media: $media,
            open: $open,
            bytes: include_bytes!(concat!("../../../ui/dist/", $name, ".gz")),
        }
    };
}

/// Files that `controlplane/ui/build.mjs` builds.
const FILES: [File; 6] = [
    file!("login.html", "text/html; charset=utf-8", true),
    file!("login.js", "text/javascript; charset=utf-8", true),
    file!("style.css", "text/css; charset=utf-8", true),
    file!("icon.svg", "image/svg+xml", true),
    file!("index.html", "text/html; charset=utf-8", false),
    file!("app.js", "text/javascript; charset=utf-8", false),
];

/// True for a browser that requests anything but the page itself, if it has a session, or may have one
/// that it does not show: another site's frames and forms do not send the cookie.
///
/// A proxy with a credential of its own, such as `kubectl proxy`, shows documents under another origin.
pub(crate) fn is_to_confine(parts: &Parts, is_anonymous: bool) -> bool {
    if cookie::is_page(parts) {
        return false;
    }
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let is_document = || {
        let shown = text("sec-fetch-dest");
        shown.is_some_and(|shown| {
            matches!(
                shown,
                "document" | "embed" | "fencedframe" | "frame" | "iframe" | "object"
            )
        })
    };
    let is_proxied = || parts.extensions.get::<Bearer>().is_some() || parts.headers.contains_key("x-forwarded-for");
    let is_led = || !matches!(text("sec-fetch-site"), Some("none" | "same-origin"));
    parts.extensions.get::<Shown>().is_some() || is_document() && (is_anonymous || is_led() && !is_proxied())
}

/// Sandboxes an answer that is shown as a document, so that it cannot act as the page does. Clients
/// other than browsers never get the header.
pub(crate) fn confine(response: &mut Response) {
    response.headers_mut().append(CONTENT_SECURITY_POLICY, CONFINED);
}

/// Facts about resources for the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Facts {
    /// Times of writes.
    Writes,
    /// Usage over time.
    Measures,
}

impl Facts {
    fn of(segments: &[String]) -> Option<Self> {
        match segments {
            [ui, writes, ..] if ui == "ui" && writes == "writes" => Some(Self::Writes),
            [ui, measures, ..] if ui == "ui" && measures == "measures" => Some(Self::Measures),
            _ => None,
        }
    }

    /// Strips the prefix from a path, leaving the resource: users that may read it may see the facts.
    pub(crate) fn take(segments: &mut Vec<String>) -> Option<Self> {
        let facts = Self::of(segments)?;
        segments.drain(..2);
        Some(facts)
    }

    pub(crate) async fn answer(self, shared: &Shared, user: &User, info: &RequestInfo) -> Result<Response, Failure> {
        match self {
            Self::Writes => shared.writes.answer(info),
            Self::Measures => {
                let _share = shared.limits.past(&user.name).await?;
                measures::answer(shared, info).await
            }
        }
    }
}

/// True for paths below `/ui` except those [about](Facts) resources, which are authorized like these.
pub(crate) fn is_own(segments: &[String]) -> bool {
    segments.first().is_some_and(|first| first == "ui") && Facts::of(segments).is_none()
}

/// Answers paths below `/ui`.
pub(crate) async fn answer(
    shared: &Shared,
    mut parts: Parts,
    caller: &User,
    body: Body,
    (segments, outcome): (&[String], &mut Outcome),
) -> Result<Response, Failure> {
    outcome.info = RequestInfo::new(&parts.method, segments, &Query::default())?;
    let rest: Vec<&str> = segments.iter().skip(1).map(String::as_str).collect();
    let impersonation = authn::headers_of(&parts.headers);
    // A session can be left, too, when its user may no longer impersonate.
    if matches!(rest.as_slice(), ["audit" | "codes" | "session"]) {
        let asked = (&outcome.info, segments);
        outcome.impersonated = authn::impersonated(shared, caller, asked, &mut parts.headers)?;
    }
    let user = outcome.impersonated.as_ref().map_or(caller, |own| &own.user);
    let mut response = match (parts.method.as_str(), rest.as_slice()) {
        ("GET" | "HEAD", []) if !parts.uri.path().ends_with('/') => moved(),
        ("GET", ["session"]) => current(&parts, user)?,
        ("GET", ["audit"]) => audit::answer(shared, parts.uri.query(), user).await?,
        ("GET" | "HEAD", []) => file(page(shared, &parts))?,
        ("GET" | "HEAD", [name]) => {
            let known = FILES
                .iter()
                .find(|file| file.name == *name)
                .ok_or(Failure::NoSuchPath)?;
            if !known.open && !has_session(shared, &parts) {
                return Err(Failure::Unauthorized);
            }
            file(known.name)?
        }
        ("POST", ["codes"]) => code(shared, &parts, (caller, user), impersonation)?,
        ("POST", ["login"]) => login(shared, &parts, body, outcome).await?,
        ("POST", ["logout"]) => logout(shared, &parts)?,
        (_, [] | ["audit" | "codes" | "login" | "logout" | "session"]) => return Err(Failure::MethodNotAllowed),
        _ => return Err(Failure::NoSuchPath),
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(response)
}

fn moved() -> Response {
    let mut response = respond::text(StatusCode::PERMANENT_REDIRECT, "");
    response
        .headers_mut()
        .insert(LOCATION, HeaderValue::from_static("/ui/"));
    response
}

fn has_session(shared: &Shared, parts: &Parts) -> bool {
    let shown = parts.extensions.get::<Shown>();
    shown.is_some_and(|shown| shared.sessions.find(&shown.0, (shared.options.clock)()).is_some())
}

fn page(shared: &Shared, parts: &Parts) -> &'static str {
    if has_session(shared, parts) {
        "index.html"
    } else {
        "login.html"
    }
}

fn file(name: &str) -> Result<Response, Failure> {
    let file = FILES.iter().find(|file| file.name == name).ok_or(Failure::NoSuchPath)?;
    let mut response = respond::with_type(StatusCode::OK, file.media, file.bytes);
    let headers = response.headers_mut();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Ok(response)
}

/// Current user of the page; the cookie is set again, so that it lasts as long as the session.
fn current(parts: &Parts, user: &User) -> Result<Response, Failure> {
    if user.name == ANONYMOUS {
        return Err(Failure::Unauthorized);
    }
    let told = serde_json::json!({ "user": user.name, "groups": user.groups });
    let mut response = respond::json(StatusCode::OK, respond::encode(&told));
    if let Some(Shown(secret)) = parts.extensions.get() {
        cookie::set(&mut response, secret, sessions::IDLE);
    }
    Ok(response)
}

/// Issues a code to a user that did not authenticate by a session: sessions could else be prolonged
/// forever.
fn code(
    shared: &Shared,
    parts: &Parts,
    (caller, user): (&User, &User),
    impersonation: HeaderMap,
) -> Result<Response, Failure> {
    if caller.name == ANONYMOUS || user.name == ANONYMOUS || parts.extensions.get::<Shown>().is_some() {
        return Err(Failure::Unauthorized);
    }
    let lengths = impersonation
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    if lengths.sum::<usize>() > IMPERSONATION_BYTES {
        let message = format!("a session keeps at most {IMPERSONATION_BYTES} bytes of impersonation headers");
        return Err(Failure::bad_request(message));
    }
    let proof = match parts.extensions.get() {
        Some(Bearer(token)) => Proof::Token(token.clone(), caller.name.clone()),
        None => Proof::User(caller.clone()),
    };
    let until = parts.extensions.get().map(|Until(until)| *until);
    let credential = Credential {
        proof,
        impersonation,
        until,
    };
    let code = shared.sessions.code(credential, (shared.options.clock)());
    let told = serde_json::json!({ "code": code, "seconds": sessions::CODE_LIFETIME });
    Ok(respond::json(StatusCode::CREATED, respond::encode(&told)))
}

/// Body of a login: one of the two.
#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    code: String,
    #[serde(default)]
    token: String,
}

async fn login(shared: &Shared, parts: &Parts, body: Body, outcome: &mut Outcome) -> Result<Response, Failure> {
    if !cookie::is_from_page(parts) {
        return Err(Failure::Unauthorized);
    }
    let source = parts.extensions.get::<Source>().map(|source| source.0.ip());
    if !shared.attempts.allow(source, (shared.options.clock)()) {
        return Err(Failure::TooManyRequests {
            message: "too many logins from this address".into(),
            retry_after: 1,
            causes: Vec::new(),
        });
    }
    // All logins share the limits of one user.
    if body.size_hint().upper().is_none_or(|bytes| bytes > LOGIN_BYTES) {
        return Err(Failure::TooLarge {
            limit: crate::transport::body::LIMIT,
        });
    }
    let read = tokio::time::timeout(LOGIN_TIME, shared.limits.read(ANONYMOUS, body)).await;
    let (bytes, _room) = read.unwrap_or(Err(Failure::Late))?;
    let login: Login =
        serde_json::from_slice(&bytes).map_err(|_unread| Failure::bad_request("the login is not understood"))?;
    let now = (shared.options.clock)();
    let credential = if login.token.is_empty() {
        shared.sessions.redeem(&login.code, now)
    } else {
        let proven = shared
            .tokens
            .authenticate(&shared.store, &login.token, authn::audiences(shared), now);
        proven.await.ok().map(|proven| Credential {
            proof: Proof::Token(login.token, proven.user.name),
            impersonation: HeaderMap::new(),
            until: proven.until,
        })
    };
    let credential = credential.ok_or(Failure::Unauthorized)?;
    // The login request itself is anonymous.
    let owner = ("ui.skiff.dev/user".into(), credential.owner().to_owned());
    outcome.annotations.push(owner);
    let impersonated = credential.impersonation.get(authn::IMPERSONATED);
    if let Some(name) = impersonated.and_then(|name| std::str::from_utf8(name.as_bytes()).ok()) {
        let impersonated = ("ui.skiff.dev/impersonated-user".into(), name.to_owned());
        outcome.annotations.push(impersonated);
    }
    let secret = shared.sessions.open(credential, now);
    if let Some(Shown(before)) = parts.extensions.get() {
        shared.sessions.close(before);
    }
    let mut response = respond::json(StatusCode::CREATED, "{}");
    cookie::set(&mut response, &secret, sessions::IDLE);
    Ok(response)
}

fn logout(shared: &Shared, parts: &Parts) -> Result<Response, Failure> {
    if !cookie::is_from_page(parts) {
        return Err(Failure::Unauthorized);
    }
    if let Some(Shown(secret)) = parts.extensions.get() {
        shared.sessions.close(secret);
    }
    let mut response = respond::json(StatusCode::OK, "{}");
    cookie::set(&mut response, "", 0);
    Ok(response)
}
