//! Modes of impersonation and the rights that each requires. They are tried in this order: those
//! that are bound to the request's action (upstream's constrained impersonation), then the
//! unconstrained one.

use std::collections::BTreeMap;

use api::names::{dns1123_label, dns1123_subdomain};

use super::{Impersonated, Wanted};
use crate::authn::identity::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, User};
use crate::authz::{Attributes, Authorizer, Resource, denied};
use crate::request::failure::Failure;

const GROUP: &str = "authentication.k8s.io";
const NODES: &str = "system:nodes";
/// Extra that names the node of the pod to which a service account's token is bound.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// Number of groups or extras from which on the right to all of them is checked first.
const MANY: usize = 4;

/// Mode of impersonation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A pod's service account as the node on which the pod is.
    AssociatedNode,
    /// Any node.
    ArbitraryNode,
    /// A service account.
    ServiceAccount,
    /// Any other user, with groups and extras.
    UserInfo,
    /// Everybody for everything.
    Legacy,
}

impl Mode {
    pub(super) const ALL: [Self; 5] = [
        Self::AssociatedNode,
        Self::ArbitraryNode,
        Self::ServiceAccount,
        Self::UserInfo,
        Self::Legacy,
    ];

    /// Name of the mode in verbs; `None` for the unconstrained one.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::AssociatedNode => Some("associated-node"),
            Self::ArbitraryNode => Some("arbitrary-node"),
            Self::ServiceAccount => Some("serviceaccount"),
            Self::UserInfo => Some("user-info"),
            Self::Legacy => None,
        }
    }

    fn verb(self) -> String {
        self.name()
            .map_or_else(|| "impersonate".to_owned(), |name| format!("impersonate:{name}"))
    }

    /// True if the mode applies to this caller and impersonated user.
    pub(super) fn applies(self, wanted: &Wanted, caller: &User) -> bool {
        let (node, account) = (node(&wanted.name), account(&wanted.name));
        match self {
            Self::AssociatedNode => {
                let own = caller.extra.get(NODE_NAME).map(Vec::as_slice);
                let is_there = matches!((own, node), (Some([own]), Some(node)) if own == node);
                is_there && account_of(caller) && wanted.is_only_a_name()
            }
            Self::ArbitraryNode => node.is_some() && wanted.is_only_a_name(),
            Self::ServiceAccount => account.is_some() && wanted.is_only_a_name(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    /// Checks that the caller is authorized.
    ///
    /// # Errors
    /// 403
    pub(super) fn check(
        self,
        authorizer: &Authorizer,
        caller: &User,
        wanted: &Wanted,
        request: &Attributes<'_>,
    ) -> Result<(), Failure> {
        if let Some(name) = self.name() {
            let verb = format!("impersonate-on:{name}:{}", request.verb);
            let request = Attributes {
                verb: &verb,
                ..*request
            };
            authorizer.check(caller, &request)?;
        }
        let verb = self.verb();
        let rights = ImpersonationCheck {
            mode: self,
            verb: &verb,
            authorizer,
            caller,
        };
        rights.to_name(&wanted.name)?;
        if !wanted.uid.is_empty() {
            rights.to(GROUP, "uids", "", &wanted.uid)?;
        }
        rights.to_groups(&wanted.groups)?;
        rights.to_extra(&wanted.extra)
    }

    /// User of the request after impersonation.
    pub(super) fn impersonate(self, wanted: Wanted) -> Impersonated {
        let mut groups = wanted.groups;
        if groups.is_empty()
            && let Some((namespace, name)) = account(&wanted.name)
        {
            // A service account without given groups gets those of its tokens.
            groups = User::account(namespace, name).groups;
            groups.retain(|group| group != AUTHENTICATED);
        }
        if matches!(self, Self::AssociatedNode | Self::ArbitraryNode) {
            groups = vec![NODES.to_owned()];
        }
        let implied = if wanted.name == ANONYMOUS {
            Some(UNAUTHENTICATED)
        } else {
            let is_in = |wanted: &str| groups.iter().any(|group| group == wanted);
            (!is_in(UNAUTHENTICATED)).then_some(AUTHENTICATED)
        };
        if let Some(implied) = implied.filter(|implied| groups.iter().all(|group| group != implied)) {
            groups.push(implied.to_owned());
        }
        let user = User {
            name: wanted.name,
            groups,
            uid: wanted.uid,
            extra: wanted.extra,
        };
        Impersonated {
            user,
            constraint: self.name().map(|_| self.verb()),
        }
    }
}

/// Checks of single impersonation rights of a caller.
struct ImpersonationCheck<'a> {
    mode: Mode,
    verb: &'a str,
    authorizer: &'a Authorizer,
    caller: &'a User,
}

impl ImpersonationCheck<'_> {
    fn is_bound(&self) -> bool {
        self.mode != Mode::Legacy
    }

    /// The group of users and groups.
    fn group(&self) -> &'static str {
        if self.is_bound() { GROUP } else { "" }
    }

    fn of<'a>(&'a self, resource: Resource<'a>) -> Attributes<'a> {
        Attributes::resource(self.verb, resource)
    }

    fn to(&self, group: &str, resource: &str, subresource: &str, name: &str) -> Result<(), Failure> {
        let resource = Resource {
            group,
            resource,
            subresource,
            name,
            ..Resource::default()
        };
        self.authorizer.check(self.caller, &self.of(resource))
    }

    /// 403 for what no right allows.
    fn never(&self, resource: &str, name: &str, because: &str) -> Failure {
        let group = if resource == "groups" { self.group() } else { GROUP };
        let resource = Resource {
            group,
            resource,
            name,
            ..Resource::default()
        };
        denied(self.caller, &self.of(resource), because)
    }

    fn to_name(&self, name: &str) -> Result<(), Failure> {
        if let Some((namespace, name)) = account(name) {
            let resource = Resource {
                group: self.group(),
                resource: "serviceaccounts",
                namespace,
                name,
                ..Resource::default()
            };
            return self.authorizer.check(self.caller, &self.of(resource));
        }
        match node(name).filter(|_| self.is_bound()) {
            // The node was matched before: the right is for the associated node.
            Some(_) if self.mode == Mode::AssociatedNode => self.to(GROUP, "nodes", "", "*"),
            Some(node) => self.to(GROUP, "nodes", "", node),
            None => self.to(self.group(), "users", "", name),
        }
    }

    fn to_groups(&self, groups: &[String]) -> Result<(), Failure> {
        if self.is_bound() {
            if groups.iter().any(String::is_empty) {
                return Err(self.never("groups", "", "impersonating the empty string group is not allowed"));
            }
            if groups.iter().any(|group| group == MASTERS) {
                let because = "impersonating the system:masters group is not allowed";
                return Err(self.never("groups", MASTERS, because));
            }
            if groups.len() >= MANY && self.to(self.group(), "groups", "", "*").is_ok() {
                return Ok(());
            }
        }
        let mut groups = groups.iter();
        groups.try_for_each(|group| self.to(self.group(), "groups", "", group))
    }

    fn to_extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Failure> {
        if self.is_bound() {
            for (key, values) in extra {
                if let Some(problem) = problem(key, values) {
                    return Err(self.never("userextras", "", &problem));
                }
            }
            let number = extra.values().map(Vec::len).sum::<usize>().max(extra.len());
            if number >= MANY && self.to(GROUP, "userextras", "*", "*").is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            let mut values = values.iter();
            values.try_for_each(|value| self.to(GROUP, "userextras", key, value))?;
        }
        Ok(())
    }
}

/// Reason for which an extra cannot be impersonated, except in the unconstrained mode.
fn problem(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let problems = api::validation::domain_prefixed_path("extra.key", key);
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if !problems.is_empty() {
        let problems = crate::authz::aggregate(&problems);
        return Some(format!(
            "impersonating an invalid key in extra is not allowed: {problems}"
        ));
    }
    if key.chars().any(char::is_uppercase) {
        return Some(format!(
            "impersonating a non-lowercase key in extra is not allowed: {key:?}"
        ));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    values
        .iter()
        .any(String::is_empty)
        .then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

/// The node that a user name is one of.
fn node(name: &str) -> Option<&str> {
    let node = name.strip_prefix("system:node:")?;
    dns1123_subdomain(node).is_empty().then_some(node)
}

/// Namespace and name of the service account that a user name is one of.
fn account(name: &str) -> Option<(&str, &str)> {
    let (namespace, account) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (dns1123_label(namespace).is_empty() && dns1123_subdomain(account).is_empty()).then_some((namespace, account))
}

fn account_of(caller: &User) -> bool {
    account(&caller.name).is_some()
}
