//! Evaluation of rules on an object (`pkg/apiserver/schema/cel/validation.go`).

use std::cell::OnceCell;
use std::sync::Arc;

use expressions::{Bindings, Error, PER_CALL_LIMIT, Program, view};
use serde_json::{Map, Value};

use super::{Compiled, Rules, Scope};
use crate::path::Path;
use crate::render;
use crate::structural::{Kind, Node, Rule, Structural};
use crate::validate::Old;
use crate::{Invalid, InvalidKind};

/// Cost budget for all rules of one object (`RuntimeCELCostBudget` of
/// `k8s.io/apiserver/pkg/apis/cel/config.go`).
const BUDGET: u64 = 10_000_000;
/// Longest message of a message expression (`MaxEvaluatedMessageExpressionSizeBytes` beside it).
const MAX_MESSAGE: usize = 5 * 1024;
const EXHAUSTED: &str = "validation failed due to running out of cost budget, no further validation rules will be run";

/// Result of all rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rules that failed.
    pub errors: Vec<Invalid>,
    /// Rules that failed on unchanged values: warnings.
    pub tolerated: Vec<Invalid>,
}

/// The remaining cost, and whether it is exhausted.
pub(crate) struct Budget {
    left: u64,
    is_over: bool,
}

impl Budget {
    /// True if the budget is exhausted.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            left: BUDGET,
            is_over: false,
        }
    }
}

impl Rules {
    /// Evaluates the rules on an object; `old` is the object that it replaces.
    pub fn validate(&self, schema: &Structural, new: &Value, old: Option<&Value>) -> Verdict {
        let mut run = Run::default();
        let node = schema.root();
        let whole = old.map(|old| Known::new(Old::new(node, old, new)));
        let place = Place {
            at: &Path::ROOT,
            old,
            current: whole.as_ref(),
            nearest: None,
        };
        run.scope(&self.root, node, new, &place);
        run.verdict
    }
}

impl Scope {
    /// Evaluates the rules on a default, as a new value and as an unchanged one
    /// (`pkg/apiserver/schema/defaulting/validation.go`).
    pub(crate) fn check_default(&self, node: &Node, value: &Value, at: &Path<'_>, budget: &mut Budget) -> Vec<Invalid> {
        let mut left = budget.left;
        for old in [Some(value), None] {
            let mut run = Run {
                budget: Budget { ..*budget },
                ..Run::default()
            };
            let place = Place {
                at,
                old,
                current: None,
                nearest: None,
            };
            run.scope(self, node, value, &place);
            left = left.min(run.budget.left);
            if !run.verdict.errors.is_empty() {
                budget.left = left;
                budget.is_over = run.budget.is_over;
                return run.verdict.errors;
            }
        }
        budget.left = left;
        Vec::new()
    }
}

/// A value and its old value, compared at most once.
struct Known<'v> {
    old: Old<'v>,
    is_unchanged: OnceCell<bool>,
}

impl<'v> Known<'v> {
    fn new(old: Old<'v>) -> Self {
        Self {
            old,
            is_unchanged: OnceCell::new(),
        }
    }

    fn is_unchanged(&self) -> bool {
        *self.is_unchanged.get_or_init(|| self.old.is_unchanged())
    }
}

/// Position of a value in its object.
struct Place<'p, 'v> {
    at: &'p Path<'p>,
    /// Value of `oldSelf`.
    old: Option<&'v Value>,
    /// The value with its old one, if they can be correlated for ratcheting.
    current: Option<&'p Known<'v>>,
    /// The closest ancestor with an old value.
    nearest: Option<&'p Known<'v>>,
}

impl<'p, 'v> Place<'p, 'v> {
    fn is_unchanged(&self) -> bool {
        self.current.or(self.nearest).is_some_and(Known::is_unchanged)
    }

    /// The correlated old value of a field; `apiVersion` and `kind` are not ratcheted.
    fn known(&self, name: &str) -> Option<Known<'v>> {
        Some(Known::new(self.current?.old.member(name)?))
    }

    /// The closest ancestor of a field or an item with an old value.
    fn nearest(&self, name: Option<&str>) -> Option<&'p Known<'v>> {
        let is_type = self.nearest.is_none() && matches!(name, Some("apiVersion" | "kind"));
        match self.current {
            Some(_) if is_type => None,
            Some(current) => Some(current),
            None => self.nearest,
        }
    }
}

/// Variables of a rule.
struct Variables<'v> {
    own: Result<expressions::Value<'v>, Error>,
    old: Option<Result<expressions::Value<'v>, Error>>,
}

