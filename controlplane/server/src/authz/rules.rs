//! Evaluation of a single rule, and whether a set of rules covers another one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::{Action, Attributes};

/// Rules are broken down into at most this many single permissions when they are compared.
const MOST_PERMISSIONS: usize = 20_000;
/// Limit of the string comparisons for covering checks, which block the thread.
const MOST_COMPARISONS: usize = 20_000_000;
/// Limit in bytes for the list of missing permissions; beyond it only their number is reported.
const TOLD: usize = 16 << 10;

/// True if a rule allows a request. Does not allocate: this runs for each rule of each request.
pub(super) fn allows(rule: &PolicyRule, attributes: &Attributes<'_>) -> bool {
    if !has(&rule.verbs, attributes.verb) {
        return false;
    }
    match attributes.action {
        Action::Path(path) => list(rule.non_resource_urls.as_ref())
            .iter()
            .any(|own| covers_path(own, path)),
        Action::Resource(wanted) => {
            has(list(rule.api_groups.as_ref()), wanted.group)
                && list(rule.resources.as_ref())
                    .iter()
                    .any(|own| names(own, wanted.resource, wanted.subresource))
                && allows_name(list(rule.resource_names.as_ref()), wanted.name)
        }
    }
}

fn list(values: Option<&Vec<String>>) -> &[String] {
    values.map(Vec::as_slice).unwrap_or_default()
}

fn has(own: &[String], wanted: &str) -> bool {
    own.iter().any(|own| own == "*" || own == wanted)
}

fn allows_name(own: &[String], wanted: &str) -> bool {
    own.is_empty() || own.iter().any(|own| own == wanted)
}

/// `*` names all, `pods/log` one subresource of one resource, `*/scale` one subresource of all.
fn names(own: &str, resource: &str, subresource: &str) -> bool {
    if own == "*" {
        return true;
    }
    match own.split_once('/') {
        None => own == resource && subresource.is_empty(),
        Some((own, of)) => !subresource.is_empty() && of == subresource && (own == resource || own == "*"),
    }
}

/// A path, or the beginning of some with a `*` at its end.
fn covers_path(own: &str, path: &str) -> bool {
    own == path || own.strip_suffix('*').is_some_and(|start| path.starts_with(start))
}

/// The comparison was given up: there is too much to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Returns the part of `wanted` that the rules `held` do not cover, as single permissions.
///
/// # Errors
/// When `wanted` says too much at once.
pub(super) fn missing(held: &[PolicyRule], wanted: &[PolicyRule]) -> Result<Vec<PolicyRule>, TooMany> {
    let mut count = 0_usize;
    for rule in wanted {
        count = count.saturating_add(permissions(rule));
    }
    let words = held.iter().map(words).fold(0, usize::saturating_add);
    if count > MOST_PERMISSIONS || count.saturating_mul(words) > MOST_COMPARISONS {
        return Err(TooMany);
    }
    let parts = wanted.iter().flat_map(break_down);
    Ok(parts.filter(|part| !held.iter().any(|own| covers(own, part))).collect())
}

fn words(rule: &PolicyRule) -> usize {
    let lists = [
        &rule.api_groups,
        &rule.resources,
        &rule.resource_names,
        &rule.non_resource_urls,
    ];
    let lists = lists.into_iter().map(|values| list(values.as_ref()).len());
    lists.fold(rule.verbs.len(), usize::saturating_add)
}

fn permissions(rule: &PolicyRule) -> usize {
    let count = |values: Option<&Vec<String>>| list(values).len();
    let resources = count(rule.api_groups.as_ref())
        .saturating_mul(count(rule.resources.as_ref()))
        .saturating_mul(count(rule.resource_names.as_ref()).max(1));
    resources
        .saturating_add(count(rule.non_resource_urls.as_ref()))
        .saturating_mul(rule.verbs.len())
}

