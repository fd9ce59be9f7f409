//! Cache of the policies with their bindings, compiled. Unchanged ones are not compiled again.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ParamRef, RuleWithOperations,
};
use serde::de::DeserializeOwned;
use store::{Entry, Prefix, Store};

use super::compiled::Compiled;
use super::definition::{Bound, Definition, Spec};
use crate::storage::follower::{Follow, Follower};
use crate::write::admission::webhooks::source::{GROUP, Selectors};

type Rule = (RuleWithOperations, Vec<String>);

/// The requests that a policy or a binding is for.
pub(super) struct Constraints {
    pub(super) selectors: Selectors,
    /// `matchPolicy`
    pub(super) policy: Option<String>,
    rules: Vec<Rule>,
    exceptions: Vec<Rule>,
}

impl Constraints {
    pub(super) fn new(resources: MatchResources) -> Self {
        let rules = |rules: Option<Vec<NamedRuleWithOperations>>| rules.into_iter().flatten().map(rule).collect();
        Self {
            selectors: Selectors::new(
                resources.namespace_selector.as_ref(),
                resources.object_selector.as_ref(),
            ),
            policy: resources.match_policy,
            rules: rules(resources.resource_rules),
            exceptions: rules(resources.exclude_resource_rules),
        }
    }

    /// True if there are no rules, so that all requests match.
    pub(super) fn is_of_all(&self) -> bool {
        self.rules.is_empty()
    }

    pub(super) fn included(&self) -> impl Iterator<Item = (&RuleWithOperations, &[String])> + Clone {
        self.rules.iter().map(|(rule, names)| (rule, names.as_slice()))
    }

    pub(super) fn excluded(&self) -> impl Iterator<Item = (&RuleWithOperations, &[String])> + Clone {
        self.exceptions.iter().map(|(rule, names)| (rule, names.as_slice()))
    }
}

fn rule(own: NamedRuleWithOperations) -> Rule {
    let rule = RuleWithOperations {
        api_groups: own.api_groups,
        api_versions: own.api_versions,
        operations: own.operations,
        resources: own.resources,
        scope: own.scope,
    };
    (rule, own.resource_names.unwrap_or_default())
}

/// Policy as read from the store.
pub(super) struct Policy {
    pub(super) name: String,
    /// Identifies a version of the policy.
    version: (Option<String>, Option<i64>),
    pub(super) constraints: Constraints,
    pub(super) spec: Spec,
    compiled: OnceLock<Compiled>,
}

impl Policy {
    fn new(policy: Definition) -> Self {
        let spec = policy.spec;
        Self {
            name: policy.metadata.name.unwrap_or_default(),
            version: (policy.metadata.uid, policy.metadata.generation),
            constraints: Constraints::new(spec.match_constraints.clone().unwrap_or_default()),
            spec,
            compiled: OnceLock::new(),
        }
    }

    /// Its expressions, compiled when a request comes that it is for.
    pub(super) fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| Compiled::new(&self.spec))
    }

    /// True if a request goes on when the policy cannot be asked.
    pub(super) fn fails_open(&self) -> bool {
        self.spec.failure_policy.as_deref() == Some("Ignore")
    }

    /// True if the policy is reinvoked after later changes.
    pub(super) fn is_reinvoked(&self) -> bool {
        self.spec.reinvocation_policy.as_deref() == Some("IfNeeded")
    }
}

/// Binding as read from the store.
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) constraints: Option<Constraints>,
    pub(super) params: Option<ParamRef>,
    pub(super) actions: Vec<String>,
}

/// A policy that has bindings.
pub(super) struct Hook {
    pub(super) policy: Arc<Policy>,
    pub(super) bindings: Vec<Binding>,
}

/// Policies of one kind.
pub(super) struct Hooks<const MUTATING: bool> {
    policies: BTreeMap<String, Arc<Policy>>,
    /// Policies that have bindings, by name.
    pub(super) hooks: Vec<Hook>,
}

impl<const MUTATING: bool> Follow for Hooks<MUTATING> {
    fn prefixes() -> Vec<Prefix> {
        let kinds = if MUTATING {
            ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"]
        } else {
            ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]
        };
        kinds
            .into_iter()
            .map(|plural| Prefix::resource(GROUP, plural))
            .collect()
    }

    fn read(store: &Store, before: Option<&Self>) -> Self {
        let mut entries = Self::prefixes().into_iter().map(|prefix| store.present(&prefix));
        let (policies, bindings) = (entries.next().unwrap_or_default(), entries.next().unwrap_or_default());
        let policies = read::<Definition>(&policies).map(|policy| {
            let name = policy.metadata.name.clone().unwrap_or_default();
            let known = before.and_then(|before| before.policies.get(&name));
            let known = known.filter(|known| {
                let (uid, generation) = &known.version;
                (uid, generation) == (&policy.metadata.uid, &policy.metadata.generation)
            });
            let policy = known.cloned().unwrap_or_else(|| Arc::new(Policy::new(policy)));
            (name, policy)
        });
        let policies: BTreeMap<_, _> = policies.collect();
        let mut bound: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for binding in read::<Bound>(&bindings) {
            let spec = binding.spec;
            bound.entry(spec.policy_name).or_default().push(Binding {
                name: binding.metadata.name.unwrap_or_default(),
                constraints: spec.match_resources.map(Constraints::new),
                params: spec.param_ref,
                actions: spec.validation_actions.unwrap_or_default(),
            });
        }
        let hooks = bound.into_iter().filter_map(|(name, bindings)| {
            let policy = Arc::clone(policies.get(&name)?);
            Some(Hook { policy, bindings })
        });
        let hooks = hooks.collect();
        Self { policies, hooks }
    }
}

/// Skips objects that cannot be parsed.
fn read<T: DeserializeOwned>(entries: &[Entry]) -> impl Iterator<Item = T> {
    entries.iter().filter_map(|entry| {
        let read = serde_json::from_slice(&entry.bytes);
        read.inspect_err(|error| tracing::error!(key = %entry.key, %error, "unreadable, so it decides nothing"))
            .ok()
    })
}

/// Admission policies of the server.
pub(crate) struct Policies {
    pub(super) validating: Follower<Hooks<false>>,
    pub(super) mutating: Follower<Hooks<true>>,
}

impl Policies {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            validating: Follower::new(store.clone()),
            mutating: Follower::new(store),
        }
    }
}
