//! URLs of webhooks, parsed like Go's `net/url` as far as validation needs it.

use thiserror::Error;

/// Parts of a URL.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Url {
    /// In lower case; may be empty.
    pub scheme: String,
    /// User and password, where there are any.
    pub user: Option<String>,
    /// Host with its port, and with the brackets of an IPv6 address.
    pub host: String,
    /// Path, as it was written.
    pub path: String,
    /// Query, without the question mark.
    pub query: String,
    /// Fragment, without the hash.
    pub fragment: String,
}

/// Error of parsing a URL.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("parse {text:?}: {because}")]
pub struct UrlError {
    text: String,
    because: String,
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// The URL is malformed; the message is Go's.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let refuse = |because: String| UrlError {
            text: text.to_owned(),
            because,
        };
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(refuse("net/url: invalid control character in URL".to_owned()));
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (scheme, rest) = scheme(rest).map_err(refuse)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Self {
            scheme,
            query: query.to_owned(),
            fragment: fragment.to_owned(),
            ..Self::default()
        };
        let Some(behind) = rest.strip_prefix("//") else {
            let first = rest.split('/').next().unwrap_or_default();
            if url.scheme.is_empty() && first.contains(':') {
                return Err(refuse("first path segment in URL cannot contain colon".to_owned()));
            }
            // Without slashes after the scheme, the rest is not a path.
            if url.scheme.is_empty() || rest.starts_with('/') {
                rest.clone_into(&mut url.path);
            }
            return Ok(url);
        };
        let end = behind.find('/').unwrap_or(behind.len());
        let (authority, path) = behind.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority),
        };
        check_host(host).map_err(refuse)?;
        url.user = user;
        host.clone_into(&mut url.host);
        path.clone_into(&mut url.path);
        Ok(url)
    }

    /// Host without its port and brackets, and the port as written.
    pub fn host_and_port(&self) -> (&str, Option<&str>) {
        let bracket = self.host.rfind(']').unwrap_or(0);
        let port = self.host.rfind(':').filter(|at| *at > bracket);
        let (host, port) = match port {
            Some(at) => {
                let (host, port) = self.host.split_at(at);
                (host, port.strip_prefix(':').filter(|port| !port.is_empty()))
            }
            None => (self.host.as_str(), None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        (bare.unwrap_or(host), port)
    }
}

/// Splits off the scheme before a colon.
fn scheme(text: &str) -> Result<(String, &str), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let Some(end) = text.bytes().position(|byte| !fits(byte)) else {
        return Ok((String::new(), text));
    };
    match text.split_at(end) {
        ("", rest) if rest.starts_with(':') => Err("missing protocol scheme".to_owned()),
        (scheme, rest) if scheme.starts_with(|first: char| first.is_ascii_alphabetic()) => match rest.strip_prefix(':')
        {
            Some(rest) => Ok((scheme.to_ascii_lowercase(), rest)),
            None => Ok((String::new(), text)),
        },
        (_, _) => Ok((String::new(), text)),
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        host.rsplit_once(']').ok_or("missing ']' in host")?.1
    } else {
        host.rfind(':').and_then(|at| host.get(at..)).unwrap_or_default()
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !(port.is_empty() || port.starts_with(':')) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("invalid port {port:?} after host"));
    }
    let strange =
        |byte: char| byte.is_ascii() && !byte.is_ascii_alphanumeric() && !"-._~!$&'()*+,;=:[]<>\"%".contains(byte);
    match host.chars().find(|byte| strange(*byte)) {
        Some(byte) => Err(format!("invalid character {:?} in host name", byte.to_string())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn urls_are_read_as_by_go() {
        let url = Url::parse("https://u:p@[fd00::7]:8443/a/b?c=d#e").unwrap();
        assert_eq!((url.scheme.as_str(), url.user.as_deref()), ("https", Some("u:p")));
        assert_eq!(url.host_and_port(), ("fd00::7", Some("8443")));
        assert_eq!(
            (url.path.as_str(), url.query.as_str(), url.fragment.as_str()),
            ("/a/b", "c=d", "e")
        );
        assert_eq!(Url::parse("HTTPS://web").unwrap().host_and_port(), ("web", None));
        assert_eq!(Url::parse("web.example/a").unwrap().host, "");
        for (text, because) in [
            (
                "https://web:a",
                "parse \"https://web:a\": invalid port \":a\" after host",
            ),
            ("://web", "parse \"://web\": missing protocol scheme"),
            (
                "https://a b/",
                "parse \"https://a b/\": invalid character \" \" in host name",
            ),
            (
                "1web:80/a",
                "parse \"1web:80/a\": first path segment in URL cannot contain colon",
            ),
        ] {
            assert_eq!(Url::parse(text).unwrap_err().to_string(), because);
        }
    }
}
