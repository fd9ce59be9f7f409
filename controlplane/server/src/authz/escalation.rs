//! Prevention of privilege escalation: the writer of a role must hold its rules (or may
//! `escalate`), and the writer of a binding must hold the rules of its role (or may `bind` that
//! role).

use api::Object;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef};

use super::{Attributes, Resource, aggregate, index, rules};
use crate::authn::identity::MASTERS;
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target};

/// Rights that an object would grant.
enum Gift<'a> {
    Rules(&'a [PolicyRule]),
    Role(&'a RoleRef),
}

fn gift(object: &dyn Object) -> Option<Gift<'_>> {
    let any = object.as_any();
    if let Some(role) = any.downcast_ref::<ClusterRole>() {
        return Some(Gift::Rules(role.rules.as_deref().unwrap_or_default()));
    }
    if let Some(role) = any.downcast_ref::<Role>() {
        return Some(Gift::Rules(role.rules.as_deref().unwrap_or_default()));
    }
    if let Some(binding) = any.downcast_ref::<ClusterRoleBinding>() {
        return Some(Gift::Role(&binding.role_ref));
    }
    any.downcast_ref::<RoleBinding>()
        .map(|binding| Gift::Role(&binding.role_ref))
}

fn is_aggregated(object: &dyn Object) -> bool {
    let role = object.as_any().downcast_ref::<ClusterRole>();
    let aggregation = role.and_then(|role| role.aggregation_rule.as_ref());
    aggregation.is_some_and(|rule| rule.cluster_role_selectors.as_ref().is_some_and(|own| !own.is_empty()))
}

/// Checks a write of a role or a binding. Objects of other kinds pass.
///
/// # Errors
/// 403, and 404 for a binding to a role that does not exist
pub(crate) fn check(context: &Context, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Failure> {
    let Some(gift) = gift(new) else { return Ok(()) };
    if context.user.is_in(MASTERS) || old.is_some_and(|old| is_letting_go(context, new, old)) {
        return Ok(());
    }
    let name = new.metadata().name.as_deref().unwrap_or_default();
    match gift {
        Gift::Rules(rules) => {
            let may = Resource {
                group: &context.info.group,
                resource: &context.info.resource,
                namespace: &context.info.namespace,
                name: &context.info.name,
                ..Resource::default()
            };
            if is_allowed(context, "escalate", may) {
                return Ok(());
            }
            confirm(context, name, rules)?;
            if is_aggregated(new) || old.is_some_and(is_aggregated) {
                confirm(context, name, &everything()).map_err(|_failure| {
                    let because = "must have cluster-admin privileges to use the aggregationRule";
                    context.forbidden(name, because)
                })?;
            }
            Ok(())
        }
        Gift::Role(role) => {
            let plural = if role.kind == "Role" { "roles" } else { "clusterroles" };
            let namespace = new.metadata().namespace.as_deref().unwrap_or_default();
            let may = Resource {
                group: role.api_group.as_deref().unwrap_or_default(),
                resource: plural,
                namespace,
                name: &role.name,
                ..Resource::default()
            };
            if is_allowed(context, "bind", may) {
                return Ok(());
            }
            let rules = context.server.authorizer.role(role, namespace);
            let rules = rules.ok_or_else(|| Failure::NotFound {
                target: Target {
                    resource: GroupResource::new(index::GROUP, plural),
                    name: role.name.clone(),
                },
            })?;
            confirm(context, name, &rules)
        }
    }
}

/// True if the user of a request may do something to a resource.
pub(crate) fn is_allowed(context: &Context, verb: &str, resource: Resource<'_>) -> bool {
    let attributes = Attributes::resource(verb, resource);
    context
        .server
        .authorizer
        .decide(&context.user, &attributes)
        .is_allowed()
}

/// True if only owners and finalizers change: the garbage collector must be able to remove any
/// object.
fn is_letting_go(context: &Context, new: &dyn Object, old: &dyn Object) -> bool {
    let mut new = new.clone_box();
    let (metadata, kept) = (new.metadata_mut(), old.metadata());
    metadata.owner_references.clone_from(&kept.owner_references);
    metadata.finalizers.clone_from(&kept.finalizers);
    metadata.managed_fields.clone_from(&kept.managed_fields);
    metadata.resource_version.clone_from(&kept.resource_version);
    context.registration.same(&*new, old)
}

fn everything() -> [PolicyRule; 2] {
    let all = || Some(vec!["*".to_owned()]);
    let rule = || PolicyRule {
        verbs: vec!["*".to_owned()],
        ..PolicyRule::default()
    };
    [
        PolicyRule {
            api_groups: all(),
            resources: all(),
            ..rule()
        },
        PolicyRule {
            non_resource_urls: all(),
            ..rule()
        },
    ]
}

/// The caller must hold all of the rules.
fn confirm(context: &Context, name: &str, wanted: &[PolicyRule]) -> Result<(), Failure> {
    let held = context.server.authorizer.rules(&context.user, &context.info.namespace);
    let missing = rules::missing(&held.rules, wanted).map_err(|_too_many| {
        Failure::bad_request(
            "the rules allow too many combinations of groups, resources, names and verbs to be checked",
        )
    })?;
    if missing.is_empty() {
        return Ok(());
    }
    let (user, groups) = (&context.user.name, rules::quoted(&context.user.groups));
    let missing = rules::describe(&missing);
    let mut because = format!(
        "user {user:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{missing}"
    );
    if !held.problems.is_empty() {
        because.push_str("; resolution errors: [");
        because.push_str(&aggregate(&held.problems));
        because.push(']');
    }
    Err(context.forbidden(name, because))
}
