//! The page at `/ui/`: its files, and how a browser becomes a user of the API.
//!
//! ```text
//! skiff ui ── POST /ui/codes ──► code ── link ──► browser ── POST /ui/login ──► cookie ──► every request of the page
//! ```
//!
//! A session's cookie authenticates only together with something that another site's page cannot
//! send: the header [`OWN`], or for a WebSocket the server's own origin. Proxied backends share
//! this server's origin, too: the cookie alone gives no access, and their documents are
//! [sandboxed](confine) in a browser that has a session, or could have one.

pub(crate) mod attempts;
mod audit;
pub(crate) mod measures;
mod sessions;
pub(crate) mod writes;

use std::time::Duration;

use axum::body::Body;
use http::header::{CONTENT_ENCODING, CONTENT_SECURITY_POLICY, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::Body as _;
use serde::Deserialize;

use crate::authn;
use crate::authn::identity::{ANONYMOUS, Source, Until, User};
use crate::ops::audit::recording::Outcome;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::transport::respond::{self, Response};
use crate::transport::tunnel;

pub(crate) use sessions::{Credential, Proof, Sessions};

/// The header that a page's own requests have.
const OWN: HeaderName = HeaderName::from_static("x-skiff-ui");
/// The `__Host-` prefix keeps other hosts, paths and plain connections from setting the cookie.
const SESSION: &str = "__Host-skiff";
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

/// Secret of the session that a request shows.
#[derive(Debug, Clone)]
struct Shown(String);

/// Token that authenticated a request.
#[derive(Debug, Clone)]
pub(crate) struct Bearer(pub(crate) String);

/// Takes a session's cookie out of a request, whoever authenticates it: backends must not see it.
pub(crate) fn take_session(parts: &mut Parts) {
    if let Some(secret) = take_cookie(&mut parts.headers) {
        parts.extensions.insert(Shown(secret));
    }
}

/// True for a browser that requests anything but the page itself, if it has a session, or may have one
/// that it does not show: another site's frames and forms do not send the cookie.
///
/// A proxy with a credential of its own, such as `kubectl proxy`, shows documents under another origin.
pub(crate) fn is_to_confine(parts: &Parts, is_anonymous: bool) -> bool {
    if is_page(parts) {
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

/// Removes what no backend may set for this origin: the session's cookie, workers for paths above
/// its own, the removal of what the browser keeps, and reports about other requests.
pub(crate) fn protect_origin(headers: &mut HeaderMap) {
    for name in "clear-site-data nel report-to reporting-endpoints service-worker-allowed".split(' ') {
        headers.remove(name);
    }
    let is_own = |cookie: &HeaderValue| {
        // Browsers send a nameless cookie `=a=b` back as `a=b`.
        let bytes = cookie.as_bytes();
        let start = bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'='));
        let name = start.and_then(|start| bytes.get(start..start + SESSION.len()));
        name.is_some_and(|name| name.eq_ignore_ascii_case(SESSION.as_bytes()))
    };
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    if cookies.iter().any(is_own) {
        headers.remove(SET_COOKIE);
        for cookie in cookies.into_iter().filter(|cookie| !is_own(cookie)) {
            headers.append(SET_COOKIE, cookie);
        }
    }
}

/// Identity that the session of a request stands for.
///
/// # Errors
/// 401 for a session that is over, and where another site may have sent the request.
pub(crate) fn session(shared: &Shared, parts: &Parts) -> Result<Option<Credential>, Failure> {
    let Some(Shown(secret)) = parts.extensions.get() else {
        return Ok(None);
    };
    let found = shared.sessions.find(secret, (shared.options.clock)());
    let is_from_page = is_from_page(parts);
    // The page's path is public, and its files are navigated to from links.
    let is_page = is_page(parts);
    match found.filter(|_| is_from_page) {
        Some(credential) => Ok(Some(credential)),
        None if is_page => Ok(None),
        None => Err(Failure::Unauthorized),
    }
}

/// Another cookie that is no ASCII must not hide the session's.
fn take_cookie(headers: &mut HeaderMap) -> Option<String> {
    let given: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'))
        .map(<[u8]>::trim_ascii)
        .collect();
    let own = |pair: &[u8]| Some(pair.strip_prefix(SESSION.as_bytes())?.strip_prefix(b"=")?.to_vec());
    let secret = given.iter().find_map(|pair| own(pair))?;
    let others: Vec<&[u8]> = given.iter().copied().filter(|pair| own(pair).is_none()).collect();
    let others = HeaderValue::from_bytes(&others.join(&b"; "[..])).ok();
    headers.remove(COOKIE);
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        headers.insert(COOKIE, others);
    }
    Some(String::from_utf8_lossy(&secret).into_owned())
}

/// True for a request that only a page of this server can have made.
fn is_from_page(parts: &Parts) -> bool {
    let text = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let host = parts.uri.authority().map(http::uri::Authority::as_str).or(text(HOST));
    let origin = text(ORIGIN).map(|origin| origin.strip_prefix("https://") == host);
    if tunnel::is_wanted(&parts.headers) {
        return origin == Some(true);
    }
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    parts.headers.contains_key(OWN) && origin.unwrap_or(reads)
}

/// True for the page's own paths: without a session they lead to the login, even where anonymous
/// users may do nothing.
pub(crate) fn is_page(parts: &Parts) -> bool {
    let path = parts.uri.path();
    path == "/ui" || path.starts_with("/ui/")
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
        set_cookie(&mut response, secret, sessions::IDLE);
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
    if !is_from_page(parts) {
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
        proven.ok().map(|proven| Credential {
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
    set_cookie(&mut response, &secret, sessions::IDLE);
    Ok(response)
}

fn logout(shared: &Shared, parts: &Parts) -> Result<Response, Failure> {
    if !is_from_page(parts) {
        return Err(Failure::Unauthorized);
    }
    if let Some(Shown(secret)) = parts.extensions.get() {
        shared.sessions.close(secret);
    }
    let mut response = respond::json(StatusCode::OK, "{}");
    set_cookie(&mut response, "", 0);
    Ok(response)
}

/// Sets the session's cookie. `Lax` instead of `Strict`: a document that is opened by another site's
/// link has to show the session, or it would not be sandboxed and could use the session afterwards.
fn set_cookie(response: &mut Response, secret: &str, seconds: i64) {
    let cookie = format!("{SESSION}={secret}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_a_backend_governs_neither_the_session_nor_the_origin() {
        let mut headers = HeaderMap::new();
        for name in "clear-site-data nel report-to reporting-endpoints service-worker-allowed".split(' ') {
            headers.append(name, HeaderValue::from_static("/"));
        }
        for cookie in [
            "a=1",
            "__Host-skiff=x; Path=/; Secure",
            " __HOST-SKIFF=y",
            "= __Host-skiff=z",
            "b=2",
        ] {
            headers.append(SET_COOKIE, HeaderValue::from_static(cookie));
        }
        protect_origin(&mut headers);
        assert_eq!(headers.len(), 2, "{headers:?}");
        assert_eq!(headers.get_all(SET_COOKIE).iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    }

    #[test]
    fn attack_a_cookie_that_is_no_ascii_does_not_hand_the_session_to_backends() {
        let mut headers = HeaderMap::new();
        let sent = HeaderValue::from_bytes("a=\u{e9}; __Host-skiff=secret; b=2".as_bytes()).unwrap();
        headers.insert(COOKIE, sent);
        assert_eq!(take_cookie(&mut headers).as_deref(), Some("secret"));
        assert_eq!(headers[COOKIE].as_bytes(), "a=\u{e9}; b=2".as_bytes());
    }
}