impl<'v> Bindings<'v> for Variables<'v> {
    fn get(&self, name: &str) -> Option<Result<expressions::Value<'v>, Error>> {
        match name {
            "self" => Some(self.own.clone()),
            "oldSelf" => self.old.clone(),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Run {
    verdict: Verdict,
    budget: Budget,
}

impl Run {
    fn scope(&mut self, scope: &Scope, node: &Node, value: &Value, place: &Place<'_, '_>) {
        if value.is_null() {
            return;
        }
        self.rules(scope, value, place);
        for branch in &scope.all_of {
            if self.budget.is_over {
                return;
            }
            // Like a branch's schema errors, errors of its rules are not ratcheted by the value
            // alone.
            let place = Place {
                current: None,
                ..*place
            };
            self.scope(branch, node, value, &place);
        }
        match value {
            Value::Array(items) => self.items(scope, node, items, place),
            Value::Object(members) => self.members(scope, node, members, place),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn items(&mut self, scope: &Scope, node: &Node, items: &[Value], place: &Place<'_, '_>) {
        let (Some(scope), Some(below)) = (&scope.items, node.items()) else {
            return;
        };
        let whole = Value::Null;
        let olds = place.old.and_then(|old| Old::new(node, old, &whole).keyed());
        for (index, item) in items.iter().enumerate() {
            if self.budget.is_over {
                return;
            }
            let old = olds.as_ref().and_then(|olds| olds.item(item));
            let known = old.filter(|_| place.current.is_some()).map(Known::new);
            let place = Place {
                at: &place.at.index(index),
                old: old.map(|old| old.before()),
                current: known.as_ref(),
                nearest: place.nearest(None),
            };
            self.scope(scope, below, item, &place);
        }
    }

    fn members(&mut self, scope: &Scope, node: &Node, members: &Map<String, Value>, place: &Place<'_, '_>) {
        let old = |name: &str| place.old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
        if let (Some(scope), Some(crate::Additional::Schema(below))) = (&scope.additional, node.additional()) {
            for (name, value) in members {
                let known = place.known(name);
                let place = Place {
                    at: &place.at.key(name),
                    old: old(name),
                    current: known.as_ref(),
                    nearest: place.nearest(Some(name)),
                };
                self.scope(scope, below, value, &place);
                if self.budget.is_over {
                    return;
                }
            }
        }
        for (name, scope) in &scope.properties {
            let (Some(value), Some(below)) = (members.get(&**name), node.property(name)) else {
                continue;
            };
            let is_type = place.nearest.is_none() && matches!(&**name, "apiVersion" | "kind");
            let known = place.known(name).filter(|_| !is_type);
            let place = Place {
                at: &place.at.child(name),
                old: old(name),
                current: known.as_ref(),
                nearest: place.nearest(Some(name)),
            };
            self.scope(scope, below, value, &place);
            if self.budget.is_over {
                return;
            }
        }
    }

    fn rules(&mut self, scope: &Scope, value: &Value, place: &Place<'_, '_>) {
        let of_type = scope.kind.map_or("", Kind::name);
        if scope.is_unseen {
            let detail = "rule compiler initialization error: failed to convert to declType for CEL validation rules";
            self.refuse(place, of_type, detail.to_owned());
            return;
        }
        let Some(schema) = scope.schema.as_ref().filter(|_| !scope.rules.is_empty()) else {
            return;
        };
        if self.budget.left == 0 {
            return self.end(place, of_type, EXHAUSTED.to_owned());
        }
        let own = view(value, Some(schema));
        let old = place.old.map(|old| view(old, Some(schema)));
        for compiled in &scope.rules {
            let is_optional = compiled.rule.optional_old_self == Some(true);
            if compiled.uses_old_self && old.is_none() && !is_optional {
                continue;
            }
            let program = match &compiled.program {
                None => continue,
                Some(Ok(program)) => program,
                Some(Err(error)) => {
                    self.refuse(place, of_type, format!("rule compile error: {error}"));
                    continue;
                }
            };
            let old = match (&old, is_optional) {
                (None, true) => Some(Ok(expressions::Value::Optional(None))),
                (Some(Ok(old)), true) => Some(Ok(expressions::Value::Optional(Some(Arc::new(old.clone()))))),
                (old, _) => old.clone(),
            };
            let variables = Variables { own: own.clone(), old };
            match self.run(program, &variables) {
                Ok(outcome) if outcome.as_bool() == Some(true) => {}
                Ok(_) => self.failed(scope, compiled, value, &variables, place),
                Err(error) => self.broken(&compiled.rule, &error, of_type, place),
            }
            if self.budget.is_over {
                return;
            }
        }
    }

    /// Evaluates an expression within the budget; `None` if its cost exceeds it.
    fn run<'v>(&mut self, program: &Program, variables: &Variables<'v>) -> Result<expressions::Value<'v>, Failed> {
        let before = self.budget.left;
        program
            .evaluate(variables, &mut self.budget.left)
            .map_err(|error| match error {
                Error::Cost if before <= PER_CALL_LIMIT => Failed::Budget,
                Error::Cost => Failed::Call,
                error @ Error::Evaluation { .. } => Failed::Evaluation(error),
            })
    }

    fn refuse(&mut self, place: &Place<'_, '_>, of_type: &str, detail: String) {
        self.verdict
            .errors
            .push(Invalid::value(place.at.field(), of_type, detail));
    }

    /// Reports an error after which no more rules are evaluated.
    fn end(&mut self, place: &Place<'_, '_>, of_type: &str, detail: String) {
        self.refuse(place, of_type, detail);
        self.budget.is_over = true;
    }

    /// Reports a rule whose evaluation failed.
    fn broken(&mut self, rule: &Rule, failed: &Failed, of_type: &str, place: &Place<'_, '_>) {
        let shown = shown(rule);
        match failed {
            Failed::Budget => self.end(place, of_type, EXHAUSTED.to_owned()),
            Failed::Call => {
                let error = Error::Cost;
                let detail = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                );
                self.end(place, of_type, detail);
            }
            Failed::Evaluation(error) if error.to_string().starts_with("no such overload") => {
                let detail = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: \
                     {shown}"
                );
                self.refuse(place, of_type, detail);
            }
            Failed::Evaluation(error) => self.refuse(place, of_type, format!("{error} evaluating rule: {shown}")),
        }
    }

    /// Reports a rule that is false.
    fn failed(
        &mut self,
        scope: &Scope,
        compiled: &Compiled,
        value: &Value,
        variables: &Variables<'_>,
        place: &Place<'_, '_>,
    ) {
        let at = if compiled.field.is_empty() {
            place.at.field()
        } else {
            place.at.child(&compiled.field).to_string()
        };
        let detail = match self.message(compiled, variables) {
            Ok(detail) => detail,
            Err(detail) => {
                self.budget.is_over = true;
                let of_type = scope.kind.map_or("", Kind::name);
                return self.add(compiled, Invalid::value(at, of_type, detail), place);
            }
        };
        let kind = match compiled.rule.reason.as_deref() {
            Some("FieldValueForbidden") => InvalidKind::Forbidden,
            Some("FieldValueRequired") => InvalidKind::Required,
            Some("FieldValueDuplicate") => InvalidKind::Duplicate,
            _ => InvalidKind::Invalid,
        };
        let is_shown = matches!(kind, InvalidKind::Invalid | InvalidKind::Duplicate)
            && !matches!(scope.kind, Some(Kind::Object | Kind::Array));
        let error = Invalid {
            field: at,
            detail: if kind == InvalidKind::Duplicate {
                String::new()
            } else {
                detail
            },
            kind,
            value: is_shown.then(|| render::value(value)),
        };
        self.add(compiled, error, place);
    }

    fn add(&mut self, compiled: &Compiled, error: Invalid, place: &Place<'_, '_>) {
        if !compiled.uses_old_self && place.is_unchanged() {
            self.verdict.tolerated.push(error);
        } else {
            self.verdict.errors.push(error);
        }
    }

    /// Returns the message of a failed rule.
    ///
    /// # Errors
    /// The cost of the message expression is too high; the error is a message about that.
    fn message(&mut self, compiled: &Compiled, variables: &Variables<'_>) -> Result<String, String> {
        let rule = &compiled.rule;
        let expression = render::quoted(&rule.message_expression);
        if let Some(Ok(program)) = &compiled.message {
            match self.run(program, variables) {
                Ok(text) => {
                    let text = text.as_str().unwrap_or_default().trim();
                    if !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n') {
                        return Ok(text.to_owned());
                    }
                }
                Err(Failed::Budget) => {
                    let detail = "messageExpression evaluation failed due to running out of cost budget, no further \
                                  validation rules will be run";
                    return Err(detail.to_owned());
                }
                Err(Failed::Call) => {
                    return Err(format!(
                        "no further validation rules will be run due to call cost exceeds limit for messageExpression: \
                         {expression}"
                    ));
                }
                Err(Failed::Evaluation(_)) => {}
            }
        }
        Ok(if rule.message.is_empty() {
            format!("failed rule: {}", rule.rule.trim())
        } else {
            rule.message.trim().to_owned()
        })
    }
}

/// Reason why an evaluation failed.
enum Failed {
    /// The object's cost budget is exhausted.
    Budget,
    /// The expression exceeds the cost limit of a single one.
    Call,
    Evaluation(Error),
}

/// A rule as shown in errors.
fn shown(rule: &Rule) -> &str {
    if rule.message.is_empty() {
        rule.rule.trim()
    } else {
        rule.message.trim()
    }
}
