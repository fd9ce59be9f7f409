//! Authorization: `system:masters` may do everything, agents what their node needs (`node`), all
//! users what roles and bindings grant (`index`). Only the user's name and groups count, also for
//! the cluster's own components, whose rights are in the default roles (`policy`).

pub(crate) mod access_review;
pub(crate) mod escalation;
mod index;
pub(crate) mod node;
pub(crate) mod policy;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt;

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use store::Store;

use crate::authn::identity::{MASTERS, User};
use crate::request::failure::{Failure, GroupResource, Target};
use crate::request::info::RequestInfo;
use index::{Current, Grant};

/// Attributes of a request for authorization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `create`, `escalate` …
    pub verb: &'a str,
    /// Action on a resource or a path.
    pub action: Action<'a>,
}

/// Target of a request: a path or a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// A path that names no resource.
    Path(&'a str),
    /// A resource.
    Resource(Resource<'a>),
}

/// A resource, or one object of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resource<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster scope and for all namespaces.
    pub namespace: &'a str,
    /// Empty for all objects.
    pub name: &'a str,
    /// The field selector of a list or watch.
    pub field_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// A verb on a resource.
    pub fn resource(verb: &'a str, resource: Resource<'a>) -> Self {
        Self {
            verb,
            action: Action::Resource(resource),
        }
    }

    /// A verb on a path.
    pub fn path(verb: &'a str, path: &'a str) -> Self {
        Self {
            verb,
            action: Action::Path(path),
        }
    }

    /// Attributes of a request; `path` is the whole path, as segments joined.
    pub fn of(info: &'a RequestInfo, path: &'a str) -> Self {
        if !info.is_resource {
            return Self::path(info.verb, path);
        }
        let resource = Resource {
            group: &info.group,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            field_selector: &info.field_selector,
        };
        Self::resource(info.verb, resource)
    }

    fn namespace(&self) -> &'a str {
        match self.action {
            Action::Path(_) => "",
            Action::Resource(resource) => resource.namespace,
        }
    }
}

/// An answer. `Display` is the reason, which may be empty.
#[derive(Debug, Clone)]
pub enum Decision {
    /// The request is allowed.
    Allowed(Because),
    /// No rule allows it. The text describes errors of evaluation.
    Denied(String),
}

/// Grant that allowed a request.
#[derive(Debug, Clone)]
pub struct Because(Option<Grant>);

impl Decision {
    /// True if the request is allowed.
    pub fn is_allowed(&self) -> bool {
        match self {
            Self::Allowed(_) => true,
            Self::Denied(_) => false,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(Because(Some(grant))) => write!(formatter, "RBAC: allowed by {grant}"),
            Self::Allowed(Because(None)) => Ok(()),
            Self::Denied(reason) => formatter.write_str(reason),
        }
    }
}

/// The rules that a user has in a namespace.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Rules of the user, in the order of the bindings.
    pub rules: Vec<PolicyRule>,
    /// Reason for which the rules may be incomplete: roles that bindings reference and that do not
    /// exist.
    pub problems: Vec<String>,
}

/// Decides from the store's roles, bindings and pods.
pub struct Authorizer {
    store: Store,
    current: Current,
    allows_all: bool,
}

const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

impl Authorizer {
    /// An authorizer over a store.
    pub fn new(store: Store) -> Self {
        let current = Current::new(store.clone());
        Self {
            store,
            current,
            allows_all: false,
        }
    }

    /// Allows everything to everybody, as authorization mode `AlwaysAllow`.
    #[must_use]
    pub fn allowing_all(self, allows_all: bool) -> Self {
        Self { allows_all, ..self }
    }

