//! Matching of requests with flow schemas
//! (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol/rule.go`).

use k8s_openapi::api::flowcontrol::v1::{NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject};

use crate::authn::identity::User;
use crate::request::info::RequestInfo;

const ALL: &str = "*";

/// True if one of a schema's rules matches a request.
pub(super) fn matches(rules: &[PolicyRulesWithSubjects], user: &User, info: &RequestInfo, path: &str) -> bool {
    rules.iter().any(|rule| {
        rule.subjects.iter().any(|subject| names(subject, user))
            && if info.is_resource {
                let rules = rule.resource_rules.as_deref().unwrap_or_default();
                rules.iter().any(|rule| of_resource(rule, info))
            } else {
                let rules = rule.non_resource_rules.as_deref().unwrap_or_default();
                rules.iter().any(|rule| of_path(rule, info.verb, path))
            }
    })
}

fn names(subject: &Subject, user: &User) -> bool {
    match subject.kind.as_str() {
        "User" => {
            let named = subject.user.as_ref();
            named.is_some_and(|named| named.name == ALL || named.name == user.name)
        }
        "Group" => {
            let named = subject.group.as_ref();
            named.is_some_and(|named| named.name == ALL || user.is_in(&named.name))
        }
        "ServiceAccount" => subject.service_account.as_ref().is_some_and(|named| {
            let own = user.name.strip_prefix("system:serviceaccount:");
            let own = own.and_then(|own| own.strip_prefix(named.namespace.as_str())?.strip_prefix(':'));
            own.is_some_and(|own| named.name == ALL || named.name == own)
        }),
        _ => false,
    }
}

fn of_resource(rule: &ResourcePolicyRule, info: &RequestInfo) -> bool {
    has(&rule.verbs, info.verb)
        && has_resource(&rule.resources, info)
        && has(&rule.api_groups, &info.group)
        && if info.namespace.is_empty() {
            rule.cluster_scope.unwrap_or(false)
        } else {
            has(rule.namespaces.as_deref().unwrap_or_default(), &info.namespace)
        }
}

fn of_path(rule: &NonResourcePolicyRule, verb: &str, path: &str) -> bool {
    has(&rule.verbs, verb)
        && rule.non_resource_urls.iter().any(|url| {
            if url == ALL || url == path {
                return true;
            }
            let prefix = url.strip_suffix(ALL).unwrap_or(url);
            let behind = path.strip_prefix(prefix);
            behind.is_some_and(|behind| prefix.ends_with('/') || behind.starts_with('/'))
        })
}

/// A wildcard must be the only item.
fn is_all(list: &[String]) -> bool {
    matches!(list, [only] if only == ALL)
}

fn has(list: &[String], wanted: &str) -> bool {
    is_all(list) || list.iter().any(|own| own == wanted)
}

fn has_resource(list: &[String], info: &RequestInfo) -> bool {
    if info.subresource.is_empty() {
        return has(list, &info.resource);
    }
    let is_wanted = |own: &String| {
        let behind = own.strip_prefix(info.resource.as_str());
        behind.and_then(|behind| behind.strip_prefix('/')) == Some(info.subresource.as_str())
    };
    is_all(list) || list.iter().any(is_wanted)
}
