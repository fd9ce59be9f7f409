//! Checks that Kubernetes' environment adds to the type checker: invalid literals, and mixed lists
//! and maps (`cel-go/cel/validator.go`).

use std::collections::BTreeMap;

use api::duration;
use regex::Regex;

use crate::check::Types;
use crate::functions::{check_format, compile_regex};
use crate::syntax::Issue;
use crate::syntax::ast::{Call, Expr, Kind};
use crate::types::Type;
use crate::value::Value;
use crate::value::time::Timestamp;

/// Visits every node of a checked tree and compiles the patterns in it.
pub(crate) fn lint(expr: &Expr, types: &Types) -> Result<BTreeMap<String, Regex>, Vec<Issue>> {
    let mut linter = Linter {
        types,
        patterns: BTreeMap::new(),
        issues: Vec::new(),
    };
    linter.visit(expr, false);
    if linter.issues.is_empty() {
        Ok(linter.patterns)
    } else {
        Err(linter.issues)
    }
}

struct Linter<'t> {
    types: &'t Types,
    patterns: BTreeMap<String, Regex>,
    issues: Vec<Issue>,
}

/// True if two types are the same apart from unknown parts.
fn equivalent(left: &Type, right: &Type) -> bool {
    match (left, right) {
        (Type::Var(_) | Type::Param(_), _) | (_, Type::Var(_) | Type::Param(_)) => true,
        _ => {
            std::mem::discriminant(left) == std::mem::discriminant(right)
                && (left.parameters().is_empty() && left == right
                    || !left.parameters().is_empty()
                        && left
                            .parameters()
                            .into_iter()
                            .zip(right.parameters())
                            .all(|(left, right)| equivalent(left, right) || left.is_dyn() || right.is_dyn()))
        }
    }
}

impl Linter<'_> {
    fn of(&self, expr: &Expr) -> &Type {
        self.types.get(expr.id).unwrap_or(&Type::Dyn)
    }

    fn issue(&mut self, at: usize, message: String) {
        self.issues.push(Issue { at, message });
    }

    fn same<'e>(&mut self, exprs: impl Iterator<Item = (&'e Expr, bool)>) {
        let mut first: Option<Type> = None;
        for (expr, optional) in exprs {
            let found = match self.of(expr) {
                Type::Optional(inner) if optional => (**inner).clone(),
                other => other.clone(),
            };
            match &first {
                None => first = Some(found),
                Some(first) if equivalent(first, &found) => {}
                Some(first) => {
                    let message = format!("expected type '{first}' but found '{found}'");
                    self.issue(expr.at, message);
                    return;
                }
            }
        }
    }

    fn visit(&mut self, expr: &Expr, mixed: bool) {
        let mut within = mixed;
        match &expr.kind {
            Kind::Call(call) => {
                self.call(expr, call);
                within |= call.function == "format";
            }
            Kind::List { elements, optional } if !mixed => {
                let elements = elements.iter().enumerate();
                self.same(elements.map(|(index, element)| (element, optional.contains(&index))));
            }
            Kind::Map(entries) if !mixed => {
                self.same(entries.iter().map(|entry| (&entry.key, false)));
                self.same(entries.iter().map(|entry| (&entry.value, entry.optional)));
            }
            _ => {}
        }
        for child in expr.kind.children() {
            self.visit(child, within);
        }
    }

    fn call(&mut self, expr: &Expr, call: &Call) {
        let operands: Vec<&Expr> = call.operands().collect();
        match (call.function.as_str(), operands.as_slice()) {
            ("duration", [arg]) => {
                if let Some(text) = literal(arg)
                    && duration::parse(text).is_err()
                {
                    self.issue(arg.at, "invalid duration argument".to_owned());
                }
            }
            ("timestamp", [arg]) => {
                let is_beyond = matches!(&arg.kind, Kind::Literal(Value::Int(seconds)) if Timestamp::from_seconds(*seconds).is_err());
                if is_beyond || literal(arg).is_some_and(|text| Timestamp::parse(text).is_none()) {
                    self.issue(arg.at, "invalid timestamp argument".to_owned());
                }
            }
            ("matches" | "find" | "findAll", [_, pattern, ..]) => {
                if let Some(text) = literal(pattern) {
                    match compile_regex(text) {
                        Ok(compiled) => {
                            self.patterns.insert(text.to_owned(), compiled);
                        }
                        Err(_) if call.function == "matches" => {
                            self.issue(pattern.at, "invalid matches argument".to_owned());
                        }
                        Err(error) => self.issue(pattern.at, error),
                    }
                }
            }
            (
                "format",
                [
                    pattern,
                    Expr {
                        kind: Kind::List { elements, .. },
                        ..
                    },
                ],
            ) => {
                if let Some(text) = literal(pattern) {
                    let given: Vec<Type> = elements.iter().map(|element| self.of(element).clone()).collect();
                    if let Some(message) = check_format(text, &given) {
                        self.issue(expr.at, message);
                    }
                }
            }
            _ => {}
        }
    }
}

fn literal(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        Kind::Literal(Value::String(text)) => Some(text),
        _ => None,
    }
}
