//! Verdict of a policy on a request (`pkg/admission/plugin/policy/validating/validator.go`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use api::Object;
use expressions::{Bindings, Error, Key, PER_CALL_LIMIT, Program, Question, Value, view};
use serde_json::Value as Json;

use super::compiled::{Compiled, Expression, Validation};
use super::source::Policy;
use crate::admission::expressions::{Rights, Variables};
use crate::admission::webhooks::Asked;
use crate::admission::webhooks::matching::{Fit, resource};
use crate::admission::webhooks::review::request;
use crate::context::Context;
use crate::failure::Failure;

/// Cost that all validations of a policy may have, messages included (`RuntimeCELCostBudget` of `pkg/apis/cel/config.go`).
const BUDGET: u64 = 10_000_000;
/// Longest message that an expression makes (`MaxEvaluatedMessageExpressionSizeBytes`).
const LONGEST_MESSAGE: usize = 5 * 1024;
const EXHAUSTED: &str = "validation failed due to running out of cost budget, no further validation rules will be run";

/// Levels of expressions that any thread's stack holds.
const SHALLOW: usize = 24;
/// Most levels that are evaluated at all.
const DEEPEST: usize = 10_000;
/// Stack that a level takes at most.
const PER_LEVEL: usize = 64 * 1024;

/// A request in the form in which a policy wants it.
pub(super) struct Input {
    object: Json,
    old: Json,
    request: Json,
    namespace: Json,
    resource: Question,
}

impl Input {
    pub(super) async fn new(
        asked: &Asked<'_>,
        object: Option<&dyn Object>,
        fit: &Fit,
        namespace: Json,
    ) -> Result<Self, Failure> {
        let shown = async |object: Option<&dyn Object>| -> Result<Json, Failure> {
            let Some(object) = object else { return Ok(Json::Null) };
            let json = asked.shown(object, fit.form.as_ref()).await?;
            serde_json::from_slice(&json).map_err(Failure::internal)
        };
        Ok(Self {
            object: match &asked.connection {
                Some(options) => options.clone(),
                None => shown(object).await?,
            },
            old: shown(asked.old).await?,
            request: request(asked, fit),
            namespace,
            resource: resource(asked),
        })
    }
}

/// Verdict of a validation.
pub(super) enum Decision {
    Admit,
    Deny { message: String, reason: Option<String> },
}

/// What becomes of an annotation for the audit log.
pub(super) enum Annotation {
    Publish { key: String, value: String },
    Failed(String),
}

/// Verdict of a policy.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) decisions: Vec<Decision>,
    pub(super) annotations: Vec<Annotation>,
}

/// Asks a policy about a request, with params or without.
pub(super) fn evaluate(policy: &Policy, input: &Input, params: Option<&Json>, context: &Context) -> Outcome {
    let compiled = policy.compiled();
    let rights = Rights(context);
    let run = || {
        let asking = Asking {
            policy,
            compiled,
            input,
            params,
            rights: &rights,
        };
        asking.run()
    };
    if compiled.variables.is_empty() || compiled.levels <= SHALLOW {
        return run();
    }
    let failed = |message: &str| Outcome {
        decisions: vec![broken(policy, message.to_owned())],
        annotations: Vec::new(),
    };
    if compiled.levels > DEEPEST {
        return failed("variables are nested too deeply");
    }
    // Variables are evaluated within one another.
    let ran = thread::scope(|scope| {
        let stack = (compiled.levels + SHALLOW) * PER_LEVEL;
        let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, run);
        thread.ok()?.join().ok()
    });
    ran.unwrap_or_else(|| failed("internal error"))
}

/// A failure of the policy itself.
fn broken(policy: &Policy, message: String) -> Decision {
    if policy.fails_open() {
        return Decision::Admit;
    }
    Decision::Deny { message, reason: None }
}

struct Asking<'a> {
    policy: &'a Policy,
    compiled: &'a Compiled,
    input: &'a Input,
    params: Option<&'a Json>,
    rights: &'a Rights<'a>,
}

impl<'a> Asking<'a> {
    fn run(&self) -> Outcome {
        if let Some(conditions) = &self.compiled.conditions {
            match conditions.hold(&self.scope(&Json::Null)) {
                Ok(true) => {}
                Ok(false) => return Outcome::default(),
                Err(_) if self.policy.fails_open() => return Outcome::default(),
                Err(error) => return self.only(error),
            }
        }
        let scope = self.scope(&self.input.namespace);
        let mut left = BUDGET;
        let mut results = Vec::new();
        for own in &self.compiled.validations {
            match scope.run(&own.expression, &mut left) {
                Ok(result) => results.push(result),
                Err(Exhausted) => return self.only(EXHAUSTED.to_owned()),
            }
        }
        let scope = self.scope(&self.input.namespace);
        let mut messages = Vec::new();
        let mut is_exhausted = false;
        for own in &self.compiled.validations {
            let Some(expression) = own.message_expression.as_ref().filter(|_| !is_exhausted) else {
                messages.push(None);
                continue;
            };
            match scope.run(expression, &mut left) {
                Ok(result) => messages.push(result.ok()),
                Err(Exhausted) => is_exhausted = true,
            }
        }
        let validations = self.compiled.validations.iter().zip(results);
        let decisions = validations.enumerate().map(|(index, (own, result))| match result {
            Err(error) => broken(self.policy, error),
            Ok(_) if is_exhausted => broken(self.policy, format!("failed messageExpression: {EXHAUSTED}")),
            Ok(value) if value.as_bool() == Some(true) => Decision::Admit,
            Ok(_) => {
                let made = messages.get(index).and_then(Option::as_ref).and_then(Value::as_str);
                denied(own, made)
            }
        });
        let decisions = decisions.collect();
        match self.annotations() {
            Ok(annotations) => Outcome { decisions, annotations },
            Err(Exhausted) => self.only(EXHAUSTED.to_owned()),
        }
    }

