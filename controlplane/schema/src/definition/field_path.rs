//! Paths such as `.spec.replicas` and `.spec['my-name']` (`ValidFieldPath` in
//! `pkg/apiserver/schema/cel/validation.go`).

use crate::structural::{Additional, Node, Structural};

/// Reason why a path is invalid; `Display` is upstream's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldPathError {
    /// The field does not exist.
    #[error("does not refer to a valid field")]
    Unknown,
    /// Array notation is not allowed here.
    #[error("array notation is not allowed")]
    Brackets,
    /// The path ends too early.
    #[error("unexpected end of JSON path")]
    End,
    /// A name in single quotes was expected.
    #[error("expected single quoted string but got {0}")]
    Quotes(String),
    /// A closing bracket was expected.
    #[error("expected ] but got {0}")]
    Closing(String),
    /// A dot or an opening bracket was expected.
    #[error("expected [ or . but got: {0}")]
    Separator(String),
}

impl Structural {
    /// Returns the path and the schema of the field at a JSON path such as `.spec.color`.
    ///
    /// # Errors
    /// The path is invalid.
    pub fn field(&self, path: &str) -> Result<(String, &Node), FieldPathError> {
        find(self.root(), path, false)
    }
}

impl Node {
    /// Returns the path and the schema of the field below at a rule's `fieldPath`.
    ///
    /// # Errors
    /// The path is invalid.
    pub fn field(&self, path: &str) -> Result<(String, &Self), FieldPathError> {
        find(self, path, true)
    }
}

pub(super) fn find<'a>(node: &'a Node, path: &str, may_index: bool) -> Result<(String, &'a Node), FieldPathError> {
    let mut tokens = Tokens { rest: path };
    let (mut node, mut shown) = (node, String::new());
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !may_index => return Err(FieldPathError::Brackets),
            "[" => {
                let quoted = tokens.next().ok_or(FieldPathError::End)?;
                let name = quoted.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
                let name = name.ok_or_else(|| FieldPathError::Quotes(quoted.to_owned()))?;
                let name = unescaped(name);
                match tokens.next().ok_or(FieldPathError::End)? {
                    "]" => name,
                    other => return Err(FieldPathError::Closing(other.to_owned())),
                }
            }
            "." => tokens.next().ok_or(FieldPathError::End)?.to_owned(),
            other => return Err(FieldPathError::Separator(other.to_owned())),
        };
        if node.properties().len() > 0 {
            node = node.property(&name).ok_or(FieldPathError::Unknown)?;
            if !shown.is_empty() {
                shown.push('.');
            }
            shown.push_str(&name);
        } else {
            let Some(Additional::Schema(below)) = node.additional() else {
                return Err(FieldPathError::Unknown);
            };
            node = below;
            shown.push('[');
            shown.push_str(&name);
            shown.push(']');
        }
    }
    Ok((shown, node))
}

fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let escaped = if character == '\\' { characters.next() } else { None };
        out.push(match escaped {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some(other) => other,
            None => character,
        });
    }
    out
}

/// Delimiters, names, and strings in single quotes.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let is_delimiter = |character: char| ".[]".contains(character);
        let length = if let Some(quoted) = self.rest.strip_prefix('\'') {
            let mut last = '\'';
            let end = quoted.char_indices().find(|(_, character)| {
                let is_end = *character == '\'' && last != '\\';
                last = *character;
                is_end
            });
            end.map_or(self.rest.len(), |(at, _)| at + 2)
        } else if self.rest.starts_with(is_delimiter) {
            1
        } else {
            self.rest.find(is_delimiter).unwrap_or(self.rest.len())
        };
        let (token, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }
}
