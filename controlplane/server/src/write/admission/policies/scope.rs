//! The variables of a policy's expressions, and where these are evaluated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use api::Object;
use expressions::{Bindings, Error, Key, PER_CALL_LIMIT, Program, Question, Value, view};
use serde_json::Value as Json;

use super::compiled::{Compiled, Expression};
use crate::request::failure::Failure;
use crate::write::admission::expressions::variables::{ContextAuthorizer, Variables};
use crate::write::admission::webhooks::asked::{Asked, Fit};
use crate::write::admission::webhooks::matching::resource;
use crate::write::admission::webhooks::review::request;

/// Cost that all validations of a policy may have, messages included, and that each mutation may have
/// (`RuntimeCELCostBudget` of `pkg/apis/cel/config.go`).
pub(super) const BUDGET: u64 = 10_000_000;
pub(super) const EXHAUSTED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Levels of expressions that any thread's stack holds.
const SHALLOW: usize = 24;
/// Most levels that are evaluated at all.
const DEEPEST: usize = 10_000;
/// Stack that a level takes at most.
const PER_LEVEL: usize = 64 * 1024;

/// Runs an evaluation of a policy's expressions with sufficient stack.
///
/// # Errors
/// Reason that nothing ran.
pub(super) fn with_stack<T: Send>(compiled: &Compiled, run: impl FnOnce() -> T + Send) -> Result<T, &'static str> {
    if compiled.variables.is_empty() || compiled.levels <= SHALLOW {
        return Ok(run());
    }
    if compiled.levels > DEEPEST {
        return Err("variables are nested too deeply");
    }
    // Variables are evaluated within one another.
    let ran = thread::scope(|scope| {
        let stack = (compiled.levels + SHALLOW) * PER_LEVEL;
        let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, run);
        thread.ok()?.join().ok()
    });
    ran.ok_or("internal error")
}

/// A request in the form in which a policy wants it.
pub(super) struct Input {
    pub(super) object: Json,
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

/// No cost is left for further expressions.
pub(super) struct Exhausted;

/// The variables of the expressions of a policy. Those that are expressions themselves are evaluated once.
pub(super) struct Scope<'a> {
    compiled: &'a Compiled,
    request: Variables<'a>,
    params: Option<&'a Json>,
    known: Mutex<BTreeMap<String, Result<Value<'a>, Error>>>,
    /// Cost of variables since the last expression.
    spent: AtomicU64,
}

impl<'a> Scope<'a> {
    pub(super) fn new(
        compiled: &'a Compiled,
        input: &'a Input,
        params: Option<&'a Json>,
        rights: &'a ContextAuthorizer<'a>,
    ) -> Self {
        Self {
            compiled,
            request: Variables {
                object: &input.object,
                old: &input.old,
                request: &input.request,
                namespace: &input.namespace,
                rights,
                resource: &input.resource,
            },
            params,
            known: Mutex::default(),
            spent: AtomicU64::new(0),
        }
    }

    /// The scope of match conditions, which do not see the namespace.
    pub(super) fn without_namespace(mut self) -> Self {
        self.request.namespace = &Json::Null;
        self
    }

    /// Evaluates an expression, which takes its cost from the budget, and that of the variables that it reads first.
    pub(super) fn run(&self, expression: &Expression, left: &mut u64) -> Result<Result<Value<'a>, String>, Exhausted> {
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
            // Chains of variables may be long.
            _ if self.is_interrupted() => Err(Error::Cost),
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

    fn is_interrupted(&self) -> bool {
        self.request.is_interrupted()
    }
}
