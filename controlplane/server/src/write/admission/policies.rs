//! `ValidatingAdmissionPolicies` and `MutatingAdmissionPolicies`: expressions that decide about requests and change
//! objects, where bindings make them count (`pkg/admission/plugin/policy` of `k8s.io/apiserver`).
//!
//! 1. [`source`] keeps all policies that have bindings, as the store has them ([`definition`]); an expression is
//!    compiled ([`compiled`]) when a request comes that its policy is for.
//! 2. A request that the policy and a binding match is asked about once for each of the binding's [`params`].
//! 3. [`validating`]: [`evaluate`] answers what each validation says of it; the binding's actions decide what becomes of
//!    a failure. [`mutating`]: each mutation sees what those before made of the object.
//!
//! [`type_check`] warns of expressions that do not fit what their policy matches.
//!
//! Policies are not applied to policies and bindings, so that none can keep itself from being
//! removed, nor to reviews of access and identity.

mod compiled;
mod definition;
mod evaluate;
mod mutating;
mod params;
mod scope;
pub(crate) mod source;
mod type_check;
mod validating;

use api::Object;
use serde_json::{Map, Value, json};

pub(crate) use compiled::faults;
pub(crate) use params::unreadable;
pub(crate) use type_check::run;
pub(super) use {mutating::mutate, validating::validate};

use super::webhooks::asked::{Asked, Fit};
use super::webhooks::matching::{self, by_rules, fit};
use super::webhooks::source::GROUP;
use crate::request::context::Context;
use crate::request::failure::Failure;
use source::{Binding, Constraints, Hook, Policy};

/// Kinds in their group that no policy sees.
const EXEMPT: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// True if policies may see a request (`pkg/kubeapiserver/admission/exclusion/resources.go`).
fn are_shown(context: &Context) -> bool {
    let info = &context.info;
    match info.group.as_str() {
        GROUP => !EXEMPT.contains(&info.resource.as_str()),
        "authentication.k8s.io" | "authorization.k8s.io" => false,
        _ => true,
    }
}

/// True if there are policies that may decide about a request.
pub(crate) fn decide(context: &Context) -> bool {
    let is_asked = !context.server.policies.validating.current().hooks.is_empty();
    is_asked && are_shown(context) && context.server.options.admits("ValidatingAdmissionPolicy")
}

/// True if there are policies that may change the object of a request.
pub(super) fn change(context: &Context) -> bool {
    let is_asked = !context.server.policies.mutating.current().hooks.is_empty();
    is_asked && are_shown(context) && context.server.options.admits("MutatingAdmissionPolicy")
}

/// A policy that a request is for.
struct Matched<'h> {
    policy: &'h Policy,
    fit: Fit,
    /// The bindings that it is for, each with the params to ask with, or the reason that it cannot be used.
    bound: Vec<(&'h Binding, Result<Lent, String>)>,
}

/// Params for which a policy is evaluated, one after the other; `None` for evaluation without
/// params.
type Lent = Vec<Option<Value>>;

/// A policy with those of its bindings that a request is for; nothing if it is not for the policy.
///
/// # Errors
/// Reason that the policy cannot be asked.
async fn matched<'h>(
    hook: &'h Hook,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<Option<Matched<'h>>, String> {
    let policy = &*hook.policy;
    let fits = |constraints: &Constraints| fitted(constraints, asked, object).map_err(|error| error.to_string());
    let Some(fit) = fits(&policy.constraints)? else {
        return Ok(None);
    };
    let row = params::row(asked.context, policy)?;
    let mut bound = Vec::new();
    for binding in &hook.bindings {
        let params = match binding.constraints.as_ref().map(fits) {
            Some(Ok(None)) => continue,
            Some(Err(error)) => Err(error),
            None | Some(Ok(Some(_))) => params::collect(asked, row.as_ref(), binding).await,
        };
        bound.push((binding, params));
    }
    Ok(Some(Matched { policy, fit, bound }))
}

fn fitted(constraints: &Constraints, asked: &Asked<'_>, object: Option<&dyn Object>) -> Result<Option<Fit>, Failure> {
    let policy = constraints.policy.as_deref();
    fit(&constraints.selectors, asked, object, || {
        if by_rules(constraints.excluded(), policy, asked).is_some() {
            None
        } else if constraints.is_of_all() {
            Some(Fit::own(asked))
        } else {
            by_rules(constraints.included(), policy, asked)
        }
    })
}

/// Namespace of a request as a CEL value; null for cluster-scoped requests.
///
/// # Errors
/// 404
fn namespace(asked: &Asked<'_>) -> Result<Value, Failure> {
    let is_namespace = asked.kind.group.is_empty() && asked.kind.version == "v1" && asked.kind.kind == "Namespace";
    if is_namespace || asked.namespace.is_empty() {
        return Ok(Value::Null);
    }
    shown_namespace(&matching::namespace(asked)?)
}

/// 403 about the object of a request (`NewForbidden` of `pkg/admission/errors.go`).
fn forbidden(asked: &Asked<'_>, object: Option<&dyn Object>, because: String) -> Failure {
    let name = match object {
        _ if !asked.name.is_empty() => asked.name.as_str(),
        Some(object) => super::shown_name(object),
        None => "Unknown",
    };
    asked.context.forbidden(name, because)
}

/// `CreateNamespaceObject` of `pkg/admission/plugin/cel/condition.go`: omits owners and managers.
fn shown_namespace(entry: &store::Entry) -> Result<Value, Failure> {
    let row = api::find("", "v1", "namespaces").ok_or(Failure::NoSuchResource)?;
    let mut object = crate::request::object::stored(row, entry)?;
    let metadata = object.metadata_mut();
    metadata.owner_references = None;
    metadata.managed_fields = None;
    let mut members: Map<String, Value> = serde_json::from_slice(&object.to_json()).map_err(Failure::internal)?;
    members.remove("apiVersion");
    members.remove("kind");
    Ok(json!(members))
}
