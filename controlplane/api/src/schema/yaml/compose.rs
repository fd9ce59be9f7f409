//! Composes one JSON value from the parser's events.

use std::collections::HashMap;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Value};

use super::{Duplicate, MAX_BYTES, MAX_DEPTH, MAX_VALUES, Yaml, YamlError, scalar};
use crate::schema::strict;

/// Maximum length of a key in an error.
const SHOWN: usize = 1024;

type Events<'t> = Parser<'t, StrInput<'t>>;

pub(super) fn document(text: &str) -> Result<Yaml, YamlError> {
    let mut options = Options::default();
    options.emit_comments = false;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut composer = Composer {
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        depth: 0,
        duplicates: Vec::new(),
        values: 0,
        bytes: 0,
    };
    let mut value = None;
    loop {
        match composer.next()? {
            (Event::StreamEnd, _) => break,
            (Event::DocumentStart(..), _) => {
                let first = composer.next()?;
                value = Some(composer.value(first)?);
                // Later documents are ignored, but the first must end properly.
                composer.next()?;
                break;
            }
            _ => {}
        }
    }
    Ok(Yaml {
        value: value.unwrap_or_default(),
        duplicates: composer.duplicates,
    })
}

/// Anchored value, and the cost of its expansion.
struct Anchored {
    value: Value,
    values: usize,
    bytes: usize,
}

struct Composer<'t> {
    events: Events<'t>,
    anchors: HashMap<usize, Anchored>,
    depth: usize,
    duplicates: Vec<Duplicate>,
    values: usize,
    bytes: usize,
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), YamlError> {
        match self.events.next_event() {
            None => Ok((Event::StreamEnd, Span::default())),
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(YamlError::Syntax {
                line: error.marker().line(),
                message: error.info(),
            }),
        }
    }

    fn spend(&mut self, values: usize, bytes: usize) -> Result<(), YamlError> {
        self.values = self.values.saturating_add(values);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.values > MAX_VALUES {
            Err(YamlError::TooLarge {
                limit: MAX_VALUES,
                what: "values",
            })
        } else if self.bytes > MAX_BYTES {
            Err(YamlError::TooLarge {
                limit: MAX_BYTES,
                what: "bytes",
            })
        } else {
            Ok(())
        }
    }

    /// Composes the value that begins with an event.
    fn value(&mut self, (event, span): (Event<'t>, Span)) -> Result<Value, YamlError> {
        let (values, bytes) = (self.values, self.bytes);
        let line = span.start.line();
        let (value, anchor) = match event {
            Event::Alias(anchor) => return self.alias(anchor, line),
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(1, text.len())?;
                (resolve(&text, style, tag.as_deref(), line)?, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.spend(1, 0)?;
                (self.nested(line, Self::list)?, anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                self.spend(1, 0)?;
                (self.nested(line, Self::map)?, anchor)
            }
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd
            | _ => {
                return Err(YamlError::Syntax {
                    line,
                    message: "did not find expected node content".to_owned(),
                });
            }
        };
        if anchor != 0 {
            // The copy costs as much as the original.
            let (values, bytes) = (self.values - values, self.bytes - bytes);
            self.spend(values, bytes)?;
            self.anchors.insert(
                anchor,
                Anchored {
                    value: value.clone(),
                    values,
                    bytes,
                },
            );
        }
        Ok(value)
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<Value, YamlError> {
        // An anchor is not defined inside its own value.
        let unknown = || YamlError::Syntax {
            line,
            message: "anchor value contains itself".to_owned(),
        };
        let (values, bytes) = self
            .anchors
            .get(&anchor)
            .map(|found| (found.values, found.bytes))
            .ok_or_else(unknown)?;
        self.spend(values, bytes)?;
        self.anchors
            .get(&anchor)
            .map(|found| found.value.clone())
            .ok_or_else(unknown)
    }

    fn nested(
        &mut self,
        line: usize,
        inner: impl FnOnce(&mut Self) -> Result<Value, YamlError>,
    ) -> Result<Value, YamlError> {
        if self.depth == MAX_DEPTH {
            return Err(YamlError::Syntax {
                line,
                message: "exceeded max depth".to_owned(),
            });
        }
        self.depth += 1;
        let value = inner(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Value, YamlError> {
        let mut items = Vec::new();
        loop {
            let next = self.next()?;
            if matches!(next.0, Event::SequenceEnd) {
                return Ok(Value::Array(items));
            }
            items.push(self.value(next)?);
        }
    }

    fn map(&mut self) -> Result<Value, YamlError> {
        let mut members = Map::new();
        let mut merged = Map::new();
        loop {
            let next = self.next()?;
            if matches!(next.0, Event::MappingEnd) {
                // A map's own members override merged ones.
                merged.append(&mut members);
                return Ok(Value::Object(merged));
            }
            let line = next.1.start.line();
            let is_merge = matches!(&next.0, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = key(self.value(next)?, line)?;
            let next = self.next()?;
            if !is_merge && self.duplicates.len() < strict::MAX_FINDINGS && members.contains_key(&key) {
                let key = key[..key.floor_char_boundary(SHOWN)].to_owned();
                self.duplicates.push(Duplicate { line, key });
            }
            let value = self.value(next)?;
            if is_merge {
                merge(value, &mut merged, line)?;
            } else {
                members.insert(key, value);
            }
        }
    }
}

/// Merges the target of a merge key: a map, or a list of maps of which earlier ones win.
fn merge(value: Value, merged: &mut Map<String, Value>, line: usize) -> Result<(), YamlError> {
    const NOT_A_MAP: &str = "map merge requires map or sequence of maps as the value";
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                merged.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(items) => items.into_iter().try_for_each(|item| match item {
            map @ Value::Object(_) => merge(map, merged, line),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(YamlError::NotJson {
                    line,
                    message: NOT_A_MAP,
                })
            }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(YamlError::NotJson {
            line,
            message: NOT_A_MAP,
        }),
    }
}

fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Value, YamlError> {
    const NOT_FINITE: &str = "json: unsupported value: not a finite number";
    let core = tag.and_then(Tag::core_suffix);
    match (core, style) {
        (None, ScalarStyle::Plain) if tag.is_none() => scalar::plain(text).ok_or(YamlError::NotJson {
            line,
            message: NOT_FINITE,
        }),
        (None | Some("str" | "binary" | "timestamp"), _) => Ok(Value::String(text.to_owned())),
        (Some("null"), _) => Ok(Value::Null),
        (Some(_), _) => match scalar::plain(text) {
            Some(Value::String(_)) | None => Err(YamlError::NotJson {
                line,
                message: "the value does not fit its tag",
            }),
            Some(value) => Ok(value),
        },
    }
}

/// Converts a key to a string.
fn key(value: Value, line: usize) -> Result<String, YamlError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(YamlError::NotJson {
            line,
            message: "unsupported map key: null, a list or a map",
        }),
    }
}
