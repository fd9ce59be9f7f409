//! The policies of the cluster with their bindings, ready to be asked.
//!
//! The cache follows the store: a request that comes after a policy or a binding was acknowledged meets it. What did not
//! change is not compiled again.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ParamRef, RuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
};
use serde::de::DeserializeOwned;
use store::{Entry, Prefix, Store};
use tokio::sync::watch;

use super::compiled::Compiled;
use crate::admission::webhooks::matching::Selectors;
use crate::admission::webhooks::source::GROUP;

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
    fn new(resources: MatchResources) -> Self {
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

    /// Tells whether there are no rules, so that all requests are meant.
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

/// One policy.
pub(super) struct Policy {
    pub(super) name: String,
    /// What tells a version of it from another.
    version: (Option<String>, Option<i64>),
    pub(super) constraints: Constraints,
    pub(super) spec: ValidatingAdmissionPolicySpec,
    compiled: OnceLock<Compiled>,
}

impl Policy {
    fn new(policy: ValidatingAdmissionPolicy) -> Self {
        let spec = policy.spec.unwrap_or_default();
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

    /// Tells whether a request goes on when the policy cannot be asked.
    pub(super) fn fails_open(&self) -> bool {
        self.spec.failure_policy.as_deref() == Some("Ignore")
    }
}

/// One binding.
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

struct State {
    changed: [watch::Receiver<u64>; 2],
    policies: BTreeMap<String, Arc<Policy>>,
    hooks: Arc<[Hook]>,
}

impl State {
    fn is_stale(&self) -> bool {
        // The store takes the senders along when it is closed: then nothing changes any more.
        self.changed
            .iter()
            .any(|changed| changed.has_changed().unwrap_or(false))
    }

    fn refresh(&mut self, policies: &Prefix, bindings: &Prefix, store: &Store) {
        // Marked as seen before it is read: what comes in between is read again.
        self.changed.iter_mut().for_each(watch::Receiver::mark_unchanged);
        let mut old = std::mem::take(&mut self.policies);
        for policy in read::<ValidatingAdmissionPolicy>(&store.present(policies)) {
            let name = policy.metadata.name.clone().unwrap_or_default();
            let version = (policy.metadata.uid.clone(), policy.metadata.generation);
            let known = old.remove(&name).filter(|known| known.version == version);
            self.policies
                .insert(name, known.unwrap_or_else(|| Arc::new(Policy::new(policy))));
        }
        let mut bound: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for binding in read::<ValidatingAdmissionPolicyBinding>(&store.present(bindings)) {
            let spec = binding.spec;
            bound.entry(spec.policy_name).or_default().push(Binding {
                name: binding.metadata.name.unwrap_or_default(),
                constraints: spec.match_resources.map(Constraints::new),
                params: spec.param_ref,
                actions: spec.validation_actions,
            });
        }
        let hooks = bound.into_iter().filter_map(|(name, bindings)| {
            let policy = Arc::clone(self.policies.get(&name)?);
            Some(Hook { policy, bindings })
        });
        self.hooks = hooks.collect();
    }
}

/// What cannot be read decides nothing.
fn read<T: DeserializeOwned>(entries: &[Entry]) -> impl Iterator<Item = T> {
    entries.iter().filter_map(|entry| {
        let read = serde_json::from_slice(&entry.bytes);
        read.inspect_err(|error| tracing::error!(key = %entry.key, %error, "unreadable, so it decides nothing"))
            .ok()
    })
}

/// All policies of the server.
pub(crate) struct Policies {
    store: Store,
    /// Keys of policies and of bindings.
    keys: (Prefix, Prefix),
    state: RwLock<State>,
}

impl Policies {
    pub(crate) fn new(store: Store) -> Self {
        let policies = Prefix::resource(GROUP, "validatingadmissionpolicies");
        let bindings = Prefix::resource(GROUP, "validatingadmissionpolicybindings");
        let mut state = State {
            changed: [store.last_change(&policies), store.last_change(&bindings)],
            policies: BTreeMap::new(),
            hooks: Arc::default(),
        };
        state.refresh(&policies, &bindings, &store);
        Self {
            store,
            keys: (policies, bindings),
            state: RwLock::new(state),
        }
    }

    /// All that have bindings. A lock that nobody holds for long and two loads, as long as none of them changes.
    pub(super) fn current(&self) -> Arc<[Hook]> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if !state.is_stale() {
            return Arc::clone(&state.hooks);
        }
        drop(state);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.refresh(&self.keys.0, &self.keys.1, &self.store);
        Arc::clone(&state.hooks)
    }
}
