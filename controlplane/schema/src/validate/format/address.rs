//! Addresses: IP, MAC, mail, and URIs as parsed by Go's `net`, `net/mail` and `net/url`.

use std::net::{IpAddr, Ipv4Addr};

/// Like Go's `net.ParseIP`.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Like `ParseIPSloppy` (`k8s.io/utils/net`): accepts leading zeros.
pub(super) fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return parse(text);
    }
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| is_digits(part))?;
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Like `ParseCIDRSloppy`.
pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let most = match parse_sloppy(address) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    is_digits(length) && length.parse::<u32>().is_ok_and(|length| length <= most)
}

/// Like Go's `net.ParseMAC`: 6, 8 or 20 bytes.
pub(super) fn is_mac(text: &str) -> bool {
    let (separator, digits) = match text.as_bytes() {
        [_, _, b':', ..] => (':', 2),
        [_, _, b'-', ..] => ('-', 2),
        [_, _, _, _, b'.', ..] => ('.', 4),
        _ => return false,
    };
    let mut count = 0;
    for part in text.split(separator) {
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        count += digits / 2;
    }
    matches!(count, 6 | 8 | 20)
}

/// Like Go's `mail.ParseAddress`: `a@example.com`, or with a name before it in angle brackets.
pub(super) fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let Some(bracketed) = text.strip_suffix('>') else {
        return is_address(text);
    };
    let Some((name, address)) = bracketed.rsplit_once('<') else {
        return false;
    };
    let name = name.trim_matches([' ', '\t']);
    let is_quoted = |name: &str| name.len() >= 2 && name.starts_with('"') && quoted_end(name) == Some(name.len());
    let is_phrase = |name: &str| {
        name.split([' ', '\t'])
            .filter(|word| !word.is_empty())
            .all(|word| is_atoms(word, true))
    };
    (name.is_empty() || is_quoted(name) || is_phrase(name)) && is_address(address)
}

fn is_address(text: &str) -> bool {
    let (local, domain) = if text.starts_with('"') {
        let Some((local, rest)) = quoted_end(text).and_then(|end| text.split_at_checked(end)) else {
            return false;
        };
        let Some(domain) = rest.strip_prefix('@') else {
            return false;
        };
        (local, domain)
    } else {
        let Some((local, domain)) = text.split_once('@') else {
            return false;
        };
        if !is_atoms(local, false) {
            return false;
        }
        (local, domain)
    };
    let literal = domain.strip_prefix('[').and_then(|literal| literal.strip_suffix(']'));
    let is_domain = match literal {
        Some(literal) => parse(literal.strip_prefix("IPv6:").unwrap_or(literal)).is_some(),
        None => is_atoms(domain, false),
    };
    !local.is_empty() && is_domain
}

/// End of a quoted string at the beginning.
fn quoted_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '"' if !is_escaped => return Some(at + 1),
            '\r' | '\n' => return None,
            _ => is_escaped = character == '\\' && !is_escaped,
        }
    }
    None
}

/// True for words separated by single dots; in a display name dots may be anywhere.
fn is_atoms(text: &str, has_free_dots: bool) -> bool {
    let is_atom = |character: char| {
        character.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(character) || !character.is_ascii()
    };
    let are_placed = has_free_dots || text.split('.').all(|atom| !atom.is_empty());
    !text.is_empty() && are_placed && text.chars().all(|character| character == '.' || is_atom(character))
}

/// Like Go's `url.ParseRequestURI`: an absolute URI, or an absolute path.
pub(super) fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = scheme(text) else {
        return false;
    };
    let (rest, _query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let Some(behind) = rest.strip_prefix("//").filter(|_| !scheme.is_empty()) else {
        return is_escaped(rest);
    };
    let (authority, path) = behind
        .split_at_checked(behind.find('/').unwrap_or(behind.len()))
        .unwrap_or((behind, ""));
    is_authority(authority) && is_escaped(path)
}

/// Scheme and the rest after its colon; `None` if the text starts with a colon.
fn scheme(text: &str) -> Option<(&str, &str)> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at > 0 => return Some((text.get(..at)?, text.get(at + 1..)?)),
            b':' => return None,
            _ => break,
        }
    }
    Some(("", text))
}

/// True if each `%` is followed by two hexadecimal digits.
fn is_escaped(text: &str) -> bool {
    let is_hex = |part: &str| {
        let mut digits = part.bytes();
        digits.next().is_some_and(|byte| byte.is_ascii_hexdigit())
            && digits.next().is_some_and(|byte| byte.is_ascii_hexdigit())
    };
    text.split('%').skip(1).all(is_hex)
}

fn is_authority(text: &str) -> bool {
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    };
    let is_user = |character: char| character.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(character);
    if user.is_some_and(|user| !user.chars().all(is_user) || !is_escaped(user)) {
        return false;
    }
    if let Some(literal) = host.strip_prefix('[') {
        let Some((_, port)) = literal.rsplit_once(']') else {
            return false;
        };
        return is_port(port);
    }
    let port = host.find(':').and_then(|at| host.get(at..)).unwrap_or_default();
    let is_host = |character: char| !matches!(character, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}');
    // Only non-ASCII characters may be escaped.
    let is_high = |part: &str| matches!(part.bytes().next(), Some(b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F'));
    is_port(port) && host.chars().all(is_host) && is_escaped(host) && host.split('%').skip(1).all(is_high)
}

/// True for an empty text, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}
