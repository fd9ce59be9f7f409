//! Parsing: the lexer, the parser with its depth limits, and the macros that it expands.

pub(crate) mod ast;
mod lexer;
mod literal;
mod macros;
mod parser;

pub(crate) use lexer::RESERVED;
pub(crate) use parser::{Issue, parse};
