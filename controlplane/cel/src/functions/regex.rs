//! Patterns in Go's syntax: `matches`, `find` and `findAll`
//! (`k8s.io/apiserver/pkg/cel/library/regex.go`).

use std::sync::Arc;

use ::regex::{Regex, RegexBuilder};

use super::{Context, Function};
use crate::value::{Error, Value};

/// Most bytes of a compiled pattern.
const MAX_PATTERN: usize = 4 * 1024 * 1024;
/// Most repetitions in a pattern, as in Go's `regexp/syntax`.
const MAX_REPEAT: u32 = 1_000;

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "matches" => |context, args| searched(context, args, |pattern, text| Value::Bool(pattern.is_match(text))),
        "find" => |context, args| {
            searched(context, args, |pattern, text| {
                Value::from(
                    pattern
                        .find(text)
                        .map(|found| found.as_str().to_owned())
                        .unwrap_or_default(),
                )
            })
        },
        "findAll" => find_all,
        _ => return None,
    })
}

/// Compiles a pattern, or returns the reason why it is invalid.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    let translated =
        translate(pattern).ok_or_else(|| format!("error parsing regexp: invalid repeat count: `{pattern}`"))?;
    RegexBuilder::new(&translated)
        .size_limit(MAX_PATTERN)
        .dfa_size_limit(MAX_PATTERN)
        .nest_limit(200)
        .build()
        .map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            format!(
                "error parsing regexp: {}: `{pattern}`",
                reason.trim_start_matches("error: ")
            )
        })
}

/// Translates a pattern for this engine: classes and boundaries are ASCII only, like Go's, and
/// characters that are special only to this engine inside brackets are escaped.
fn translate(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    let mut brackets = false;
    let mut digits: Option<u32> = None;
    while let Some(character) = rest.next() {
        digits = match (character, digits) {
            ('{', _) if !brackets => Some(0),
            ('0'..='9', Some(number)) => {
                let number = number.saturating_mul(10).saturating_add(character.to_digit(10)?);
                if number > MAX_REPEAT {
                    return None;
                }
                Some(number)
            }
            (',', Some(_)) => Some(0),
            _ => None,
        };
        match (character, brackets) {
            ('\\', _) => match (rest.next()?, brackets) {
                ('d', false) => out.push_str("[0-9]"),
                ('d', true) => out.push_str("0-9"),
                ('w', false) => out.push_str("[0-9A-Za-z_]"),
                ('w', true) => out.push_str("0-9A-Za-z_"),
                ('s', false) => out.push_str("[\\t\\n\\f\\r ]"),
                ('s', true) => out.push_str("\\t\\n\\f\\r "),
                ('D', false) => out.push_str("[^0-9]"),
                ('W', false) => out.push_str("[^0-9A-Za-z_]"),
                ('S', false) => out.push_str("[^\\t\\n\\f\\r ]"),
                ('b', false) => out.push_str("(?-u:\\b)"),
                ('C' | '<' | '>', _) => return None,
                (other, _) => {
                    out.push('\\');
                    out.push(other);
                }
            },
            ('[', false) => {
                brackets = true;
                out.push('[');
                if rest.peek() == Some(&'^') {
                    out.push('^');
                    rest.next();
                }
                // A `]` at the start does not close the class.
                if rest.peek() == Some(&']') {
                    out.push_str("\\]");
                    rest.next();
                }
            }
            ('[', true) if rest.peek() == Some(&':') => {
                // The brackets of `[[:alpha:]]` are kept.
                out.push('[');
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            ('[' | '&' | '~', true) => {
                out.push('\\');
                out.push(character);
            }
            (']', true) => {
                brackets = false;
                out.push(']');
            }
            _ => out.push(character),
        }
    }
    Some(out)
}

/// Number of patterns built at evaluation that are cached, each of at most a few MiB.
const KEPT: usize = 4;
/// Memory charged for each of those.
const PER_PATTERN: usize = 64 * 1024;

impl Context<'_> {
    fn with_pattern<T>(&mut self, pattern: &str, run: impl FnOnce(&Regex) -> T) -> Result<T, Error> {
        if let Some(known) = self.known.get(pattern) {
            return Ok(run(known));
        }
        if let Some(met) = self.met.get(pattern) {
            return Ok(run(met));
        }
        // Compilation takes time and memory depending on the pattern's length and its repetitions.
        self.allocate(pattern.len().saturating_mul(256).saturating_add(PER_PATTERN))?;
        let compiled = Arc::new(compile(pattern).map_err(Error::new)?);
        if self.met.len() >= KEPT {
            self.met.clear();
        }
        self.met.insert(pattern.to_owned(), Arc::clone(&compiled));
        Ok(run(&compiled))
    }
}

fn searched<'a>(
    context: &mut Context<'_>,
    args: &[Value<'a>],
    run: fn(&Regex, &str) -> Value<'static>,
) -> Result<Value<'a>, Error> {
    match args {
        [Value::String(text), Value::String(pattern)] => context.with_pattern(pattern, |pattern| run(pattern, text)),
        _ => Err(Error::overload()),
    }
}

fn find_all<'a>(context: &mut Context<'_>, args: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (text, pattern, limit) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, -1),
        [Value::String(text), Value::String(pattern), Value::Int(limit)] => (text, pattern, *limit),
        _ => return Err(Error::overload()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found: Vec<Value<'a>> = Vec::new();
    let sizes = context.with_pattern(pattern, |pattern| {
        let mut total = 0;
        for one in pattern.find_iter(text).take(limit) {
            total += one.len() + 64;
            found.push(Value::from(one.as_str().to_owned()));
        }
        total
    })?;
    context.allocate(sizes)?;
    Ok(Value::from(found))
}
