//! Which webhooks a request is for (`pkg/admission/plugin/webhook/predicates`).

use std::collections::BTreeMap;

use api::{Object, Registration};
use expressions::Question;
use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use serde_json::Value;
use store::Key;

use super::asked::{Asked, GroupVersionKind, GroupVersionResource, Operation};
use super::review::request;
use super::source::Hook;
use crate::admission::expressions::{Rights, Variables};
use crate::failure::{Failure, GroupResource, Target};

/// A webhook that is to be called, and the form in which it wants the object.
pub(super) struct Invocation<'a> {
    pub(super) hook: &'a Hook,
    pub(super) kind: GroupVersionKind,
    pub(super) resource: GroupVersionResource,
    /// Another form than the request's own.
    pub(super) form: Option<&'static Registration>,
}

type Labels = BTreeMap<String, String>;

/// Tells whether a webhook is to be called.
///
/// # Errors
/// 404 for a namespace that is not there, 500
pub(super) fn invocation<'a>(
    hook: &'a Hook,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<Option<Invocation<'a>>, Failure> {
    // What goes wrong is told only of a webhook whose rules fit.
    let within = in_namespace(hook, asked, object);
    if matches!(within, Ok(false)) {
        return Ok(None);
    }
    let chosen = is_chosen(hook, asked, object);
    if matches!(chosen, Ok(false)) {
        return Ok(None);
    }
    let Some(invocation) = by_rules(hook, asked) else {
        return Ok(None);
    };
    within?;
    chosen?;
    Ok(meets_conditions(&invocation, asked, object)?.then_some(invocation))
}

/// Asks the match conditions; where they fail, the failure policy decides.
fn meets_conditions(
    invocation: &Invocation<'_>,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<bool, Failure> {
    let hook = invocation.hook;
    let Some(conditions) = hook.conditions() else {
        return Ok(true);
    };
    let shown = |object: Option<&dyn Object>| -> Result<Value, Failure> {
        let Some(object) = object else { return Ok(Value::Null) };
        serde_json::from_slice(&asked.shown(object, invocation.form)?).map_err(Failure::internal)
    };
    let resource = Question {
        group: asked.resource.group.clone(),
        resource: asked.resource.resource.clone(),
        subresource: asked.context.info.subresource.clone(),
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
        ..Question::default()
    };
    let sent = match &asked.connection {
        Some(options) => options.clone(),
        None => shown(object)?,
    };
    let variables = Variables {
        object: &sent,
        old: &shown(asked.old)?,
        request: &request(asked, invocation),
        namespace: &Value::Null,
        rights: &Rights(asked.context),
        resource: &resource,
    };
    match conditions.hold(&variables) {
        Ok(holds) => Ok(holds),
        Err(_) if hook.fails_open() => Ok(false),
        Err(error) => {
            tracing::warn!(webhook = hook.name(), error, "match conditions failed");
            Err(Failure::Forbidden {
                target: Some(Target {
                    resource: asked.context.resource(),
                    name: asked.name.clone(),
                }),
                because: error,
                causes: Vec::new(),
            })
        }
    }
}

fn by_rules<'a>(hook: &'a Hook, asked: &Asked<'_>) -> Option<Invocation<'a>> {
    let rules = || hook.webhook.rules.iter().flatten();
    if rules().any(|rule| fits(rule, asked, &asked.resource)) {
        return Some(Invocation {
            hook,
            kind: asked.kind.clone(),
            resource: asked.resource.clone(),
            form: None,
        });
    }
    if hook.webhook.match_policy.as_deref() != Some("Equivalent") {
        return None;
    }
    rules().find_map(|rule| {
        let mut others = equivalents(asked);
        others.find_map(|row| {
            let resource = GroupVersionResource {
                group: row.group.to_owned(),
                version: row.version.to_owned(),
                resource: row.plural.to_owned(),
            };
            let own = asked.kind == GroupVersionKind::of(&asked.context.registration);
            fits(rule, asked, &resource).then(|| Invocation {
                hook,
                resource,
                // What is sent to a subresource has one form only.
                kind: if own {
                    GroupVersionKind::of(row)
                } else {
                    asked.kind.clone()
                },
                form: own.then_some(row),
            })
        })
    })
}

/// The other groups and versions in which the same objects are served.
fn equivalents(asked: &Asked<'_>) -> impl Iterator<Item = &'static Registration> {
    let own = &asked.context.registration;
    let (storage, group, version) = (own.storage, own.group, own.version);
    let rows = api::KINDS.iter();
    rows.filter(move |row| row.storage == storage && (row.group, row.version) != (group, version))
}

fn fits(rule: &RuleWithOperations, asked: &Asked<'_>, resource: &GroupVersionResource) -> bool {
    let has = |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|own| own == "*" || own == wanted);
    let subresource = asked.context.info.subresource.as_str();
    let named = |own: &String| {
        let (plural, part) = own.split_once('/').unwrap_or((own, ""));
        (plural == "*" || plural == resource.resource) && (part == "*" || part == subresource)
    };
    in_scope(rule.scope.as_deref(), asked, resource)
        && has(&rule.operations, asked.operation.name())
        && has(&rule.api_groups, &resource.group)
        && has(&rule.api_versions, &resource.version)
        && rule.resources.iter().flatten().any(named)
}

/// Namespaces lie in themselves, and are of the cluster all the same.
fn in_scope(scope: Option<&str>, asked: &Asked<'_>, resource: &GroupVersionResource) -> bool {
    let is_namespace = resource.group.is_empty() && resource.version == "v1" && resource.resource == "namespaces";
    let of_cluster = is_namespace || asked.namespace.is_empty();
    match scope {
        None | Some("*") => true,
        Some("Namespaced") => !of_cluster,
        Some("Cluster") => of_cluster,
        Some(_) => false,
    }
}

fn is_chosen(hook: &Hook, asked: &Asked<'_>, object: Option<&dyn Object>) -> Result<bool, Failure> {
    let selector = hook.objects.as_ref().map_err(Failure::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let labels = |object: &dyn Object| {
        let labels = object.metadata().labels.clone().filter(|_| asked.has_labels());
        selector.matches(&labels.unwrap_or_default())
    };
    Ok(object.is_some_and(labels) || asked.old.is_some_and(labels))
}

fn in_namespace(hook: &Hook, asked: &Asked<'_>, object: Option<&dyn Object>) -> Result<bool, Failure> {
    let is_namespace = asked.resource.resource == "namespaces";
    if asked.namespace.is_empty() && !is_namespace {
        // What is in no namespace is never left out.
        return Ok(true);
    }
    let selector = hook.namespaces.as_ref().map_err(Failure::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let writes = matches!(asked.operation, Operation::Create | Operation::Update);
    if is_namespace && asked.context.info.subresource.is_empty() && writes {
        let labels = object.and_then(|object| object.metadata().labels.clone());
        return Ok(selector.matches(&labels.unwrap_or_default()));
    }
    let key = Key::new("", "namespaces", "", &asked.namespace).ok();
    let entry = key.and_then(|key| asked.context.store().get(&key));
    let entry = entry.ok_or_else(|| Failure::NotFound {
        target: Target {
            resource: GroupResource::new("", "namespaces"),
            name: asked.namespace.clone(),
        },
    })?;
    let labels: &Labels = &entry.attributes.labels;
    Ok(selector.matches(labels))
}
