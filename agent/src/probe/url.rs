//! URLs as Go parses and formats them (`net/url`), which the kubelet uses for probes and hooks:
//! servers receive the same bytes, even if the path has spaces or other invalid characters.

use std::fmt;
use std::fmt::Write as _;

use super::join;

/// HTTP or HTTPS URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) secure: bool,
    /// Without brackets.
    pub(super) host: String,
    port: Option<u16>,
    /// Escaped.
    path: String,
    /// The query as given.
    query: Option<String>,
}

/// Target of a `Location` header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// URL on the same host.
    Here(Url),
    /// URL on another host.
    Away,
    /// Invalid URL: the URL in Go's error, and its text.
    Astray(String, String),
}

/// Parts of a URL, as parsed by `net/url`'s `parse`, without the fragment.
struct Parts {
    scheme: Option<String>,
    authority: Option<String>,
    path: String,
    query: Option<String>,
}

impl Url {
    /// Returns the URL for a pod's host, port and path (`pkg/probe/http/request.go`, `formatURL`).
    pub(super) fn new(secure: bool, host: String, port: u16, path: &str) -> Self {
        let parts = Parts::read(path);
        let (path, query) = parts.map_or_else(|| (escape(path.as_bytes()), None), |parts| (parts.path, parts.query));
        let slash = if path.starts_with('/') { "" } else { "/" };
        Self {
            secure,
            host,
            port: Some(port),
            path: format!("{slash}{path}"),
            query,
        }
    }

    pub(super) fn insecure(self) -> Self {
        Self { secure: false, ..self }
    }

    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.secure { 443 } else { 80 })
    }

    /// Returns the host and, if given, the port.
    pub(super) fn authority(&self) -> String {
        match self.port {
            Some(port) => join(&self.host, port),
            None if self.host.contains(':') => format!("[{}]", self.host),
            None => self.host.clone(),
        }
    }

    /// Returns path and query of the request line.
    pub(super) fn request(&self) -> String {
        let query = self.query.as_ref().map(|query| format!("?{query}"));
        format!("{}{}", self.path, query.unwrap_or_default())
    }

    /// Resolves an answer's `Location` (`net/url`, `ResolveReference`).
    pub(super) fn led(&self, location: &str) -> Led {
        let unread = || {
            Led::Astray(
                self.to_string(),
                format!("failed to parse Location header {location:?}"),
            )
        };
        let Some(parts) = Parts::read(location) else {
            return unread();
        };
        if parts.scheme.is_none() && parts.authority.is_none() {
            let stays = parts.path.is_empty() && parts.query.is_none();
            return Led::Here(Self {
                path: resolve(&self.path, &parts.path),
                query: if stays { self.query.clone() } else { parts.query },
                ..self.clone()
            });
        }
        let authority = parts.authority.unwrap_or_default();
        let host_and_port = authority.rsplit_once('@').map_or(authority.as_str(), |(_, rest)| rest);
        let Some((host, port)) = split(host_and_port) else {
            return unread();
        };
        if host != self.host {
            return Led::Away;
        }
        let secure = match parts.scheme.as_deref() {
            None => self.secure,
            Some("https") => true,
            Some("http") => false,
            Some(other) => {
                return Led::Astray(location.to_owned(), format!("unsupported protocol scheme {other:?}"));
            }
        };
        Led::Here(Self {
            secure,
            host,
            port,
            path: resolve(&parts.path, ""),
            query: parts.query,
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(formatter, "{scheme}://{}{}", self.authority(), self.request())
    }
}

impl Parts {
    /// Parses a URL or a reference; `None` where Go fails, and for opaque URLs (`mailto:x`).
    fn read(text: &str) -> Option<Self> {
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        unescape(fragment)?;
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return None;
        }
        let (scheme, rest) = scheme(text)?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query.to_owned())),
            None => (rest, None),
        };
        let first = rest.split('/').next().unwrap_or_default();
        if !rest.starts_with('/') && (scheme.is_some() || first.contains(':')) {
            return None;
        }
        let named = scheme.is_some() || !rest.starts_with("///");
        let (authority, path) = match rest.strip_prefix("//").filter(|_| named) {
            Some(rest) => {
                let at = rest.find('/').unwrap_or(rest.len());
                let (authority, path) = rest.split_at_checked(at)?;
                (Some(authority.to_owned()), path)
            }
            None => (None, rest),
        };
        let decoded = unescape(path)?;
        Some(Self {
            scheme,
            authority,
            path: if path.bytes().all(is_valid) {
                path.to_owned()
            } else {
                escape(&decoded)
            },
            query,
        })
    }
}

/// Splits off the scheme before the first colon, in lower case; `None` if the text begins with a
/// colon.
fn scheme(text: &str) -> Option<(Option<String>, &str)> {
    let inner = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    match text.split_once(':') {
        Some(("", _)) => None,
        Some((scheme, rest))
            if scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.chars().all(inner) =>
        {
            Some((Some(scheme.to_ascii_lowercase()), rest))
        }
        Some(_) | None => Some((None, text)),
    }
}