    /// Decides.
    pub fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        if self.allows_all || user.is_in(MASTERS) {
            return Decision::Allowed(Because(None));
        }
        let mut reasons = Vec::new();
        if let Some(node) = node(user) {
            match node::decide(&self.store, node, attributes) {
                Ok(()) => return Decision::Allowed(Because(None)),
                Err(reason) if reason.is_empty() => {}
                Err(reason) => reasons.push(reason),
            }
        }
        match self.by_roles(user, attributes) {
            Ok(grant) => return Decision::Allowed(Because(Some(grant))),
            Err(problems) if problems.is_empty() => {}
            Err(problems) => reasons.push(format!("RBAC: {}", aggregate(&problems))),
        }
        Decision::Denied(reasons.join("\n"))
    }

    fn by_roles(&self, user: &User, attributes: &Attributes<'_>) -> Result<Grant, Vec<String>> {
        self.current.ask(|index| {
            let mut problems = Vec::new();
            let found = index.walk(user, attributes.namespace(), |grant, rules| {
                let Some(rules) = rules else {
                    problems.push(no_role(&grant.binding.role));
                    return None;
                };
                rules
                    .iter()
                    .any(|rule| rules::allows(rule, attributes))
                    .then_some(grant)
            });
            found.cloned().ok_or(problems)
        })
    }

    /// Returns an error if the request is denied.
    ///
    /// # Errors
    /// 403
    pub fn check(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), Failure> {
        match self.decide(user, attributes) {
            Decision::Denied(reason) => Err(denied(user, attributes, &reason)),
            Decision::Allowed(_) => Ok(()),
        }
    }

    /// Rules of a user in a namespace, or cluster-wide with an empty one.
    pub fn rules(&self, user: &User, namespace: &str) -> Rules {
        self.current.ask(|index| {
            let mut found = Rules::default();
            index.walk(user, namespace, |grant, rules| -> Option<()> {
                match rules {
                    Some(rules) => found.rules.extend(rules.iter().cloned()),
                    None => found.problems.push(no_role(&grant.binding.role)),
                }
                None
            });
            found
        })
    }

    /// Rules of a role that a binding in a namespace references; `None` if the role does not exist.
    fn role(&self, role: &RoleRef, namespace: &str) -> Option<Vec<PolicyRule>> {
        self.current
            .ask(|index| index.role(role, namespace).map(<[PolicyRule]>::to_vec))
    }
}

/// Name of the node, if the user is a node's agent.
pub(crate) fn node(user: &User) -> Option<&str> {
    user.name
        .strip_prefix(NODE_PREFIX)
        .filter(|_| user.is_in(NODES) && !user.is_in(MASTERS))
}

fn no_role(role: &RoleRef) -> String {
    let kind = role.kind.to_lowercase();
    format!("{kind}.{} {:?} not found", index::GROUP, role.name)
}

/// Several errors as upstream joins them.
pub(crate) fn aggregate(problems: &[String]) -> String {
    let mut texts: Vec<&str> = Vec::with_capacity(problems.len());
    for problem in problems {
        if !texts.contains(&problem.as_str()) {
            texts.push(problem);
        }
    }
    match texts.as_slice() {
        [only] => (*only).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Upstream's message for a denial.
pub(crate) fn denied(user: &User, attributes: &Attributes<'_>, reason: &str) -> Failure {
    let (name, verb) = (&user.name, attributes.verb);
    let (target, mut because) = match attributes.action {
        Action::Path(path) => (None, format!("User {name:?} cannot {verb} path {path:?}")),
        Action::Resource(wanted) => {
            let resource = if wanted.subresource.is_empty() {
                wanted.resource.to_owned()
            } else {
                format!("{}/{}", wanted.resource, wanted.subresource)
            };
            let place = if wanted.namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {:?}", wanted.namespace)
            };
            let group = wanted.group;
            let target = Target {
                resource: GroupResource::new(group.to_owned(), wanted.resource.to_owned()),
                name: wanted.name.to_owned(),
            };
            (
                Some(target),
                format!("User {name:?} cannot {verb} resource {resource:?} in API group {group:?} {place}"),
            )
        }
    };
    if !reason.is_empty() {
        because.push_str(": ");
        because.push_str(reason);
    }
    Failure::Forbidden {
        target,
        because,
        causes: Vec::new(),
    }
}