/// Splits a rule into one for each group, resource, name and verb, and for each path and verb.
fn break_down(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut parts = Vec::with_capacity(permissions(rule));
    let one = |text: &String| Some(vec![text.clone()]);
    for group in list(rule.api_groups.as_ref()) {
        for resource in list(rule.resources.as_ref()) {
            for verb in &rule.verbs {
                let part = PolicyRule {
                    api_groups: one(group),
                    resources: one(resource),
                    verbs: vec![verb.clone()],
                    ..PolicyRule::default()
                };
                let names = list(rule.resource_names.as_ref());
                if names.is_empty() {
                    parts.push(part);
                } else {
                    parts.extend(names.iter().map(|name| PolicyRule {
                        resource_names: one(name),
                        ..part.clone()
                    }));
                }
            }
        }
    }
    for path in list(rule.non_resource_urls.as_ref()) {
        parts.extend(rule.verbs.iter().map(|verb| PolicyRule {
            non_resource_urls: one(path),
            verbs: vec![verb.clone()],
            ..PolicyRule::default()
        }));
    }
    parts
}

fn covers(own: &PolicyRule, part: &PolicyRule) -> bool {
    let all = |own: &[String], wanted: &[String]| wanted.iter().all(|wanted| has(own, wanted));
    let resources = list(own.resources.as_ref());
    let resource = |wanted: &String| {
        has(resources, wanted)
            || wanted.split_once('/').is_some_and(|(_, of)| {
                resources
                    .iter()
                    .any(|own| own.strip_prefix("*/").is_some_and(|own| own == of))
            })
    };
    let paths = list(own.non_resource_urls.as_ref());
    let path = |wanted: &String| paths.iter().any(|own| covers_path(own, wanted));
    let (own_names, names) = (list(own.resource_names.as_ref()), list(part.resource_names.as_ref()));
    let by_name = if names.is_empty() {
        own_names.is_empty()
    } else {
        own_names.is_empty() || names.iter().all(|name| own_names.contains(name))
    };
    all(&own.verbs, &part.verbs)
        && all(list(own.api_groups.as_ref()), list(part.api_groups.as_ref()))
        && list(part.resources.as_ref()).iter().all(resource)
        && list(part.non_resource_urls.as_ref()).iter().all(path)
        && by_name
}

/// Single permissions as people read them: those that differ in their verb alone in one line, sorted.
pub(super) fn describe(parts: &[PolicyRule]) -> String {
    let mut joined: Vec<PolicyRule> = Vec::new();
    let mut places = BTreeMap::new();
    let mut said = BTreeSet::new();
    for part in parts {
        if part.non_resource_urls.is_some() {
            joined.push(part.clone());
            continue;
        }
        let about = [&part.api_groups, &part.resources, &part.resource_names];
        let place = *places
            .entry(about.map(|values| list(values.as_ref())))
            .or_insert(joined.len());
        if place == joined.len() {
            joined.push(PolicyRule {
                verbs: Vec::new(),
                ..part.clone()
            });
        }
        let new = part.verbs.iter().filter(|verb| said.insert((place, verb.as_str())));
        if let Some(known) = joined.get_mut(place) {
            known.verbs.extend(new.cloned());
        }
    }
    let lines: BTreeSet<String> = joined.iter().map(line).collect();
    let mut text = String::new();
    let mut left = lines.len();
    for line in &lines {
        if text.len().saturating_add(line.len()) > TOLD {
            text.extend(["... and ", &left.to_string(), " more"]);
            break;
        }
        text.push_str(line);
        left -= 1;
        if left > 0 {
            text.push('\n');
        }
    }
    text
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`
fn line(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", list(rule.api_groups.as_ref())),
        ("Resources", list(rule.resources.as_ref())),
        ("NonResourceURLs", list(rule.non_resource_urls.as_ref())),
        ("ResourceNames", list(rule.resource_names.as_ref())),
        ("Verbs", &rule.verbs),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| format!("{name}:{}", quoted(values)))
        .collect();
    format!("{{{}}}", parts.join(", "))
}

/// `["a" "b"]`
pub(super) fn quoted(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("[{}]", values.join(" "))
}
