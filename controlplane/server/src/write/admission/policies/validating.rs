//! Policies that validate (`pkg/admission/plugin/policy/validating`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use api::{Object, go_json};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use serde::Serialize;
use serde_json::Value;

use super::evaluate::{self, Annotation, Decision};
use super::scope::Input;
use super::source::{Binding, Hook, Policy};
use super::{forbidden, matched, namespace};
use crate::ops::metrics::Checked;
use crate::request::failure::Failure;
use crate::write::admission::expressions::aside;
use crate::write::admission::webhooks::asked::Asked;

/// Longest value of an annotation in bytes (`maxAuditAnnotationValueLength`).
const LONGEST_VALUE: usize = 10 * 1024;

/// Reason that a request is refused.
struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Option<String>,
}

impl Denial {
    /// The answer to the client: that of admission, with the reason of the validation.
    fn into_failure(self, asked: &Asked<'_>, object: Option<&dyn Object>) -> Failure {
        let Self { policy, message, .. } = self;
        let message = match self.binding {
            Some(binding) => {
                format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}")
            }
            None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {message}"),
        };
        let mut status = Box::new(forbidden(asked, object, message.clone()).status());
        let reason = self.reason.filter(|reason| !reason.is_empty());
        let reason = reason.unwrap_or_else(|| "Invalid".to_owned());
        status.code = Some(match reason.as_str() {
            "Unauthorized" => 401,
            "Forbidden" => 403,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        });
        status.reason = Some(reason);
        let causes = &mut status.details.get_or_insert_default().causes;
        causes.get_or_insert_default().push(StatusCause {
            message: Some(message),
            ..StatusCause::default()
        });
        Failure::Told { status }
    }
}

/// Evaluates the validating policies for a request.
///
/// # Errors
/// The first rejection by a policy; 404 for a missing namespace.
pub(in crate::write::admission) async fn validate(
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<(), Failure> {
    let mut review = Review {
        asked,
        object,
        denial: None,
        namespace: None,
    };
    let hooks = asked.context.server.policies.validating.current();
    for hook in &hooks.hooks {
        review.ask(hook).await?;
    }
    match review.denial {
        Some(denial) => Err(denial.into_failure(asked, object)),
        None => Ok(()),
    }
}

/// Request under evaluation.
struct Review<'a> {
    asked: &'a Asked<'a>,
    object: Option<&'a dyn Object>,
    /// The first one: it is the answer.
    denial: Option<Denial>,
    /// The namespace as expressions see it, once it was read.
    namespace: Option<Value>,
}

impl Review<'_> {
    async fn ask(&mut self, hook: &Hook) -> Result<(), Failure> {
        let policy = &*hook.policy;
        let matched = match matched(hook, self.asked, self.object).await {
            Ok(None) => return Ok(()),
            Ok(Some(matched)) => matched,
            Err(error) => {
                self.misconfigured(policy, None, &error);
                return Ok(());
            }
        };
        let mut input = None;
        let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (binding, params) in &matched.bound {
            let params = match params {
                Ok(params) if params.is_empty() => continue,
                Ok(params) => params,
                Err(error) => {
                    self.misconfigured(policy, Some(binding), error);
                    continue;
                }
            };
            let input = match &mut input {
                Some(input) => &*input,
                none => {
                    let namespace = self.namespace()?;
                    match Input::new(self.asked, self.object, &matched.fit, namespace).await {
                        Ok(made) => none.insert(made),
                        Err(error) => {
                            let error = format!("failed to convert object version: {error}");
                            self.misconfigured(policy, Some(binding), &error);
                            continue;
                        }
                    }
                }
            };
            for params in params {
                let context = self.asked.context;
                let outcome = aside(|| evaluate::evaluate(policy, input, params.as_ref(), context));
                // The budget is of each evaluation; the deadline is of all of them.
                context.in_time()?;
                for (index, (decision, took)) in outcome.decisions.into_iter().enumerate() {
                    self.act(policy, binding, index, decision, took);
                }
                for annotation in outcome.annotations {
                    self.note(policy, binding, annotation, &mut annotations);
                }
            }
        }
        let published = annotations
            .into_iter()
            .map(|(key, values)| (Cow::Owned(format!("{}/{key}", policy.name)), values.join(", ")));
        self.asked.context.annotations.extend(published);
        Ok(())
    }

    /// Applies the failure policy when the policy cannot be evaluated.
    fn misconfigured(&mut self, policy: &Policy, binding: Option<&Binding>, error: &str) {
        if policy.fails_open() {
            return;
        }
        let of = if binding.is_some() { "binding" } else { "policy" };
        self.deny(policy, binding, format!("failed to configure {of}: {error}"), None);
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, message: String, reason: Option<String>) {
        self.denial.get_or_insert_with(|| Denial {
            policy: policy.name.clone(),
            binding: binding.map(|binding| binding.name.clone()),
            message,
            reason,
        });
    }

    fn namespace(&mut self) -> Result<Value, Failure> {
        if self.namespace.is_none() {
            self.namespace = Some(namespace(self.asked)?);
        }
        Ok(self.namespace.clone().unwrap_or_default())
    }

    /// Takes the binding's actions for a failed validation.
    fn act(&mut self, policy: &Policy, binding: &Binding, index: usize, decision: Decision, took: Duration) {
        let context = self.asked.context;
        let (message, reason) = match decision {
            Decision::Admit => return,
            Decision::Ignored(message) => {
                self.count(policy, binding, &message, "allow", took);
                return;
            }
            Decision::Deny { message, reason } => (message, reason),
        };
        for action in &binding.actions {
            let counted = match action.as_str() {
                "Deny" => "deny",
                "Warn" => "warn",
                _ => "audit",
            };
            self.count(policy, binding, &message, counted, took);
            match action.as_str() {
                "Deny" => self.deny(policy, Some(binding), message.clone(), reason.clone()),
                "Warn" => context.warnings.extend([format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                    policy.name, binding.name
                )]),
                "Audit" => context.annotations.extend([(
                    Cow::Borrowed("validation.policy.admission.k8s.io/validation_failure"),
                    audited(policy, binding, index, &message),
                )]),
                _ => {}
            }
        }
    }

    fn note(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        annotation: Annotation,
        noted: &mut BTreeMap<String, Vec<String>>,
    ) {
        match annotation {
            Annotation::Publish { key, mut value } => {
                value.truncate(value.floor_char_boundary(LONGEST_VALUE));
                let values = noted.entry(key).or_default();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            Annotation::Failed { message, took } => {
                self.count(policy, binding, &message, "deny", took);
                self.deny(policy, Some(binding), message, None);
            }
        }
    }

    fn count(&self, policy: &Policy, binding: &Binding, error: &str, action: &'static str, took: Duration) {
        self.asked.context.server.metrics.policies.checked(&Checked {
            policy: &policy.name,
            binding: &binding.name,
            error: Some(error),
            action: Some(action),
            took,
        });
    }
}

/// A failure as the audit log has it (`ValidationFailureValue`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failed<'a> {
    message: &'a str,
    policy: &'a str,
    binding: &'a str,
    expression_index: usize,
    validation_actions: &'a [String],
}

fn audited(policy: &Policy, binding: &Binding, index: usize, message: &str) -> String {
    let failed = Failed {
        message,
        policy: &policy.name,
        binding: &binding.name,
        expression_index: index,
        validation_actions: &binding.actions,
    };
    go_json::text(go_json::encode(&[failed]))
}
