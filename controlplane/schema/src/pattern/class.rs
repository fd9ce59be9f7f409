//! Classes of characters: `[a-z]`, `\d`, `\pL`, `[[:alpha:]]`.

use regex::Regex;

use super::parse::{BAD_ESCAPE, consumed, escaped, first};
use super::{PatternError, literal};

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
