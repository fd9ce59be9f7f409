//! The cookie of a browser's session.
//!
//! It authenticates only together with something that another site's page cannot send: the header [`OWN`], or for a
//! WebSocket the server's own origin. Proxied backends share this server's origin, too: the cookie alone gives no access.

use http::header::{COOKIE, HOST, ORIGIN, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::sessions::Credential;
use crate::request::failure::Failure;
use crate::server::shared::Shared;
use crate::transport::respond::Response;
use crate::transport::tunnel;

/// The header that a page's own requests have.
const OWN: HeaderName = HeaderName::from_static("x-skiff-ui");
/// The `__Host-` prefix keeps other hosts, paths and plain connections from setting the cookie.
const SESSION: &str = "__Host-skiff";

/// Secret of the session that a request shows.
#[derive(Debug, Clone)]
pub(crate) struct Shown(pub(crate) String);

/// Takes a session's cookie out of a request, whoever authenticates it: backends must not see it.
pub(super) fn take(parts: &mut Parts) {
    if let Some(secret) = take_cookie(&mut parts.headers) {
        parts.extensions.insert(Shown(secret));
    }
}

/// Identity that the session of a request stands for.
///
/// # Errors
/// 401 for a session that is over, and where another site may have sent the request.
pub(super) fn session(shared: &Shared, parts: &Parts) -> Result<Option<Credential>, Failure> {
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
pub(crate) fn is_from_page(parts: &Parts) -> bool {
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

/// Sets the session's cookie. `Lax` instead of `Strict`: a document that is opened by another site's
/// link has to show the session, or it would not be sandboxed and could use the session afterwards.
pub(crate) fn set(response: &mut Response, secret: &str, seconds: i64) {
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
