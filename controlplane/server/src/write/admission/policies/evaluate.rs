//! Verdict of a policy on a request (`pkg/admission/plugin/policy/validating/validator.go`).

use std::time::Duration;

use expressions::Value;
use serde_json::Value as Json;
use tokio::time::Instant;

use super::compiled::{Compiled, Validation};
use super::scope::{BUDGET, EXHAUSTED, Exhausted, Input, Scope, with_stack};
use super::source::Policy;
use crate::request::context::Context;
use crate::write::admission::expressions::variables::ContextAuthorizer;

/// Longest message that an expression makes (`MaxEvaluatedMessageExpressionSizeBytes`).
const LONGEST_MESSAGE: usize = 5 * 1024;

/// Verdict of a validation.
pub(super) enum Decision {
    Admit,
    /// The evaluation failed and the failure policy is `Ignore`.
    Ignored(String),
    Deny {
        message: String,
        reason: Option<String>,
    },
}

/// Outcome of an audit annotation.
pub(super) enum Annotation {
    Publish { key: String, value: String },
    Failed { message: String, took: Duration },
}

/// Verdict of a policy.
#[derive(Default)]
pub(super) struct Outcome {
    /// Decisions with their evaluation times.
    pub(super) decisions: Vec<(Decision, Duration)>,
    pub(super) annotations: Vec<Annotation>,
}

/// Asks a policy about a request, with params or without.
pub(super) fn evaluate(policy: &Policy, input: &Input, params: Option<&Json>, context: &Context) -> Outcome {
    let compiled = policy.compiled();
    let rights = ContextAuthorizer(context);
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
    with_stack(compiled, run).unwrap_or_else(|message| Outcome {
        decisions: vec![(broken(policy, message.to_owned()), Duration::ZERO)],
        annotations: Vec::new(),
    })
}

/// A failure of the policy itself.
fn broken(policy: &Policy, message: String) -> Decision {
    if policy.fails_open() {
        return Decision::Ignored(message);
    }
    Decision::Deny { message, reason: None }
}

struct Asking<'a> {
    policy: &'a Policy,
    compiled: &'a Compiled,
    input: &'a Input,
    params: Option<&'a Json>,
    rights: &'a ContextAuthorizer<'a>,
}

impl<'a> Asking<'a> {
    fn run(&self) -> Outcome {
        if let Some(conditions) = &self.compiled.conditions {
            match conditions.hold(&self.scope().without_namespace()) {
                Ok(true) => {}
                Ok(false) => return Outcome::default(),
                Err(_) if self.policy.fails_open() => return Outcome::default(),
                Err(error) => return self.only(error),
            }
        }
        let scope = self.scope();
        let mut left = BUDGET;
        let mut results = Vec::new();
        for own in &self.compiled.validations {
            let began = Instant::now();
            match scope.run(&own.expression, &mut left) {
                Ok(result) => results.push((result, began.elapsed())),
                Err(Exhausted) => return self.only(EXHAUSTED.to_owned()),
            }
        }
        let scope = self.scope();
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
        let decide = |index: usize, own: &Validation, result: Result<Value<'_>, String>| match result {
            Err(error) => broken(self.policy, error),
            Ok(_) if is_exhausted => broken(self.policy, format!("failed messageExpression: {EXHAUSTED}")),
            Ok(value) if value.as_bool() == Some(true) => Decision::Admit,
            Ok(_) => {
                let made = messages.get(index).and_then(Option::as_ref).and_then(Value::as_str);
                denied(own, made)
            }
        };
        let decisions = validations.enumerate();
        let decisions = decisions
            .map(|(index, (own, (result, took)))| (decide(index, own, result), took))
            .collect();
        match self.annotations() {
            Ok(annotations) => Outcome { decisions, annotations },
            Err(Exhausted) => self.only(EXHAUSTED.to_owned()),
        }
    }

    /// The failure of the policy as a whole.
    fn only(&self, error: String) -> Outcome {
        Outcome {
            decisions: vec![(broken(self.policy, error), Duration::ZERO)],
            annotations: Vec::new(),
        }
    }

    fn annotations(&self) -> Result<Vec<Annotation>, Exhausted> {
        let scope = self.scope();
        let mut left = BUDGET;
        let mut annotations = Vec::new();
        for (key, expression) in &self.compiled.annotations {
            let began = Instant::now();
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
                Err(message) => {
                    let took = began.elapsed();
                    annotations.push(Annotation::Failed { message, took });
                }
            }
        }
        Ok(annotations)
    }

    fn scope(&self) -> Scope<'a> {
        Scope::new(self.compiled, self.input, self.params, self.rights)
    }
}

/// Denial by a validation; `made` is the result of its message expression.
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
