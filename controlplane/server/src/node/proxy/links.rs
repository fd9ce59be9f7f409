//! Rewriting of links in proxied pages, so that they lead through the proxy
//! (`k8s.io/apimachinery/pkg/util/proxy/transport.go`).

use std::io::Read as _;

use axum::body::Body;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::{StreamExt as _, stream};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::response::Parts;
use k8s_openapi::api::core::v1::Pod;

use crate::request::context::Context;
use crate::transport::compress::gzip;
use crate::transport::respond::Response;

/// Size limit for pages whose links are rewritten; upstream has none. A larger page passes
/// unchanged.
const PAGE: usize = 4 << 20;

/// Attributes that are links, by element.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];
/// Elements in which nothing but their own end is a tag.
const RAW: [&str; 9] = [
    "iframe",
    "noembed",
    "noframes",
    "noscript",
    "plaintext",
    "script",
    "style",
    "textarea",
    "title",
];

/// Base of a back end's URLs, seen from inside and from outside.
pub(super) struct Place {
    /// The path up to the back end's own.
    prefix: String,
    /// The host that the client asks.
    outside: String,
    /// The back end's host and port, where they are known.
    inside: String,
    is_head: bool,
}

impl Place {
    pub(super) fn new(context: &Context, prefix: String) -> Self {
        let named = context.wire.uri.authority().map(ToString::to_string);
        let host = context.headers.get(HOST).and_then(|host| host.to_str().ok());
        Self {
            prefix,
            outside: named.or_else(|| host.map(str::to_owned)).unwrap_or_default(),
            inside: String::new(),
            is_head: context.wire.method == "HEAD",
        }
    }

