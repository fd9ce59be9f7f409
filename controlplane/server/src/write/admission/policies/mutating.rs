//! Mutating admission policies (`pkg/admission/plugin/policy/mutating`). The matching ones are
//! selected before the first changes the object; each then sees the changes of those before it.

use std::time::Duration;

use api::Object;
use api::managed::mutation;
use api::patch::json;
use expressions::{JSON_BYTES, Value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use serde_json::{Map, Value as Json};
use tokio::time::Instant;

use super::compiled::{Expression, Patch};
use super::scope::{BUDGET, EXHAUSTED, Exhausted, Input, Scope, with_stack};
use super::source::{Binding, Policy};
use super::{forbidden, matched, namespace};
use crate::ops::metrics::Checked;
use crate::request::failure::Failure;
use crate::request::options::FieldValidation;
use crate::write::admission::Rounds;
use crate::write::admission::expressions::aside;
use crate::write::admission::expressions::variables::ContextAuthorizer;
use crate::write::admission::webhooks::asked::{Asked, Fit, Operation};

/// Refusals in the order in which they came.
#[derive(Default)]
struct Refusals {
    messages: Vec<String>,
    /// True if the first error is about the request, not about a policy's configuration.
    is_invalid: bool,
}

impl Refusals {
    fn add(&mut self, policy: &Policy, binding: Option<&Binding>, message: &str, is_invalid: bool) {
        if policy.fails_open() {
            return;
        }
        let name = &policy.name;
        let message = match binding {
            Some(binding) => format!(
                "policy '{name}' with binding '{}' denied request: {message}",
                binding.name
            ),
            None => format!("policy {name:?} denied request: {message}"),
        };
        self.is_invalid |= is_invalid && self.messages.is_empty();
        self.messages.push(message);
    }

    /// The answer to the client (`Dispatch` of `pkg/admission/plugin/policy/generic/policy_dispatcher.go`).
    fn into_failure(self, asked: &Asked<'_>, object: Option<&dyn Object>) -> Option<Failure> {
        let message = self.messages.first().cloned()?;
        let mut status = Box::new(forbidden(asked, object, String::new()).status());
        status.message = Some(message);
        if self.is_invalid {
            status.reason = Some("Invalid".to_owned());
        }
        let causes = self.messages.into_iter().map(|message| StatusCause {
            message: Some(message),
            ..StatusCause::default()
        });
        status.details.get_or_insert_default().causes = Some(causes.collect());
        Some(Failure::Told { status })
    }
}

/// Applies the policies to an object; does nothing for requests without one.
///
/// # Errors
/// Rejections by policies; 404 for a missing namespace.
pub(in crate::write::admission) async fn mutate(
    asked: &Asked<'_>,
    mut object: Option<&mut Box<dyn Object>>,
    rounds: &mut Rounds,
) -> Result<(), Failure> {
    if asked.operation == Operation::Delete {
        return Ok(());
    }
    let hooks = asked.context.server.policies.mutating.current();
    let mut refusals = Refusals::default();
    let mut all = Vec::new();
    for hook in &hooks.hooks {
        match matched(hook, asked, object.as_deref().map(|object| &**object)).await {
            Ok(matched) => all.extend(matched),
            Err(error) => {
                let message = format!("failed to configure policy: {error}");
                refusals.add(&hook.policy, None, &message, false);
            }
        }
    }
    let mut invocations = Vec::new();
    for own in &all {
        for (binding, params) in &own.bound {
            match params {
                Ok(params) => invocations.extend(params.iter().map(|params| (own, *binding, params.as_ref()))),
                Err(error) => {
                    let message = format!("failed to configure binding: {error}");
                    refusals.add(own.policy, Some(binding), &message, false);
                }
            }
        }
    }
    if !invocations.is_empty() {
        let namespace = namespace(asked)?;
        rounds
            .policies
            .begin(rounds.round, object.as_deref().map(|object| &**object), asked);
        for (own, binding, params) in invocations {
            let invocation = Invocation {
                asked,
                policy: own.policy,
                binding,
                fit: &own.fit,
                params,
                namespace: &namespace,
            };
            invocation.run(object.as_deref_mut(), rounds, &mut refusals).await?;
        }
        rounds.policies.end(object.as_deref().map(|object| &**object));
    }
    match refusals.into_failure(asked, object.as_deref().map(|object| &**object)) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// A policy about to be asked for one binding, with params or without.
struct Invocation<'a> {
    asked: &'a Asked<'a>,
    policy: &'a Policy,
    binding: &'a Binding,
    fit: &'a Fit,
    params: Option<&'a Json>,
    namespace: &'a Json,
}

/// Reason that a mutation is not made.
enum Unmade {
    /// The policy fails, and its failure policy decides.
    Failed(String),
    /// The request fails.
    Fatal(Failure),
}

impl Invocation<'_> {
    /// Identifies the invocation in the reinvocation round.
    fn id(&self) -> String {
        let metadata = self.params.and_then(|params| params.get("metadata"));
        let part = |name: &str| metadata.and_then(|own| own.get(name)?.as_str()).unwrap_or_default();
        let (policy, binding) = (&self.policy.name, &self.binding.name);
        format!("{policy}/{binding}/{}/{}", part("namespace"), part("name"))
    }

    async fn input(&self, object: Option<&dyn Object>) -> Result<Input, Failure> {
        Input::new(self.asked, object, self.fit, self.namespace.clone()).await
    }

    async fn run(
        &self,
        mut object: Option<&mut Box<dyn Object>>,
        rounds: &mut Rounds,
        refusals: &mut Refusals,
    ) -> Result<(), Failure> {
        let policy = self.policy;
        let mut refuse = |message: &str| refusals.add(policy, Some(self.binding), message, true);
        let mut current = self.input(object.as_deref().map(|object| &**object)).await?;
        let meets = self.meets_conditions(&current);
        self.asked.context.in_time()?;
        match meets {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(_) if policy.fails_open() => return Ok(()),
            Err(error) => {
                refuse(&error);
                return Ok(());
            }
        }
        let id = self.id();
        if !rounds.policies.is_due(rounds.round, &id) {
            return Ok(());
        }
        let mut is_changed = false;
        for (manner, expression) in &policy.compiled().mutations {
            let began = Instant::now();
            let patch = self.patch(*manner, expression, &current);
            self.asked.context.in_time()?;
            let taken = match patch {
                Ok(patch) => self.take(*manner, &patch, &current.object, object.as_deref_mut()).await,
                Err(message) => Err(Unmade::Failed(message)),
            };
            self.count(taken.as_ref().err(), began.elapsed());
            match taken {
                Ok(false) => {}
                Ok(true) => {
                    is_changed = true;
                    current = self.input(object.as_deref().map(|object| &**object)).await?;
                }
                Err(Unmade::Failed(message)) => refuse(&message),
                Err(Unmade::Fatal(failure)) => return Err(failure),
            }
        }
        if is_changed {
            rounds.policies.change();
            rounds.changed = true;
        }
        if policy.is_reinvoked() {
            rounds.policies.asked.insert(id);
        }
        Ok(())
    }

    fn count(&self, error: Option<&Unmade>, took: Duration) {
        let error = error.map(|error| match error {
            Unmade::Failed(message) => message.as_str(),
            Unmade::Fatal(_) => "",
        });
        self.asked.context.server.metrics.policies.checked(&Checked {
            policy: &self.policy.name,
            binding: &self.binding.name,
            error,
            action: None,
            took,
        });
    }

    fn meets_conditions(&self, input: &Input) -> Result<bool, String> {
        let compiled = self.policy.compiled();
        let Some(conditions) = &compiled.conditions else {
            return Ok(true);
        };
        let rights = ContextAuthorizer(self.asked.context);
        let hold = || conditions.hold(&Scope::new(compiled, input, self.params, &rights).without_namespace());
        aside(|| with_stack(compiled, hold)).unwrap_or_else(|message| Err(message.to_owned()))
    }

    /// Evaluates a mutation: a configuration or a patch as JSON.
    fn patch(&self, manner: Patch, expression: &Expression, input: &Input) -> Result<Json, String> {
        if let Err(error) = &expression.program {
            return Err(error.clone());
        }
        let compiled = self.policy.compiled();
        let rights = ContextAuthorizer(self.asked.context);
        let run = || {
            let mut left = BUDGET;
            let scope = Scope::new(compiled, input, self.params, &rights);
            let value = scope
                .run(expression, &mut left)
                .map_err(|Exhausted| EXHAUSTED.to_owned())??;
            match manner {
                Patch::Configuration => configuration(&value),
                Patch::Operations => operations(&value),
            }
        };
        aside(|| with_stack(compiled, run)).unwrap_or_else(|message| Err(message.to_owned()))
    }

    /// Changes the object; whether it is another one now.
    async fn take(
        &self,
        manner: Patch,
        patch: &Json,
        shown: &Json,
        object: Option<&mut Box<dyn Object>>,
    ) -> Result<bool, Unmade> {
        let (changed, validation) = match manner {
            Patch::Configuration => (self.set(patch, shown)?, FieldValidation::Ignore),
            Patch::Operations => {
                let mut document = shown.clone();
                match json::apply(&mut document, patch) {
                    Ok(()) => {}
                    // A test that fails leaves the object as it is.
                    Err(error) if error.to_string().ends_with("test failed") => return Ok(false),
                    Err(error) => return Err(Unmade::Failed(format!("JSON Patch: {error}"))),
                }
                (document, FieldValidation::Strict)
            }
        };
        if changed == *shown {
            return Ok(false);
        }
        let Some(object) = object else {
            let message = "the options of a connection cannot be changed";
            return Err(Unmade::Failed(message.to_owned()));
        };
        let taken = self
            .asked
            .take(&changed, self.fit.form.as_ref(), object, validation)
            .await;
        taken.map_err(|failure| match (failure, manner) {
            (Failure::Internal { message }, Patch::Configuration) => Unmade::Failed(message),
            (Failure::Internal { message }, Patch::Operations) => Unmade::Fatal(Failure::Told {
                // Not an error of this server's own.
                status: Box::new(Failure::Internal { message }.status()),
            }),
            (failure, _) => Unmade::Fatal(failure),
        })
    }

    fn set(&self, configuration: &Json, shown: &Json) -> Result<Json, Unmade> {
        let failed = |error: &dyn std::fmt::Display| Unmade::Failed(format!("error applying patch: {error}"));
        let types = self.asked.types(self.fit.form.as_ref());
        let types = types.ok_or_else(|| {
            let kind = &self.asked.kind;
            let slash = if kind.group.is_empty() { "" } else { "/" };
            let kind = format!("{}{slash}{}, Kind={}", kind.group, kind.version, kind.kind);
            failed(&format!(
                "failed to convert patch object to typed object: no corresponding type for {kind}"
            ))
        })?;
        let mut configuration = configuration.clone();
        if let Some(members) = configuration.as_object_mut() {
            for name in ["apiVersion", "kind"] {
                members.extend(shown.get(name).map(|value| (name.to_owned(), value.clone())));
            }
        }
        mutation::set(types, shown, &configuration).map_err(|error| failed(&error))
    }
}