    /// The failure of the policy as a whole.
    fn only(&self, error: String) -> Outcome {
        Outcome {
            decisions: vec![broken(self.policy, error)],
            annotations: Vec::new(),
        }
    }

    fn annotations(&self) -> Result<Vec<Annotation>, Exhausted> {
        let scope = self.scope(&self.input.namespace);
        let mut left = BUDGET;
        let mut annotations = Vec::new();
        for (key, expression) in &self.compiled.annotations {
            match scope.run(expression, &mut left)? {
                Ok(value) => {
                    let value = value.as_str().unwrap_or_default().trim();
                    if !value.is_empty() {
                        annotations.push(Annotation::Publish {
                            key: key.clone(),
                            value: value.to_owned(),
                        });
                    }
                }
                Err(_) if self.policy.fails_open() => {}
                Err(error) => annotations.push(Annotation::Failed(error)),
            }
        }
        Ok(annotations)
    }

    fn scope(&self, namespace: &'a Json) -> Scope<'a> {
        let input = self.input;
        Scope {
            compiled: self.compiled,
            request: Variables {
                object: &input.object,
                old: &input.old,
                request: &input.request,
                namespace,
                rights: self.rights,
                resource: &input.resource,
            },
            params: self.params,
            known: Mutex::default(),
            spent: AtomicU64::new(0),
        }
    }
}

/// The refusal of a validation; `made` is what its message expression says.
fn denied(own: &Validation, made: Option<&str>) -> Decision {
    let made = made.map(str::trim);
    let made = made.filter(|text| !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n'));
    let given = Some(own.message.trim()).filter(|text| !text.is_empty());
    let message = made.or(given).map_or_else(
        || format!("failed expression: {}", own.expression.text.trim()),
        str::to_owned,
    );
    Decision::Deny {
        message,
        reason: own.reason.clone(),
    }
}

/// No cost is left for further expressions.
struct Exhausted;

/// The variables of the expressions of a policy. Those that are expressions themselves are evaluated once.
struct Scope<'a> {
    compiled: &'a Compiled,
    request: Variables<'a>,
    params: Option<&'a Json>,
    known: Mutex<BTreeMap<String, Result<Value<'a>, Error>>>,
    /// Cost of variables since the last expression.
    spent: AtomicU64,
}

impl<'a> Scope<'a> {
    /// Evaluates an expression, which takes its cost from the budget, and that of the variables that it reads first.
    fn run(&self, expression: &Expression, left: &mut u64) -> Result<Result<Value<'a>, String>, Exhausted> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(error) => return Ok(Err(format!("compilation error: {error}"))),
        };
        let (outcome, cost) = self.evaluate(program);
        let cost = cost.saturating_add(self.spent.swap(0, Ordering::Relaxed));
        *left = left.checked_sub(cost).ok_or(Exhausted)?;
        let text = &expression.text;
        Ok(outcome.map_err(|error| format!("expression '{text}' resulted in error: {error}")))
    }

    fn evaluate(&self, program: &Program) -> (Result<Value<'a>, Error>, u64) {
        let mut own = PER_CALL_LIMIT;
        let outcome = program.evaluate(self, &mut own);
        (outcome, PER_CALL_LIMIT.saturating_sub(own))
    }

    fn variable(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known().get(name) {
            return Some(value.clone());
        }
        let failed = |verb: &str, error: &dyn std::fmt::Display| Error::Evaluation {
            message: format!("composited variable {name:?} fails to {verb}: {error}").into(),
        };
        let value = match self.compiled.variables.get(name)? {
            Err(error) => Err(failed("compile", error)),
            Ok(program) => {
                let (value, cost) = self.evaluate(program);
                self.spent.fetch_add(cost, Ordering::Relaxed);
                value.map_err(|error| failed("evaluate", &error))
            }
        };
        known().insert(name.to_owned(), value.clone());
        Some(value)
    }
}

impl<'a> Bindings<'a> for Scope<'a> {
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        if let Some(name) = name.strip_prefix("variables.") {
            return self.variable(name);
        }
        match name {
            "params" => Some(self.params.map_or(Ok(Value::Null), |params| view(params, None))),
            // Asked only for whether it has a field.
            "variables" => {
                let names = self.compiled.variables.keys();
                let entries = names.map(|name| (Key::String(expressions::Text::Borrowed(name)), Value::Null));
                let entries: BTreeMap<Key<'a>, Value<'a>> = entries.collect();
                Some(Ok(Value::Map(entries.into())))
            }
            _ => self.request.get(name),
        }
    }
}
