//! `ValidatingAdmissionPolicies`: expressions that decide about requests, where bindings make them count
//! (`pkg/admission/plugin/policy/validating` of `k8s.io/apiserver`).
//!
//! 1. [`source`] keeps all policies that have bindings; an expression is compiled ([`compiled`]) when a request comes
//!    that its policy is for.
//! 2. A request that the policy and a binding match is asked about once for each of the binding's [`params`].
//! 3. [`evaluate`] answers what each validation says of it; the binding's actions decide what becomes of a failure.
//!
//! No policy sees policies and bindings, lest one keeps itself from being removed, nor reviews of access and identity.

mod compiled;
mod evaluate;
mod params;
mod source;

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use serde::Serialize;
use serde_json::{Map, Value, json};
use store::Key;

pub(crate) use compiled::faults;
pub(crate) use params::unreadable;
pub(crate) use source::Policies;

use super::webhooks::Asked;
use super::webhooks::matching::{Fit, Selectors, by_rules, fit};
use super::webhooks::source::GROUP;
use crate::context::Context;
use crate::failure::{Failure, GroupResource, Target};
use evaluate::{Annotation, Decision, Input};
use source::{Binding, Constraints, Policy};

/// Longest value of an annotation in bytes (`maxAuditAnnotationValueLength`).
const LONGEST_VALUE: usize = 10 * 1024;

/// Kinds in their group that no policy sees.
const EXEMPT: [&str; 2] = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];

/// Tells whether there are policies that may decide about a request.
pub(crate) fn decide(context: &Context) -> bool {
    if context.server.policies.current().is_empty() {
        return false;
    }
    let info = &context.info;
    match info.group.as_str() {
        GROUP => !EXEMPT.contains(&info.resource.as_str()),
        // `pkg/kubeapiserver/admission/exclusion/resources.go`
        "authentication.k8s.io" | "authorization.k8s.io" => false,
        _ => true,
    }
}

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
        let name = match object {
            _ if !asked.name.is_empty() => asked.name.as_str(),
            Some(object) => super::shown_name(object),
            None => "Unknown",
        };
        let forbidden = Failure::Forbidden {
            target: Some(asked.context.target(name)),
            because: message.clone(),
            causes: Vec::new(),
        };
        let mut status = Box::new(forbidden.status());
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

/// Asks the policies about what is about to be done.
///
/// # Errors
/// What the first of them says that refuses; 404 for a namespace that is not there.
pub(super) async fn validate(asked: &Asked<'_>, object: Option<&dyn Object>) -> Result<(), Failure> {
    if !decide(asked.context) {
        return Ok(());
    }
    let mut review = Review {
        asked,
        object,
        denial: None,
        namespace: None,
    };
    for hook in asked.context.server.policies.current().iter() {
        review.ask(&hook.policy, &hook.bindings).await?;
    }
    match review.denial {
        Some(denial) => Err(denial.into_failure(asked, object)),
        None => Ok(()),
    }
}

/// A request on its way past the policies.
struct Review<'a> {
    asked: &'a Asked<'a>,
    object: Option<&'a dyn Object>,
    /// The first one: it is the answer.
    denial: Option<Denial>,
    /// The namespace as expressions see it, once it was read.
    namespace: Option<Value>,
}

