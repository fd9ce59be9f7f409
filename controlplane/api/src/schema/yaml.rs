//! YAML request bodies, parsed like upstream: YAML 1.1's words for booleans, numbers as in Go's
//! `strconv`, keys converted to strings, merge keys (`<<`), only the first document.
//!
//! The parser streams, so that the cost of a body is limited by the result: [`MAX_DEPTH`] levels,
//! [`MAX_VALUES`] values, and [`MAX_BYTES`] of text with every alias expanded.

mod compose;
pub mod emit;
mod scalar;

use serde_json::Value;

/// Maximum nesting depth of values.
pub const MAX_DEPTH: usize = 100;

/// Maximum number of values in a document, aliases expanded.
pub const MAX_VALUES: usize = 65_536;

/// Maximum size of a document's text, aliases expanded.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A document as JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Yaml {
    /// The value; the last occurrence of a key wins.
    pub value: Value,
    /// Keys that occur twice in one map, in the order of the document; the first hundred.
    pub duplicates: Vec<Duplicate>,
}

/// Duplicate key in a map. `Display` is upstream's text.
#[derive(Clone, Debug, Eq, thiserror::Error, PartialEq)]
#[error("line {line}: key {key:?} already set in map")]
pub struct Duplicate {
    /// Line of the repetition, counted from one.
    pub line: usize,
    /// The key.
    pub key: String,
}

/// Strict decoding error for keys that occur twice.
pub fn unmarshal_errors(lines: &[String]) -> String {
    format!("yaml: unmarshal errors:\n  {}", lines.join("\n  "))
}

/// Error of reading a body as YAML. `Display` follows upstream's `error converting YAML to JSON: `.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// The body is not UTF-8.
    #[error("yaml: invalid UTF-8")]
    InvalidUtf8,
    /// The body is not YAML.
    #[error("yaml: line {line}: {message}")]
    Syntax {
        /// Counted from one.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// JSON cannot represent a value: a key that is a list, a number that is not finite.
    #[error("yaml: line {line}: {message}")]
    NotJson {
        /// Counted from one.
        line: usize,
        /// Description of the value.
        message: &'static str,
    },
    /// A limit is exceeded.
    #[error("yaml: document contains excessive aliasing or exceeds the limit of {limit} {what}")]
    TooLarge {
        /// The limit.
        limit: usize,
        /// The items that are counted.
        what: &'static str,
    },
}

/// Parses the first document. An empty body is `null`.
///
/// # Errors
/// See [`YamlError`].
pub fn to_json(body: &[u8]) -> Result<Yaml, YamlError> {
    let text = std::str::from_utf8(body).map_err(|_invalid| YamlError::InvalidUtf8)?;
    compose::document(text)
}
