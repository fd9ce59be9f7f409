//! Params of policies: objects that their expressions read (`CollectParams` of
//! `pkg/admission/plugin/policy/generic/policy_dispatcher.go`), and authorization to reference
//! them.

use api::kind::Scope;
use api::selector::LabelSelector;
use api::{Invalid, Object, Row};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use serde_json::Value;
use store::{Entry, Key};

use super::definition::Definition;
use super::source::{Binding, Policy};
use crate::authn::identity::{MASTERS, User};
use crate::authz::Resource;
use crate::authz::escalation::is_allowed;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object::{self, Live};
use crate::storage;
use crate::write::admission::webhooks::asked::Asked;
use crate::write::admission::webhooks::source::GROUP;

/// Group, version and name of a kind.
pub(super) fn parts(kind: &ParamKind) -> (&str, &str, &str) {
    let version = kind.api_version.as_deref().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    (group, version, kind.kind.as_deref().unwrap_or_default())
}

/// Kind of a policy's params; `None` if it has none.
///
/// # Errors
/// There is no such kind.
pub(super) fn row(context: &Context, policy: &Policy) -> Result<Option<Row>, String> {
    let Some(kind) = &policy.spec.param_kind else {
        return Ok(None);
    };
    let (group, version, kind) = parts(kind);
    let row = context.table.kinds.find_kind(group, version, kind);
    let missing = || {
        let group = if group.is_empty() {
            format!("/{version}")
        } else {
            format!("{group}/{version}")
        };
        format!("failed to find resource referenced by paramKind: '{group}, Kind={kind}'")
    };
    row.map(Some).ok_or_else(missing)
}

/// Params of a binding; a single `None` for a policy without params.
///
/// # Errors
/// Reason that the binding cannot be used.
pub(super) async fn collect(
    asked: &Asked<'_>,
    row: Option<&Row>,
    binding: &Binding,
) -> Result<Vec<Option<Value>>, String> {
    let (Some(row), Some(reference)) = (row, &binding.params) else {
        return Ok(vec![None]);
    };
    let found = entries(asked, row, reference)?;
    if found.is_empty() && reference.parameter_not_found_action.as_deref() == Some("Deny") {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let lives = asked.context.lives_of(row, found).await;
    let found = lives.map_err(|error| error.to_string())?;
    let read = |live: Live| -> Result<Option<Value>, Failure> {
        let object = object::stored(row, &live)?;
        serde_json::from_slice(&object.to_json()).map_err(Failure::internal)
    };
    let read = found.into_iter().map(read);
    read.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn entries(asked: &Asked<'_>, row: &Row, reference: &ParamRef) -> Result<Vec<Entry>, String> {
    let own = reference.namespace.as_deref().unwrap_or_default();
    let namespace = match row.scope {
        Scope::Cluster if own.is_empty() => "",
        Scope::Cluster => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
        Scope::Namespaced if !own.is_empty() => own,
        Scope::Namespaced if asked.namespace.is_empty() => {
            let error = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Err(error.to_owned());
        }
        Scope::Namespaced => asked.namespace.as_str(),
    };
    let store = asked.context.store();
    let name = reference.name.as_deref().filter(|name| !name.is_empty());
    match (name, &reference.selector) {
        (Some(_), Some(_)) => Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned()),
        (Some(name), None) => {
            let key = storage::key(row, namespace, name);
            Ok(key.and_then(|key| store.get(&key)).into_iter().collect())
        }
        (None, Some(selector)) => {
            let selector = LabelSelector::of(Some(selector)).map_err(|error| error.to_string())?;
            let prefix = storage::prefix(row, namespace);
            Ok(store.select(&prefix, |entry| selector.matches(&entry.attributes.labels)))
        }
        (None, None) => Err("one of name or selector must be provided".to_owned()),
    }
}

/// Rejects a policy or a binding whose params its writer may not read
/// (`pkg/registry/admissionregistration/{validating,mutating}admissionpolicy{,binding}/authz.go`).
pub(crate) fn unreadable(context: &Context, new: &dyn Object, old: Option<&dyn Object>) -> Vec<Invalid> {
    if context.user.is_in(MASTERS) {
        return Vec::new();
    }
    if let Some(named) = Named::of(new) {
        let is_same = old.and_then(Named::of).is_some_and(|old| old == named);
        let kind = named.0.filter(|_| !is_same);
        return kind.and_then(|kind| of_policy(context, kind)).into_iter().collect();
    }
    let Some(bond) = Bond::of(new) else { return Vec::new() };
    let is_same = old.and_then(Bond::of).is_some_and(|old| old == bond);
    let reference = bond.reference.filter(|_| !is_same);
    reference
        .and_then(|reference| of_binding(context, &bond, reference))
        .into_iter()
        .collect()
}

/// The kind of params that a policy names.
#[derive(PartialEq)]
struct Named<'a>(Option<&'a ParamKind>);

