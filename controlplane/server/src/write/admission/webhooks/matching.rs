//! Selection of the webhooks for a request (`pkg/admission/plugin/webhook/predicates`).

use std::collections::BTreeMap;

use api::selector::LabelSelector;
use api::{Object, Row};
use expressions::Question;
use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;
use serde_json::Value;
use store::{Entry, Key};

use super::asked::{Asked, Fit, GroupVersionKind, GroupVersionResource, Operation};
use super::review::request;
use super::source::{Hook, Selectors};
use crate::request::failure::{Failure, GroupResource, Target};
use crate::write::admission::expressions::aside;
use crate::write::admission::expressions::variables::{ContextAuthorizer, Variables};

/// Webhook to call, and the version in which it gets the object.
pub(super) struct Invocation<'a> {
    pub(super) hook: &'a Hook,
    pub(super) fit: Fit,
}

type Labels = BTreeMap<String, String>;

/// Invocation of a webhook, if it is to be called.
///
/// # Errors
/// 404 for a namespace that is not there, 500
pub(super) async fn invocation<'a>(
    hook: &'a Hook,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<Option<Invocation<'a>>, Failure> {
    let webhook = &hook.webhook;
    let fit = fit(&hook.selectors, asked, object, || {
        let rules = webhook.rules.iter().flatten().map(|rule| (rule, [].as_slice()));
        by_rules(rules, webhook.match_policy.as_deref(), asked)
    })?;
    let Some(fit) = fit else { return Ok(None) };
    let invocation = Invocation { hook, fit };
    Ok(meets_conditions(&invocation, asked, object)
        .await?
        .then_some(invocation))
}

/// Version in which a request matches selectors and rules. Errors are reported only where the rules
/// match.
///
/// # Errors
/// 404 for a namespace that is not there, 500
pub(in crate::write::admission) fn fit(
    selectors: &Selectors,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
    by_rules: impl FnOnce() -> Option<Fit>,
) -> Result<Option<Fit>, Failure> {
    let within = in_namespace(&selectors.namespaces, asked, object);
    if matches!(within, Ok(false)) {
        return Ok(None);
    }
    let chosen = is_chosen(&selectors.objects, asked, object);
    if matches!(chosen, Ok(false)) {
        return Ok(None);
    }
    let Some(fit) = by_rules() else { return Ok(None) };
    within?;
    chosen?;
    Ok(Some(fit))
}

/// Asks the match conditions; where they fail, the failure policy decides.
async fn meets_conditions(
    invocation: &Invocation<'_>,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<bool, Failure> {
    let hook = invocation.hook;
    let Some(conditions) = hook.conditions() else {
        return Ok(true);
    };
    let shown = async |object: Option<&dyn Object>| -> Result<Value, Failure> {
        let Some(object) = object else { return Ok(Value::Null) };
        let json = asked.shown(object, invocation.fit.form.as_ref()).await?;
        serde_json::from_slice(&json).map_err(Failure::internal)
    };
    let resource = resource(asked);
    let sent = match &asked.connection {
        Some(options) => options.clone(),
        None => shown(object).await?,
    };
    let variables = Variables {
        object: &sent,
        old: &shown(asked.old).await?,
        request: &request(asked, &invocation.fit),
        namespace: &Value::Null,
        rights: &ContextAuthorizer(asked.context),
        resource: &resource,
    };
    let holds = aside(|| conditions.hold(&variables));
    asked.context.in_time()?;
    match holds {
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

/// The resource of a request, as `authorizer.requestResource` asks about it.
pub(in crate::write::admission) fn resource(asked: &Asked<'_>) -> Question {
    Question {
        group: asked.resource.group.clone(),
        resource: asked.resource.resource.clone(),
        subresource: asked.context.info.subresource.clone(),
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
        ..Question::default()
    }
}

/// Version in which a request matches one of the rules, each with its resource names; none means
/// all.
pub(in crate::write::admission) fn by_rules<'r>(
    rules: impl Iterator<Item = (&'r RuleWithOperations, &'r [String])> + Clone,
    policy: Option<&str>,
    asked: &Asked<'_>,
) -> Option<Fit> {
    let mut rules = rules.filter(|(_, names)| names.is_empty() || names.contains(&asked.name));
    if rules.clone().any(|(rule, _)| fits(rule, asked, &asked.resource)) {
        return Some(Fit::own(asked));
    }
    if policy != Some("Equivalent") {
        return None;
    }
    rules.find_map(|(rule, _)| {
        let mut others = equivalents(asked).into_iter();
        others.find_map(|row| {
            let resource = GroupVersionResource {
                group: row.group.to_owned(),
                version: row.version.to_owned(),
                resource: row.plural.to_owned(),
            };
            let own = asked.kind == GroupVersionKind::of(&asked.context.registration);
            fits(rule, asked, &resource).then(|| Fit {
                resource,
                // The body of a subresource has one version only.
                kind: if own {
                    GroupVersionKind::of(&row)
                } else {
                    asked.kind.clone()
                },
                form: own.then_some(row),
            })
        })
    })
}

/// Equivalent groups and versions of the same objects, with the request's subresource.
fn equivalents(asked: &Asked<'_>) -> Vec<Row> {
    let own = &asked.context.registration;
    let is_other = |row: &Row| row.storage == own.storage && (row.group, row.version) != (own.group, own.version);
    if !own.is_defined() {
        return api::KINDS.iter().map(Row::Program).filter(is_other).collect();
    }
    let part = asked.context.info.subresource.as_str();
    let has_part = |row: &Row| part.is_empty() || row.subresources.iter().any(|own| own.name() == part);
    let versions = asked.context.table.versions(own);
    versions.filter(|row| is_other(row) && has_part(row)).collect()
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

fn is_chosen(
    selector: &Result<LabelSelector, String>,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<bool, Failure> {
    let selector = selector.as_ref().map_err(Failure::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let labels = |object: &dyn Object| {
        let labels = object.metadata().labels.clone().filter(|_| asked.has_labels());
        selector.matches(&labels.unwrap_or_default())
    };
    Ok(object.is_some_and(labels) || asked.old.is_some_and(labels))
}

fn in_namespace(
    selector: &Result<LabelSelector, String>,
    asked: &Asked<'_>,
    object: Option<&dyn Object>,
) -> Result<bool, Failure> {
    let is_namespace = asked.resource.resource == "namespaces";
    if asked.namespace.is_empty() && !is_namespace {
        // Cluster-scoped objects always match a namespace selector.
        return Ok(true);
    }
    let selector = selector.as_ref().map_err(Failure::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let writes = matches!(asked.operation, Operation::Create | Operation::Update);
    if is_namespace && asked.context.info.subresource.is_empty() && writes {
        let labels = object.and_then(|object| object.metadata().labels.clone());
        return Ok(selector.matches(&labels.unwrap_or_default()));
    }
    let entry = namespace(asked)?;
    let labels: &Labels = &entry.attributes.labels;
    Ok(selector.matches(labels))
}

/// The namespace of a request.
///
/// # Errors
/// 404
pub(in crate::write::admission) fn namespace(asked: &Asked<'_>) -> Result<Entry, Failure> {
    let key = Key::new("", "namespaces", "", &asked.namespace).ok();
    let entry = key.and_then(|key| asked.context.store().get(&key));
    entry.ok_or_else(|| Failure::NotFound {
        target: Target {
            resource: GroupResource::new("", "namespaces"),
            name: asked.namespace.clone(),
        },
    })
}
