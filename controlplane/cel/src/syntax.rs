//! Parsing: the lexer, the parser with its depth limits, and the macros that it expands.

pub(crate) mod ast;
mod lexer;
mod literal;
mod parser;

pub(crate) use parser::parse;

/// An error at an offset of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issue {
    /// Offset in bytes.
    pub(crate) at: usize,
    pub(crate) message: String,
}

impl Issue {
    pub(crate) fn internal() -> Self {
        Self {
            at: 0,
            message: "internal error".to_owned(),
        }
    }
}