    pub(super) fn is_of(&mut self, pod: &Pod, port: u16) {
        let address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref())
            .unwrap_or_default();
        self.inside = if address.contains(':') {
            format!("[{address}]:{port}")
        } else {
            format!("{address}:{port}")
        };
    }

    /// Rewrites one URL to lead through the proxy (`rewriteURL`); `None` keeps it.
    pub(super) fn relocated(&self, link: &str) -> Option<String> {
        let named = link.strip_prefix("http:").or_else(|| link.strip_prefix("https:"));
        let (host, path) = match named.unwrap_or(link).strip_prefix("//") {
            Some(rest) => {
                let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let (host, path) = rest.split_at_checked(at)?;
                (Some(host), path)
            }
            None if named.is_some() => return None,
            None => (None, link),
        };
        let is_outside = host.is_some_and(|host| host == self.outside);
        if host.is_some_and(|host| !is_outside && host != self.inside) || !path.starts_with('/') {
            return None;
        }
        let origin = if is_outside { link.strip_suffix(path)? } else { "" };
        let prefix = if path.starts_with(&self.prefix) {
            ""
        } else {
            &self.prefix
        };
        Some(format!("{origin}{prefix}{path}"))
    }

    /// Rewrites the links in the answer, if it is a page.
    pub(super) async fn rewritten(&self, mut parts: Parts, body: Body) -> Response {
        let header = |name| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let is_page = header(CONTENT_TYPE)
            .split(';')
            .next()
            .is_some_and(|kind| kind.trim() == "text/html");
        let zipped = header(CONTENT_ENCODING) == "gzip";
        if !is_page || self.is_head || !(zipped || header(CONTENT_ENCODING).is_empty()) {
            return Response::from_parts(parts, body);
        }
        let mut chunks = body.into_data_stream();
        let mut page = Vec::new();
        while page.len() <= PAGE {
            match chunks.next().await {
                Some(Ok(chunk)) => page.extend_from_slice(&chunk),
                None => {
                    let Some(page) = self.page(&page, zipped) else { break };
                    parts.headers.remove(CONTENT_LENGTH);
                    return Response::from_parts(parts, page.into());
                }
                // The part that was received is sent on, followed by the error.
                Some(Err(error)) => {
                    let broken = stream::iter([Ok(Bytes::from(page)), Err(error)]);
                    return Response::from_parts(parts, Body::from_stream(broken));
                }
            }
        }
        let rest = stream::iter([Ok(Bytes::from(page))]).chain(chunks);
        Response::from_parts(parts, Body::from_stream(rest))
    }

    fn page(&self, page: &[u8], zipped: bool) -> Option<Bytes> {
        if !zipped {
            return Some(self.rewrite(page).into());
        }
        let mut plain = Vec::new();
        let bound = PAGE as u64 + 1;
        MultiGzDecoder::new(page).take(bound).read_to_end(&mut plain).ok()?;
        gzip(&self.rewrite(&plain)).filter(|_| plain.len() <= PAGE)
    }

    /// Rewrites the values of links; all other bytes stay.
    fn rewrite(&self, page: &[u8]) -> Vec<u8> {
        let mut written = Vec::with_capacity(page.len());
        let mut scanner = Scanner { rest: page };
        loop {
            written.extend_from_slice(scanner.until(|byte| byte == b'<'));
            match scanner.rest {
                [] => return written,
                [b'<', b'!', b'-', b'-', ..] => written.extend_from_slice(scanner.through(b"-->")),
                [b'<', letter, ..] if letter.is_ascii_alphabetic() => self.tag(&mut scanner, &mut written),
                [b'<', b'!' | b'?' | b'/', ..] => written.extend_from_slice(scanner.through(b">")),
                [..] => written.extend_from_slice(scanner.take(1)),
            }
        }
    }

    fn tag(&self, scanner: &mut Scanner<'_>, written: &mut Vec<u8>) {
        let ends = |byte: u8| byte.is_ascii_whitespace() || byte == b'/' || byte == b'>';
        written.extend_from_slice(scanner.take(1));
        let element = scanner.until(ends);
        written.extend_from_slice(element);
        let element = String::from_utf8_lossy(element).to_ascii_lowercase();
        let links = LINKS
            .iter()
            .find(|(known, _)| *known == element)
            .map_or(&[][..], |(_, links)| links);
        loop {
            written.extend_from_slice(scanner.until(|byte| !byte.is_ascii_whitespace() && byte != b'/'));
            if matches!(scanner.rest, [] | [b'>', ..]) {
                break;
            }
            let name = scanner.until(|byte| ends(byte) || byte == b'=');
            written.extend_from_slice(name);
            written.extend_from_slice(scanner.until(|byte| !byte.is_ascii_whitespace()));
            if !scanner.rest.starts_with(b"=") {
                continue;
            }
            written.extend_from_slice(scanner.take(1));
            written.extend_from_slice(scanner.until(|byte| !byte.is_ascii_whitespace()));
            let value = match scanner.rest {
                [quote @ (b'"' | b'\''), ..] => {
                    written.extend_from_slice(scanner.take(1));
                    scanner.until(|byte| byte == *quote)
                }
                [..] => scanner.until(|byte| byte.is_ascii_whitespace() || byte == b'>'),
            };
            let is_link = links.iter().any(|link| name.eq_ignore_ascii_case(link.as_bytes()));
            let relocated = std::str::from_utf8(value)
                .ok()
                .filter(|_| is_link)
                .and_then(|link| self.relocated(link));
            written.extend_from_slice(relocated.as_ref().map_or(value, |link| link.as_bytes()));
            if matches!(scanner.rest, [b'"' | b'\'', ..]) {
                written.extend_from_slice(scanner.take(1));
            }
        }
        if RAW.contains(&element.as_str()) {
            written.extend_from_slice(scanner.before(format!("</{element}").as_bytes()));
        }
    }
}