/// JSON of an `Object`.
fn configuration(value: &Value<'_>) -> Result<Json, String> {
    let Value::Object(object) = value else {
        let found = value.type_name();
        return Err(format!(
            "unsupported return type from ApplyConfiguration expression: {found}"
        ));
    };
    named(value)?;
    let mut left = JSON_BYTES;
    object.to_json(&mut left).map_err(|error| error.to_string())
}

/// Objects are where the names of their types say.
fn named(value: &Value<'_>) -> Result<(), String> {
    let Value::Object(object) = value else { return Ok(()) };
    let wrong = object.misnamed();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("type mismatch: {}", wrong.join("\n")))
}

/// JSON of a list of `JSONPatch`.
fn operations(value: &Value<'_>) -> Result<Json, String> {
    const MISMATCH: &str = "type mismatch: JSONPatchType.expression should evaluate to array";
    let Value::List(list) = value else {
        return Err(MISMATCH.to_owned());
    };
    let mut left = JSON_BYTES;
    let operations = list.iter().map(|item| {
        let item = item.map_err(|error| error.to_string())?;
        let Value::Object(patch) = &item else {
            return Err(format!("{MISMATCH} of JSONPatch, got element of {}", item.type_name()));
        };
        let text = |name: &str| patch.field(name).and_then(Value::as_str).unwrap_or_default();
        let mut members = Map::new();
        members.insert("op".to_owned(), text("op").into());
        members.insert("path".to_owned(), text("path").into());
        if !text("from").is_empty() {
            members.insert("from".to_owned(), text("from").into());
        }
        if let Some(value) = patch.field("value") {
            named(value)?;
            let value = value.to_json(&mut left).map_err(|error| {
                format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {error}")
            })?;
            members.insert("value".to_owned(), value);
        }
        Ok(Json::Object(members))
    });
    operations.collect::<Result<_, _>>().map(Json::Array)
}
