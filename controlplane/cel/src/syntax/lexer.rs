//! Lexer (`cel-go/parser/gen/CEL.g4`).

use super::Issue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'t> {
    /// Operators, brackets and the keywords `in`, `true`, `false` and `null`.
    Symbol(&'t str),
    Ident(&'t str),
    /// A field name in backticks.
    Quoted(&'t str),
    Int(&'t str),
    Uint(&'t str),
    Float(&'t str),
    String(&'t str),
    Bytes(&'t str),
    End,
}

impl Token<'_> {
    /// The token as quoted in errors.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Symbol(text)
            | Self::Ident(text)
            | Self::Quoted(text)
            | Self::Int(text)
            | Self::Uint(text)
            | Self::Float(text)
            | Self::String(text)
            | Self::Bytes(text) => text,
            Self::End => "<EOF>",
        }
    }
}

const SYMBOLS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%",
];

/// Returns all tokens of a text with their offsets; the last one is [`Token::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, Issue> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let first = rest.chars().next().unwrap_or_default();
        if matches!(first, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
            at += 1;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else {
            let (token, length) = one(rest).ok_or_else(|| Issue {
                at,
                message: format!("Syntax error: token recognition error at: '{first}'"),
            })?;
            found.push((at, token));
            at += length;
        }
    }
    found.push((text.len(), Token::End));
    Ok(found)
}

fn one(rest: &str) -> Option<(Token<'_>, usize)> {
    if let Some((length, bytes)) = string(rest) {
        let text = rest.get(..length)?;
        return Some((if bytes { Token::Bytes(text) } else { Token::String(text) }, length));
    }
    let first = rest.chars().next()?;
    let second = rest.get(1..)?.chars().next().unwrap_or_default();
    if first.is_ascii_digit() || first == '.' && second.is_ascii_digit() {
        return number(rest);
    }
    if first == '_' || first.is_ascii_alphabetic() {
        let length = rest
            .find(|c: char| c != '_' && !c.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        let text = rest.get(..length)?;
        let keyword = matches!(text, "in" | "true" | "false" | "null");
        return Some((
            if keyword {
                Token::Symbol(text)
            } else {
                Token::Ident(text)
            },
            length,
        ));
    }
    if let Some(inner) = rest.strip_prefix('`') {
        let length = inner.find('`')?;
        let text = inner.get(..length)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
        return (!text.is_empty() && text.chars().all(allowed)).then_some((Token::Quoted(text), length + 2));
    }
    let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol))?;
    Some((Token::Symbol(symbol), symbol.len()))
}

fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
}

fn number(rest: &str) -> Option<(Token<'_>, usize)> {
    let suffix = |length: usize| matches!(rest.as_bytes().get(length), Some(b'u' | b'U'));
    if let Some(hex) = rest.strip_prefix("0x") {
        let length = 2 + hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        if length == 2 {
            return Some((Token::Int(rest.get(..1)?), 1));
        }
        return if suffix(length) {
            Some((Token::Uint(rest.get(..length)?), length + 1))
        } else {
            Some((Token::Int(rest.get(..length)?), length))
        };
    }
    let mut length = digits(rest);
    let mut float = false;
    if let Some(fraction) = rest.get(length..)?.strip_prefix('.') {
        let more = digits(fraction);
        if more > 0 {
            float = true;
            length += 1 + more;
        }
    }
    let tail = rest.get(length..)?;
    if let Some(exponent) = tail.strip_prefix(['e', 'E']) {
        let signed = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let more = digits(signed);
        if more > 0 {
            float = true;
            length += 1 + (exponent.len() - signed.len()) + more;
        }
    }
    let text = rest.get(..length)?;
    Some(match (float, suffix(length)) {
        (true, _) => (Token::Float(text), length),
        (false, true) => (Token::Uint(text), length + 1),
        (false, false) => (Token::Int(text), length),
    })
}

/// Length of the string or bytes literal at the start, and whether it is bytes.
fn string(rest: &str) -> Option<(usize, bool)> {
    // Only as far as the longest prefix: otherwise a text without quotes would be searched again at
    // each token.
    let prefix = rest.bytes().take(3).position(|byte| matches!(byte, b'"' | b'\''))?;
    let head = rest.get(..prefix)?.to_ascii_lowercase();
    let (raw, bytes) = match head.as_str() {
        "" => (false, false),
        "r" => (true, false),
        "b" => (false, true),
        "br" | "rb" => (true, true),
        _ => return None,
    };
    let body = rest.get(prefix..)?;
    let quote = body.get(..1)?;
    let triple = quote.repeat(3);
    let long = body.starts_with(&triple);
    let (open, close) = if long { (3, triple.as_str()) } else { (1, quote) };
    let mut at = open;
    loop {
        let tail = body.get(at..)?;
        if tail.starts_with(close) {
            return Some((prefix + at + open, bytes));
        }
        let mut characters = tail.chars();
        let first = characters.next()?;
        if !long && matches!(first, '\n' | '\r') {
            return None;
        }
        at += first.len_utf8();
        if first == '\\' && !raw {
            at += characters.next()?.len_utf8();
        }
    }
}
