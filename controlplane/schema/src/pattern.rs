//! Regular expressions in RE2's syntax as Go parses it (`regexp/syntax/parse.go`), translated for
//! an engine that is also linear but has another syntax.

mod class;
mod parse;

use std::fmt;
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// Size limit of a compiled expression, in bytes.
const SIZE_LIMIT: usize = 16 << 20;

/// Size limit of the cache for matching, in bytes.
const CACHE_LIMIT: usize = 256 << 10;

/// Reason why an expression is refused; `Display` is Go's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {code}: `{expression}`")]
pub struct PatternError {
    code: &'static str,
    expression: String,
}

impl PatternError {
    fn new(code: &'static str, expression: impl Into<String>) -> Self {
        Self {
            code,
            expression: expression.into(),
        }
    }
}

/// Compiles an expression in RE2's syntax. Its groups do not capture.
///
/// # Errors
/// The expression is invalid, or takes too much memory.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    let translated = parse::translate(pattern)?;
    let mut builder = RegexBuilder::new(&translated);
    builder.size_limit(SIZE_LIMIT).dfa_size_limit(CACHE_LIMIT);
    builder.build().map_err(|error| {
        let is_large = matches!(error, regex::Error::CompiledTooBig(_));
        // The only other cause is nesting.
        let code = if is_large {
            "expression too large"
        } else {
            "expression nests too deeply"
        };
        PatternError::new(code, pattern)
    })
}

/// An expression that is compiled on first use: few definitions are ever used in full.
pub(crate) struct LazyPattern {
    text: Box<str>,
    compiled: OnceLock<Option<Box<Regex>>>,
}

impl LazyPattern {
    pub(crate) fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            compiled: OnceLock::new(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The compiled expression; `None` if it is invalid, which the definition's validation rules
    /// out.
    pub(crate) fn get(&self) -> Option<&Regex> {
        self.compiled
            .get_or_init(|| compile(&self.text).ok().map(Box::new))
            .as_deref()
    }
}

impl fmt::Debug for LazyPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

/// Writes a literal character.
fn literal(out: &mut String, character: char) {
    if character.is_ascii_alphanumeric() || !character.is_ascii() {
        out.push(character);
    } else {
        let code = format!("\\x{:02x}", u32::from(character));
        out.push_str(&code);
    }
}

/// The beginning of `text` up to where `rest` begins.
fn consumed<'a>(text: &'a str, rest: &str) -> &'a str {
    text.get(..text.len().saturating_sub(rest.len())).unwrap_or(text)
}

/// The first character, and what follows.
fn first(text: &str) -> Option<(char, &str)> {
    let mut characters = text.chars();
    Some((characters.next()?, characters.as_str()))
}
