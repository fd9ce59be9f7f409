//! Label and field selectors: texts of query parameters and structures in objects.

mod fields;

use std::collections::BTreeMap;
use std::num::ParseIntError;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;
use thiserror::Error;

use crate::value::names;
pub use fields::FieldSelector;

/// Error of parsing a selector. `Display` is upstream's text.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum SelectorError {
    /// The text does not follow the grammar.
    #[error("{found}")]
    Syntax {
        /// Text that was found, and the one that was expected.
        found: String,
    },
    /// A requirement of the text is invalid.
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<Self>),
    /// A key or value is invalid for a label.
    #[error("{field}: Invalid value: {value:?}: {detail}")]
    Value {
        /// `key`, or `values[0][key]`.
        field: String,
        /// The bad text.
        value: String,
        /// The rule that it breaks.
        detail: String,
    },
    /// The operator is unknown.
    #[error("{operator:?} is not a valid label selector operator")]
    Operator {
        /// The unknown operator.
        operator: String,
    },
    /// A field selector has a term without `=`, `==` or `!=`.
    #[error("invalid selector: '{text}'; can't understand '{term}'")]
    Term {
        /// The selector.
        text: String,
        /// The bad term.
        term: String,
    },
}

/// Condition of a requirement on one label.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

/// A conjunction of requirements on labels; without any it matches everything.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LabelSelector {
    requirements: Vec<(String, Test)>,
    nothing: bool,
}

impl LabelSelector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Matches no object.
    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    /// Requires equality with each of the labels, as a Service's selector.
    pub fn equals(labels: &BTreeMap<String, String>) -> Self {
        let each = |(key, value): (&String, &String)| (key.clone(), Test::In(vec![value.clone()]));
        Self {
            requirements: labels.iter().map(each).collect(),
            nothing: false,
        }
    }

    /// Parses the text of a query parameter: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut tokens = Tokens { rest: text };
        let mut requirements = Vec::new();
        match tokens.peek() {
            None => return Ok(Self::default()),
            Some(first) if !begins(first) => {
                return Err(unexpected(Some(first), "!, identifier, or 'end of string'"));
            }
            Some(_) => {}
        }
        loop {
            let wrapped = |error| SelectorError::Requirement(Box::new(error));
            requirements.push(requirement(&mut tokens).map_err(wrapped)?);
            match tokens.next() {
                None => {
                    return Ok(Self {
                        requirements,
                        nothing: false,
                    });
                }
                Some(",") if tokens.peek().is_some_and(begins) => {}
                Some(",") => return Err(unexpected(tokens.peek(), "identifier after ','")),
                other => return Err(unexpected(other, "',' or 'end of string'")),
            }
        }
    }

    /// Converts the structure in an object. None matches nothing, an empty one everything.
    pub fn of(structure: Option<&Structure>) -> Result<Self, SelectorError> {
        let Some(structure) = structure else {
            return Ok(Self::nothing());
        };
        let mut selector = structure.match_labels.as_ref().map(Self::equals).unwrap_or_default();
        for expression in structure.match_expressions.iter().flatten() {
            let values = expression.values.clone().unwrap_or_default();
            let test = match expression.operator.as_str() {
                "In" => Test::In(values),
                "NotIn" => Test::NotIn(values),
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::DoesNotExist,
                other => {
                    return Err(SelectorError::Operator {
                        operator: other.to_owned(),
                    });
                }
            };
            selector.requirements.push((expression.key.clone(), test));
        }
        for (key, test) in &selector.requirements {
            check(key, test)?;
        }
        Ok(selector)
    }

    /// True if labels satisfy every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.nothing && self.requirements.iter().all(|(key, test)| holds(test, labels.get(key)))
    }

    /// Like [`LabelSelector::matches`], for labels that may be missing.
    pub fn matches_option(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        labels.map_or_else(|| self.matches(&BTreeMap::new()), |labels| self.matches(labels))
    }

    /// True if every object matches.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }
}

impl std::fmt::Display for LabelSelector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut requirements: Vec<&(String, Test)> = self.requirements.iter().collect();
        requirements.sort_by(|left, right| left.0.cmp(&right.0));
        for (index, (key, test)) in requirements.into_iter().enumerate() {
            if index > 0 {
                formatter.write_str(",")?;
            }
            match test {
                Test::In(values) => match values.as_slice() {
                    [value] => write!(formatter, "{key}={value}")?,
                    values => write!(formatter, "{key} in ({})", sorted(values))?,
                },
                Test::NotIn(values) => write!(formatter, "{key} notin ({})", sorted(values))?,
                Test::Exists => formatter.write_str(key)?,
                Test::DoesNotExist => write!(formatter, "!{key}")?,
                Test::GreaterThan(number) => write!(formatter, "{key}>{number}")?,
                Test::LessThan(number) => write!(formatter, "{key}<{number}")?,
            }
        }
        Ok(())
    }
}

fn sorted(values: &[String]) -> String {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.join(",")
}