/// A page from where it is read.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at_checked(count).unwrap_or((self.rest, &[]));
        self.rest = rest;
        taken
    }

    fn until(&mut self, end: impl Fn(u8) -> bool) -> &'a [u8] {
        let at = self.rest.iter().position(|byte| end(*byte));
        self.take(at.unwrap_or(self.rest.len()))
    }

    /// Up to a text, in letters of either size.
    fn before(&mut self, text: &[u8]) -> &'a [u8] {
        let at = self
            .rest
            .windows(text.len())
            .position(|window| window.eq_ignore_ascii_case(text));
        self.take(at.unwrap_or(self.rest.len()))
    }

    fn through(&mut self, text: &[u8]) -> &'a [u8] {
        let at = self.rest.windows(text.len()).position(|window| window == text);
        self.take(at.map_or(self.rest.len(), |at| at + text.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/default/pods/web/proxy";

    fn place() -> Place {
        Place {
            prefix: PREFIX.to_owned(),
            outside: "localhost:8001".to_owned(),
            inside: "10.0.0.7:80".to_owned(),
            is_head: false,
        }
    }

    #[test]
    fn links_lead_through_the_proxy() {
        for (link, wanted) in [
            ("/login?a#b", Some(format!("{PREFIX}/login?a#b"))),
            ("http://10.0.0.7:80/x", Some(format!("{PREFIX}/x"))),
            ("//10.0.0.7:80/x", Some(format!("{PREFIX}/x"))),
            (
                "https://localhost:8001/x",
                Some(format!("https://localhost:8001{PREFIX}/x")),
            ),
            (
                "/api/v1/namespaces/default/pods/web/proxy/x",
                Some(format!("{PREFIX}/x")),
            ),
            ("https://elsewhere/", None),
            ("//elsewhere/", None),
            ("http:/x", None),
            ("next", None),
            ("#top", None),
            ("mailto:me", None),
        ] {
            assert_eq!(place().relocated(link), wanted, "{link}");
        }
    }

    #[test]
    fn pages_are_rewritten_where_they_have_links() {
        for (page, wanted) in [
            ("<a href='/x'>/x</a>", "<a href='~/x'>/x</a>"),
            ("<IMG Src=/i.png alt=\"/x\" >", "<IMG Src=~/i.png alt=\"/x\" >"),
            (
                "<form\n action = \"/f\" method=post>",
                "<form\n action = \"~/f\" method=post>",
            ),
            (
                "<link href=\"/s.css\"/><p href='/x'>",
                "<link href=\"~/s.css\"/><p href='/x'>",
            ),
            (
                "<script src=/s.js>\"<a href='/x'>\"</script><a href=/y>",
                "<script src=~/s.js>\"<a href='/x'>\"</script><a href=~/y>",
            ),
            (
                "<!-- <a href='/x'> --><a href='/y'>",
                "<!-- <a href='/x'> --><a href='~/y'>",
            ),
            (
                "<!DOCTYPE html><a href=\"next\"><base href='http://10.0.0.7:80/'>",
                "<!DOCTYPE html><a href=\"next\"><base href='~/'>",
            ),
            ("1 < 2 <a disabled href='/x' href", "1 < 2 <a disabled href='~/x' href"),
            ("<a href='/x", "<a href='~/x"),
            ("", ""),
        ] {
            let written = String::from_utf8(place().rewrite(page.as_bytes())).unwrap();
            assert_eq!(written, wanted.replace('~', PREFIX), "{page}");
        }
    }

    async fn answered(kind: &str, encoding: Option<&str>, page: Vec<u8>) -> (Option<String>, Vec<u8>) {
        let mut answer = http::Response::builder()
            .header(CONTENT_TYPE, kind)
            .header(CONTENT_LENGTH, page.len());
        if let Some(encoding) = encoding {
            answer = answer.header(CONTENT_ENCODING, encoding);
        }
        let (parts, body) = answer.body(Body::from(page)).unwrap().into_parts();
        let answer = place().rewritten(parts, body).await;
        let length = answer
            .headers()
            .get(CONTENT_LENGTH)
            .map(|length| length.to_str().unwrap().to_owned());
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (length, body.to_vec())
    }

    #[tokio::test]
    async fn pages_alone_are_rewritten_also_zipped_ones_and_large_ones_are_not() {
        let (page, wanted) = ("<a href=/x>".to_owned(), format!("<a href={PREFIX}/x>"));
        let told = answered("text/html; charset=utf-8", None, page.clone().into()).await;
        assert_eq!(told, (None, wanted.clone().into()));
        let told = answered("text/plain", None, page.clone().into()).await;
        assert_eq!(told, (Some(page.len().to_string()), page.clone().into()));
        let zipped = gzip(page.as_bytes()).unwrap();
        let (length, told) = answered("text/html", Some("gzip"), zipped.to_vec()).await;
        let mut plain = String::new();
        MultiGzDecoder::new(told.as_slice()).read_to_string(&mut plain).unwrap();
        assert_eq!((length, plain), (None, wanted));
        let (_, told) = answered("text/html", Some("br"), page.clone().into()).await;
        assert_eq!(told, page.as_bytes());
        for (encoding, large) in [
            (None, page.repeat(PAGE / page.len() + 1).into_bytes()),
            (Some("gzip"), gzip(&vec![b' '; PAGE + 1]).unwrap().to_vec()),
        ] {
            let (length, told) = answered("text/html", encoding, large.clone()).await;
            assert!(length.is_some() && told == large, "{encoding:?}");
        }
    }
}