impl<'a> Named<'a> {
    /// Parameter kind of a policy; `None` for other objects.
    fn of(object: &'a dyn Object) -> Option<Self> {
        let object = object.as_any();
        if let Some(policy) = object.downcast_ref::<ValidatingAdmissionPolicy>() {
            return Some(Self(policy.spec.as_ref().and_then(|spec| spec.param_kind.as_ref())));
        }
        let policy = object.downcast_ref::<MutatingAdmissionPolicy>()?;
        Some(Self(policy.spec.as_ref().and_then(|spec| spec.param_kind.as_ref())))
    }
}

/// Params that a binding gives to its policy.
#[derive(PartialEq)]
struct Bond<'a> {
    /// Plural of the policy's kind.
    plural: &'static str,
    policy: &'a str,
    reference: Option<&'a ParamRef>,
}

impl<'a> Bond<'a> {
    /// Bond of a binding; `None` for other objects.
    fn of(object: &'a dyn Object) -> Option<Self> {
        let object = object.as_any();
        if let Some(binding) = object.downcast_ref::<ValidatingAdmissionPolicyBinding>() {
            return Some(Self {
                plural: "validatingadmissionpolicies",
                policy: &binding.spec.policy_name,
                reference: binding.spec.param_ref.as_ref(),
            });
        }
        let binding = object.downcast_ref::<MutatingAdmissionPolicyBinding>()?;
        let spec = binding.spec.as_ref()?;
        Some(Self {
            plural: "mutatingadmissionpolicies",
            policy: spec.policy_name.as_deref().unwrap_or_default(),
            reference: spec.param_ref.as_ref(),
        })
    }
}

fn of_policy(context: &Context, kind: &ParamKind) -> Option<Invalid> {
    let (group, version, name) = parts(kind);
    let row = context.table.kinds.find_kind(group, version, name);
    let resource = Resource {
        group,
        resource: row.as_ref().map_or("*", |row| row.plural),
        namespace: "*",
        name: "*",
        ..Resource::default()
    };
    if is_allowed(context, "get", resource) {
        return None;
    }
    let (user, version) = (shown(&context.user), kind.api_version.as_deref().unwrap_or_default());
    let detail = format!(
        "user {user} must have \"get\" permission on all objects of the referenced paramKind (kind={name}, \
         apiVersion={version})"
    );
    Some(Invalid::forbidden("spec.paramKind", detail))
}

fn of_binding(context: &Context, bond: &Bond<'_>, reference: &ParamRef) -> Option<Invalid> {
    let policy = bond.policy;
    let key = Key::new(GROUP, bond.plural, "", policy).ok();
    let entry = key.and_then(|key| context.store().get(&key));
    let found = entry.and_then(|entry| serde_json::from_slice::<Definition>(&entry.bytes).ok());
    let kind = found.as_ref().and_then(|policy| policy.spec.param_kind.clone());
    let (group, version, name) = kind.as_ref().map_or(("*", "*", "*"), parts);
    let row = context.table.kinds.find_kind(group, version, name);
    let object = reference.name.as_deref().unwrap_or_default();
    let verb = if object.is_empty() { "list" } else { "get" };
    let resource = Resource {
        group,
        resource: row.as_ref().map_or("*", |row| row.plural),
        namespace: reference.namespace.as_deref().unwrap_or_default(),
        name: object,
        ..Resource::default()
    };
    if is_allowed(context, verb, resource) {
        return None;
    }
    let user = shown(&context.user);
    let everywhere = format!("user {user} does not have \"{verb}\" permission for all groups, versions and resources");
    let detail = if found.is_none() {
        format!("unable to get policy {policy} to determine minimum required permissions and {everywhere}")
    } else if let (Some(_), None) = (&kind, &row) {
        let shown = format!("&ParamKind{{APIVersion:{group}/{version},Kind:{name},}}");
        format!("unable to resolve paramKind {shown} to determine minimum required permissions and {everywhere}")
    } else {
        // Upstream swaps the two values for mutating policies.
        let (user, verb) = if bond.plural == "mutatingadmissionpolicies" {
            (verb, user.as_str())
        } else {
            (user.as_str(), verb)
        };
        format!("user {user} does not have \"{verb}\" permission on the object referenced by paramRef")
    };
    Some(Invalid::forbidden("spec.paramRef", detail))
}

/// A user as Go prints the structure.
fn shown(user: &User) -> String {
    format!("&{{{} {} [{}] map[]}}", user.name, user.uid, user.groups.join(" "))
}