fn holds(test: &Test, label: Option<&String>) -> bool {
    let number = || label.and_then(|value| value.parse::<i64>().ok());
    match test {
        Test::In(values) => label.is_some_and(|value| values.contains(value)),
        Test::NotIn(values) => label.is_none_or(|value| !values.contains(value)),
        Test::Exists => label.is_some(),
        Test::DoesNotExist => label.is_none(),
        Test::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
        Test::LessThan(bound) => number().is_some_and(|number| number < *bound),
    }
}

fn check(key: &str, test: &Test) -> Result<(), SelectorError> {
    fits("key".to_owned(), key, &names::qualified_name(key))?;
    check_values(key, test)
}

fn check_values(key: &str, test: &Test) -> Result<(), SelectorError> {
    if let Test::In(values) | Test::NotIn(values) = test {
        for (index, value) in values.iter().enumerate() {
            fits(format!("values[{index}][{key}]"), value, &names::label_value(value))?;
        }
    }
    Ok(())
}

fn fits(field: String, value: &str, details: &[String]) -> Result<(), SelectorError> {
    if details.is_empty() {
        return Ok(());
    }
    Err(SelectorError::Value {
        field,
        value: value.to_owned(),
        detail: details.join("; "),
    })
}

/// True if the token can start a requirement.
fn begins(token: &str) -> bool {
    token == "!" || !SYMBOLS.contains(&token)
}

/// Tokenizer for words and symbols; a symbol is never a word. None is the end.
struct Tokens<'a> {
    rest: &'a str,
}

const SYMBOLS: &[&str] = &["==", "!=", "=", "!", ",", "(", ")", "<", ">"];

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let ends = |c: char| c.is_whitespace() || "=!,()<>".contains(c);
        let symbol = SYMBOLS
            .iter()
            .find(|symbol| self.rest.starts_with(**symbol))
            .map(|symbol| symbol.len());
        let length = symbol.or_else(|| self.rest.find(ends)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(token).filter(|token| !token.is_empty())
    }

    fn peek(&self) -> Option<&'a str> {
        Tokens { rest: self.rest }.next()
    }

    fn word(&mut self, expected: &str) -> Result<&'a str, SelectorError> {
        match self.next() {
            Some(word) if !SYMBOLS.contains(&word) => Ok(word),
            other => Err(unexpected(other, expected)),
        }
    }
}

fn unexpected(found: Option<&str>, expected: &str) -> SelectorError {
    SelectorError::Syntax {
        found: format!("found '{}', expected: {expected}", found.unwrap_or_default()),
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<(String, Test), SelectorError> {
    let negated = tokens.peek() == Some("!");
    if negated {
        tokens.next();
    }
    let key = tokens.word("identifier")?.to_owned();
    // Upstream has no field path here.
    fits("<nil>".to_owned(), &key, &names::qualified_name(&key))?;
    if negated {
        return Ok((key, Test::DoesNotExist));
    }
    if matches!(tokens.peek(), None | Some(",")) {
        return Ok((key, Test::Exists));
    }
    let test = match tokens.next() {
        Some("=" | "==") => Test::In(vec![value(tokens)?]),
        Some("!=") => Test::NotIn(vec![value(tokens)?]),
        Some(">") => Test::GreaterThan(number(tokens)?),
        Some("<") => Test::LessThan(number(tokens)?),
        Some("in") => Test::In(values(tokens)?),
        Some("notin") => Test::NotIn(values(tokens)?),
        other => return Err(unexpected(other, "in, notin, =, ==, !=, gt, lt")),
    };
    check_values(&key, &test)?;
    Ok((key, test))
}

/// Parses one value; empty before a comma or the end.
fn value(tokens: &mut Tokens<'_>) -> Result<String, SelectorError> {
    match tokens.peek() {
        None | Some(",") => Ok(String::new()),
        Some(_) => Ok(tokens.word("identifier")?.to_owned()),
    }
}

fn number(tokens: &mut Tokens<'_>) -> Result<i64, SelectorError> {
    let value = value(tokens)?;
    let parsed: Result<i64, ParseIntError> = value.parse();
    parsed.or(Err(SelectorError::Value {
        field: "values[0]".to_owned(),
        value,
        detail: "for 'Gt', 'Lt' operators, the value must be an integer".to_owned(),
    }))
}

fn values(tokens: &mut Tokens<'_>) -> Result<Vec<String>, SelectorError> {
    match tokens.next() {
        Some("(") => {}
        other => {
            return Err(SelectorError::Syntax {
                found: format!("found '{}' expected: '('", other.unwrap_or_default()),
            });
        }
    }
    let mut values = Vec::new();
    loop {
        match tokens.peek() {
            Some("," | ")") => values.push(String::new()),
            _ => values.push(tokens.word("',', ')' or identifier")?.to_owned()),
        }
        match tokens.next() {
            Some(",") => {}
            Some(")") => return Ok(values),
            other => return Err(unexpected(other, "',' or ')'")),
        }
    }
}