/// Splits host, without brackets, and port.
fn split(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at_checked(authority.find(':').unwrap_or(authority.len()))?,
    };
    let port = match port.strip_prefix(':') {
        Some("") => None,
        Some(number) => Some(number.parse().ok()?),
        None if port.is_empty() => None,
        None => return None,
    };
    Some((host.to_owned(), port))
}

/// Resolves a reference's path against a base, without dot segments (RFC 3986, 5.2).
fn resolve(base: &str, reference: &str) -> String {
    let full = match reference.as_bytes() {
        [] => base.to_owned(),
        [b'/', ..] => reference.to_owned(),
        [..] => {
            let directory = base.rsplit_once('/').map_or("", |(directory, _)| directory);
            format!("{directory}/{reference}")
        }
    };
    let mut kept: Vec<&str> = Vec::new();
    for element in full.trim_start_matches('/').split('/') {
        match element {
            "." => {}
            ".." => drop(kept.pop()),
            element => kept.push(element),
        }
    }
    let is_directory = [".", ".."].iter().any(|dots| full.rsplit('/').next() == Some(*dots));
    let end = if is_directory && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

/// True for bytes that may occur in an encoded path (`validEncoded`).
fn is_valid(byte: u8) -> bool {
    !must_escape(byte) || b"!'()*[]%".contains(&byte)
}

fn must_escape(byte: u8) -> bool {
    !(byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte))
}

fn escape(path: &[u8]) -> String {
    let mut escaped = String::new();
    for &byte in path {
        if must_escape(byte) {
            write!(escaped, "%{byte:02X}").ok();
        } else {
            escaped.push(char::from(byte));
        }
    }
    escaped
}

/// Decodes percent encoding; `None` for a malformed escape.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(path: &str) -> Url {
        Url::new(false, "10.0.0.7".to_owned(), 8080, path)
    }

    /// Results of Go 1.27's `url.Parse`, `http.NewRequest` and `RequestURI`.
    #[test]
    fn paths_are_escaped_as_by_go_and_queries_sent_as_they_are() {
        for (path, wanted) in [
            ("/", "/"),
            ("a?b=c", "/a?b=c"),
            ("/query?q=SHOW DATABASES", "/query?q=SHOW DATABASES"),
            ("/a b", "/a%20b"),
            ("/a^b", "/a%5Eb"),
            ("/a%20b", "/a%20b"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2Fb c", "/a/b%20c"),
            ("/a!b(c)", "/a!b(c)"),
            ("/a!b c", "/a%21b%20c"),
            ("/ä", "/%C3%A4"),
            ("/a?b=\"ä^\"", "/a?b=\"ä^\""),
            ("/a?", "/a?"),
            ("/a#b", "/a"),
            ("/100%", "/100%25"),
            ("/100%?a=b", "/100%25%3Fa=b"),
            ("/a\tb", "/a%09b"),
            ("http://elsewhere/x", "/x"),
            ("//elsewhere/x", "/x"),
            ("///x/y", "///x/y"),
            ("/a#%zz?q", "/a%23%25zz%3Fq"),
        ] {
            let url = url(path);
            assert_eq!(url.request(), wanted, "{path:?}");
            assert_eq!(url.to_string(), format!("http://10.0.0.7:8080{wanted}"));
        }
    }

    #[test]
    fn redirects_are_resolved_and_stay_on_the_host() {
        let base = url("/a/b?c=d");
        let led = |location: &str| match base.led(location) {
            Led::Here(url) => url.to_string(),
            Led::Away => "away".to_owned(),
            Led::Astray(_, why) => why,
        };
        for (location, wanted) in [
            ("/x?y z", "http://10.0.0.7:8080/x?y z"),
            ("x", "http://10.0.0.7:8080/a/x"),
            ("../x/./y/..", "http://10.0.0.7:8080/x/"),
            ("?e", "http://10.0.0.7:8080/a/b?e"),
            ("#e", "http://10.0.0.7:8080/a/b?c=d"),
            ("http://10.0.0.7:9/x", "http://10.0.0.7:9/x"),
            ("https://10.0.0.7/", "https://10.0.0.7/"),
            ("/a/./b/../", "http://10.0.0.7:8080/a/"),
            ("../..", "http://10.0.0.7:8080/"),
            ("//10.0.0.7", "http://10.0.0.7/"),
            ("HTTP://user@10.0.0.7:9/", "http://10.0.0.7:9/"),
            ("http://10.0.0.8:8080/", "away"),
            ("//0.0.0.0/", "away"),
            ("ftp://10.0.0.7/", "unsupported protocol scheme \"ftp\""),
            ("/%zz", "failed to parse Location header \"/%zz\""),
            (
                "http://10.0.0.7:x/",
                "failed to parse Location header \"http://10.0.0.7:x/\"",
            ),
        ] {
            assert_eq!(led(location), wanted, "{location}");
        }
        assert_eq!(
            Url::new(true, "fd00::7".to_owned(), 443, "x").to_string(),
            "https://[fd00::7]:443/x"
        );
    }
}
