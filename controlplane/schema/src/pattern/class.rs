//! Classes of characters: `[a-z]`, `\d`, `\pL`, `[[:alpha:]]`; and characters behind a backslash.

use regex::Regex;

use super::{PatternError, consumed, first, literal};

const BAD_ESCAPE: &str = "invalid escape sequence";
const BAD_RANGE: &str = "invalid character class range";

/// The class of a letter behind a backslash, in ASCII.
pub(super) fn perl(letter: char) -> Option<&'static str> {
    Some(match letter {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => "[\\t\\n\\x0c\\r ]",
        'S' => "[^\\t\\n\\x0c\\r ]",
        _ => return None,
    })
}

/// A class in brackets at the beginning of `text`. Returns what follows.
pub(super) fn class<'a>(text: &'a str, out: &mut String) -> Result<&'a str, PatternError> {
    let unclosed = || PatternError::new("missing closing ]", text);
    let mut rest = text.get(1..).unwrap_or_default();
    out.push('[');
    if let Some(after) = rest.strip_prefix('^') {
        rest = after;
        out.push('^');
    }
    let mut is_first = true;
    while is_first || !rest.starts_with(']') {
        is_first = false;
        if let Some(after) = posix(rest, out)? {
            rest = after;
            continue;
        }
        if let Some(behind) = rest.strip_prefix('\\') {
            if behind.starts_with(['p', 'P']) {
                rest = unicode(rest, out)?;
                continue;
            }
            let named = first(behind).and_then(|(letter, after)| Some((perl(letter)?, after)));
            if let Some((named, after)) = named {
                out.push_str(named);
                rest = after;
                continue;
            }
        }
        let range = rest;
        let (low, after) = character(rest).ok_or_else(unclosed)??;
        rest = after;
        literal(out, low);
        if let Some(behind) = rest
            .strip_prefix('-')
            .filter(|behind| !behind.is_empty() && !behind.starts_with(']'))
        {
            let (high, after) = character(behind).ok_or_else(unclosed)??;
            rest = after;
            if high < low {
                return Err(PatternError::new(BAD_RANGE, consumed(range, rest)));
            }
            out.push('-');
            literal(out, high);
        }
        if rest.is_empty() {
            return Err(unclosed());
        }
    }
    out.push(']');
    Ok(rest.get(1..).unwrap_or_default())
}

/// The first character of a class; none at the end.
fn character(text: &str) -> Option<Result<(char, &str), PatternError>> {
    if text.starts_with('\\') {
        return Some(escaped(text));
    }
    first(text).map(Ok)
}

/// `[:alpha:]`
fn posix<'a>(text: &'a str, out: &mut String) -> Result<Option<&'a str>, PatternError> {
    const NAMES: [&str; 14] = [
        "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
        "word", "xdigit",
    ];
    let Some((name, after)) = text.strip_prefix("[:").and_then(|rest| rest.split_once(":]")) else {
        return Ok(None);
    };
    if !NAMES.contains(&name.strip_prefix('^').unwrap_or(name)) {
        return Err(PatternError::new(BAD_RANGE, consumed(text, after)));
    }
    out.push_str(consumed(text, after));
    Ok(Some(after))
}

/// `\pL`, `\p{Greek}`, `\P{^Lu}`. Returns what follows.
pub(super) fn unicode<'a>(text: &'a str, out: &mut String) -> Result<&'a str, PatternError> {
    let rest = text.get(2..).unwrap_or_default();
    let (name, rest) = if let Some(braced) = rest.strip_prefix('{') {
        braced
            .split_once('}')
            .ok_or_else(|| PatternError::new(BAD_RANGE, text))?
    } else {
        let (_, after) = first(rest).ok_or_else(|| PatternError::new(BAD_ESCAPE, text))?;
        (consumed(rest, after), after)
    };
    let (is_toggled, name) = match name.strip_prefix('^') {
        Some(name) => (true, name),
        None => (false, name),
    };
    let letter = if text.starts_with("\\P") == is_toggled {
        'p'
    } else {
        'P'
    };
    let class = format!("\\{letter}{{{name}}}");
    let is_plain = name
        .chars()
        .all(|character| character.is_ascii_alphanumeric() || " _-".contains(character));
    if !is_plain || Regex::new(&class).is_err() {
        return Err(PatternError::new(BAD_RANGE, consumed(text, rest)));
    }
    out.push_str(&class);
    Ok(rest)
}

/// A character behind a backslash.
pub(super) fn escaped(text: &str) -> Result<(char, &str), PatternError> {
    let bad = |rest: &str| PatternError::new(BAD_ESCAPE, consumed(text, rest));
    let rest = text.get(1..).unwrap_or_default();
    let Some((character, rest)) = first(rest) else {
        return Err(PatternError::new("trailing backslash at end of expression", ""));
    };
    let code = match character {
        '0'..='7' => {
            if character != '0' && !rest.starts_with(|next| ('0'..='7').contains(&next)) {
                return Err(bad(rest));
            }
            return octal(character, rest).ok_or_else(|| bad(rest));
        }
        'x' => return hexadecimal(rest).map_err(bad),
        'a' => '\x07',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        other if other.is_ascii() && !other.is_ascii_alphanumeric() => other,
        _ => return Err(bad(rest)),
    };
    Ok((code, rest))
}

/// At most three digits.
fn octal(digit: char, mut rest: &str) -> Option<(char, &str)> {
    let mut code = digit.to_digit(8)?;
    for _ in 0..2 {
        let Some((next, after)) = first(rest) else { break };
        let Some(digit) = next.to_digit(8) else { break };
        code = code * 8 + digit;
        rest = after;
    }
    Some((char::from_u32(code)?, rest))
}

/// Two digits, or any number in braces. The error is what is left where it goes wrong.
fn hexadecimal(text: &str) -> Result<(char, &str), &str> {
    let (digits, rest) = if let Some(braced) = text.strip_prefix('{') {
        let rest = braced.trim_start_matches(|character: char| character.is_ascii_hexdigit());
        let digits = consumed(braced, rest);
        let Some((next, after)) = first(rest) else {
            return Err(rest);
        };
        if next != '}' || digits.is_empty() {
            return Err(after);
        }
        (digits, after)
    } else {
        let Some((one, after)) = first(text) else {
            return Err(text);
        };
        let Some((other, rest)) = first(after) else {
            return Err(after);
        };
        if !one.is_ascii_hexdigit() || !other.is_ascii_hexdigit() {
            return Err(rest);
        }
        (consumed(text, rest), rest)
    };
    let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
    Ok((code.ok_or(rest)?, rest))
}
