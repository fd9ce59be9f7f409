//! URLs as parsed by Go's `url.ParseRequestURI` (`k8s.io/apiserver/pkg/cel/library/urls.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::standard::one;
use super::{Context, Function};
use crate::value::json::Map;
use crate::value::opaque::Url;
use crate::value::{Entries, Error, Key, Text, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "url" => |_, args| match args {
            [Value::String(text)] => Url::parse(text)
                .map(|url| Value::Url(Arc::new(url)))
                .map_err(|error| Error::new(format!("URL parse error during conversion from string: {error}"))),
            _ => Err(Error::overload()),
        },
        "isURL" => |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(Url::parse(text).is_ok())),
            _ => Err(Error::overload()),
        },
        "getScheme" => |_, args| of(args, |url| url.scheme.clone()),
        "getHost" => |_, args| of(args, |url| url.host.clone()),
        "getHostname" => |_, args| of(args, |url| url.split_host().0.to_owned()),
        "getPort" => |_, args| of(args, |url| url.split_host().1.to_owned()),
        "getEscapedPath" => |_, args| of(args, |url| url.path.clone()),
        "getQuery" => query,
        _ => return None,
    })
}

fn of<'a>(args: &[Value<'a>], read: fn(&Url) -> String) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Url(url) => Ok(Value::from(read(url))),
        _ => Err(Error::overload()),
    })
}

fn query<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let [Value::Url(url)] = args else {
        return Err(Error::overload());
    };
    context.allocate(url.query.len().saturating_mul(64))?;
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url
        .query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let plain = |text: &str| unescape(&text.replace('+', " "));
        if let (Some(key), Some(value)) = (plain(key), plain(value)) {
            found.entry(key).or_default().push(Value::from(value));
        }
    }
    let entries: Entries<'a> = found
        .into_iter()
        .map(|(key, values)| (Key::String(Text::Shared(key.into())), Value::from(values)))
        .collect();
    Ok(Value::Map(Map::from(entries)))
}

fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

fn escapes_are_whole(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape = text
            .get(at..)
            .map(|rest| rest.chars().take(3).collect::<String>())
            .unwrap_or_default();
        if escape.len() != 3 || !escape.chars().skip(1).all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape {escape:?}"));
        }
    }
    Ok(())
}

impl Url {
    /// `url.ParseRequestURI`
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("parse {text:?}: {why}"));
        if text.chars().any(|c| c.is_ascii_control()) {
            return refuse("net/url: invalid control character in URL");
        }
        if text.is_empty() {
            return refuse("empty url");
        }
        if text == "*" {
            return Ok(Self {
                text: text.to_owned(),
                scheme: String::new(),
                host: String::new(),
                path: "*".to_owned(),
                query: String::new(),
            });
        }
        let (scheme, rest) = match split_scheme(text) {
            Ok(parts) => parts,
            Err(why) => return refuse(why),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') {
            if scheme.is_empty() {
                return refuse("invalid URI for request");
            }
            // An opaque URL such as `mailto:a@b`.
            return Ok(Self {
                text: text.to_owned(),
                scheme,
                host: String::new(),
                path: String::new(),
                query: query.to_owned(),
            });
        }
        let (host, path) = match rest.strip_prefix("//") {
            Some(after) if !scheme.is_empty() || !rest.starts_with("///") => {
                let end = after.find('/').unwrap_or(after.len());
                let (authority, path) = after.split_at_checked(end).unwrap_or((after, ""));
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                (host, path)
            }
            _ => ("", rest),
        };
        if let Err(why) = check_host(host).and_then(|()| escapes_are_whole(path)) {
            return refuse(&why);
        }
        Ok(Self {
            text: text.to_owned(),
            scheme,
            host: host.to_owned(),
            path: escaped_path(path.split_once('#').map_or(path, |(path, _)| path)),
            query: query.split_once('#').map_or(query, |(query, _)| query).to_owned(),
        })
    }

    /// Host name or address, and port.
    fn split_host(&self) -> (&str, &str) {
        let host = self.host.as_str();
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) && !name.ends_with('[') => (name, port),
            _ => (host, ""),
        };
        let bare = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        (bare, port)
    }
}

/// The scheme in lower case, and the rest.
fn split_scheme(text: &str) -> Result<(String, &str), &'static str> {
    for (at, character) in text.char_indices() {
        match character {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => {
                let (scheme, rest) = text.split_at_checked(at).unwrap_or((text, ""));
                return Ok((scheme.to_ascii_lowercase(), rest.strip_prefix(':').unwrap_or(rest)));
            }
            _ => return Ok((String::new(), text)),
        }
    }
    Ok((String::new(), text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if let Some(inner) = host.strip_prefix('[') {
        let Some((_, port)) = inner.split_once(']') else {
            return Err("missing ']' in host".to_owned());
        };
        port
    } else {
        host.find(':').and_then(|at| host.get(at..)).unwrap_or("")
    };
    let digits = port.strip_prefix(':');
    if !port.is_empty() && digits.is_none_or(|digits| !digits.chars().all(|c| c.is_ascii_digit())) {
        return Err(format!("invalid port {port:?} after host"));
    }
    if let Some(odd) = host
        .chars()
        .find(|c| matches!(c, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}'))
    {
        return Err(format!("invalid character {:?} in host name", odd.to_string()));
    }
    escapes_are_whole(host)
}

/// Escapes a path for a URL.
fn escaped_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.extend(['%', hexadecimal(byte >> 4), hexadecimal(byte & 15)]);
        }
    }
    out
}

fn hexadecimal(digit: u8) -> char {
    char::from_digit(digit.into(), 16)
        .unwrap_or_default()
        .to_ascii_uppercase()
}