impl Review<'_> {
    async fn ask(&mut self, policy: &Policy, bindings: &[Binding]) -> Result<(), Failure> {
        let matched = match self.fit(&policy.constraints) {
            Ok(None) => return Ok(()),
            Ok(Some(fit)) => fit,
            Err(error) => {
                self.misconfigured(policy, None, &error);
                return Ok(());
            }
        };
        let row = match params::row(self.asked.context, policy) {
            Ok(row) => row,
            Err(error) => {
                self.misconfigured(policy, None, &error);
                return Ok(());
            }
        };
        let mut input = None;
        let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for binding in bindings {
            let fits = match &binding.constraints {
                Some(constraints) => self.fit(constraints).map(|fit| fit.is_some()),
                None => Ok(true),
            };
            let params = match fits {
                Ok(true) => params::collect(self.asked, row.as_ref(), binding).await,
                Ok(false) => continue,
                Err(error) => Err(error.to_string()),
            };
            let params = match params {
                Ok(params) if params.is_empty() => continue,
                Ok(params) => params,
                Err(error) => {
                    self.misconfigured(policy, Some(binding), &error);
                    continue;
                }
            };
            let namespace = self.namespace()?;
            if input.is_none() {
                match Input::new(self.asked, self.object, &matched, namespace).await {
                    Ok(made) => input = Some(made),
                    Err(error) => {
                        let error = format!("failed to convert object version: {error}");
                        self.misconfigured(policy, Some(binding), &error);
                        continue;
                    }
                }
            }
            let Some(input) = &input else { continue };
            for params in &params {
                let outcome = evaluate::evaluate(policy, input, params.as_ref(), self.asked.context);
                for (index, decision) in outcome.decisions.into_iter().enumerate() {
                    self.act(policy, binding, index, decision);
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

    fn fit(&self, constraints: &Constraints) -> Result<Option<Fit>, Failure> {
        let (asked, policy) = (self.asked, constraints.policy.as_deref());
        let selectors: &Selectors = &constraints.selectors;
        fit(selectors, asked, self.object, || {
            if by_rules(constraints.excluded(), policy, asked).is_some() {
                None
            } else if constraints.is_of_all() {
                Some(Fit::own(asked))
            } else {
                by_rules(constraints.included(), policy, asked)
            }
        })
    }

    /// What cannot be asked counts as the policy says.
    fn misconfigured(&mut self, policy: &Policy, binding: Option<&Binding>, error: &dyn std::fmt::Display) {
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

    /// The namespace of the request; nothing for what is in none.
    fn namespace(&mut self) -> Result<Value, Failure> {
        if let Some(known) = &self.namespace {
            return Ok(known.clone());
        }
        let asked = self.asked;
        let is_namespace = asked.kind.group.is_empty() && asked.kind.version == "v1" && asked.kind.kind == "Namespace";
        let mut found = Value::Null;
        if !is_namespace && !asked.namespace.is_empty() {
            let key = Key::new("", "namespaces", "", &asked.namespace).ok();
            let entry = key.and_then(|key| asked.context.store().get(&key));
            let entry = entry.ok_or_else(|| Failure::NotFound {
                target: Target {
                    resource: GroupResource::new("", "namespaces"),
                    name: asked.namespace.clone(),
                },
            })?;
            found = shown_namespace(&entry)?;
        }
        Ok(self.namespace.insert(found).clone())
    }

    /// Does what the binding wants done about a validation that failed.
    fn act(&mut self, policy: &Policy, binding: &Binding, index: usize, decision: Decision) {
        let Decision::Deny { message, reason } = decision else {
            return;
        };
        let context = self.asked.context;
        for action in &binding.actions {
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
            Annotation::Failed(message) => self.deny(policy, Some(binding), message, None),
        }
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
    // What has only texts serializes.
    serde_json::to_string(&[failed]).unwrap_or_default()
}

/// `CreateNamespaceObject` of `pkg/admission/plugin/cel/condition.go`: neither owners nor managers are shown.
fn shown_namespace(entry: &store::Entry) -> Result<Value, Failure> {
    let row = api::find("", "v1", "namespaces").ok_or(Failure::NoSuchResource)?;
    let mut object = crate::object::stored(row, entry)?;
    let metadata = object.metadata_mut();
    metadata.owner_references = None;
    metadata.managed_fields = None;
    let mut members: Map<String, Value> = serde_json::from_slice(&object.to_json()).map_err(Failure::internal)?;
    members.remove("apiVersion");
    members.remove("kind");
    Ok(json!(members))
}
