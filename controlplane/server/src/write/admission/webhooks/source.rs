//! The webhooks of all configurations, ready to be asked.
//!
//! The cache follows the store: a request after an acknowledged configuration sees it. Unchanged
//! webhooks keep their connections.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use api::selector::LabelSelector;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as Structure;
use serde::Deserialize;
use store::{Entry, Prefix, Store};

use super::client::Client;
use super::conditions::Conditions;
use crate::storage::follower::{Follow, Follower};
use crate::write::admission::expressions::environment;

/// API group of the kinds that webhooks are not called for.
pub(in crate::write::admission) const GROUP: &str = "admissionregistration.k8s.io";

/// Selectors of namespaces and objects. The error is of the selector's own text.
pub(in crate::write::admission) struct Selectors {
    pub(super) namespaces: Result<LabelSelector, String>,
    pub(super) objects: Result<LabelSelector, String>,
}

impl Selectors {
    pub(in crate::write::admission) fn new(namespaces: Option<&Structure>, objects: Option<&Structure>) -> Self {
        let selector = |structure: Option<&Structure>| {
            let selector = LabelSelector::of(Some(structure.unwrap_or(&EVERYTHING)));
            selector.map_err(|error| error.to_string())
        };
        Self {
            namespaces: selector(namespaces),
            objects: selector(objects),
        }
    }
}

static EVERYTHING: Structure = Structure {
    match_expressions: None,
    match_labels: None,
};

/// Webhook of a configuration. Every field of a validating webhook is also one of a mutating
/// webhook.
pub(super) struct Hook {
    /// Distinguishes webhooks of the same name.
    pub(super) id: String,
    pub(super) configuration: Arc<str>,
    pub(super) webhook: MutatingWebhook,
    pub(super) selectors: Selectors,
    pub(super) client: Client,
    /// Compiled when a request comes that the rules are for.
    conditions: OnceLock<Conditions>,
}

impl Hook {
    fn new(configuration: &Arc<str>, id: String, webhook: MutatingWebhook) -> Self {
        Self {
            id,
            configuration: Arc::clone(configuration),
            selectors: Selectors::new(webhook.namespace_selector.as_ref(), webhook.object_selector.as_ref()),
            client: Client::new(&webhook.client_config),
            conditions: OnceLock::new(),
            webhook,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.webhook.name
    }

    /// Match conditions; `None` if there are none.
    pub(super) fn conditions(&self) -> Option<&Conditions> {
        let conditions = self.webhook.match_conditions.as_deref()?;
        (!conditions.is_empty()).then(|| {
            self.conditions
                .get_or_init(|| Conditions::new(conditions, environment()))
        })
    }

    /// True if a request goes on when the webhook cannot be asked.
    pub(super) fn fails_open(&self) -> bool {
        self.webhook.failure_policy.as_deref() == Some("Ignore")
    }
}

type Hooks = Arc<[Arc<Hook>]>;

#[derive(Default, Deserialize)]
struct Configuration {
    #[serde(default)]
    webhooks: Option<Vec<MutatingWebhook>>,
}

/// Webhooks of a configuration; none when it cannot be parsed.
fn read(entry: &Entry) -> Vec<Arc<Hook>> {
    let configuration: Configuration = serde_json::from_slice(&entry.bytes).unwrap_or_else(|error| {
        tracing::error!(key = %entry.key, %error, "unreadable, so its webhooks are not called");
        Configuration::default()
    });
    let name: Arc<str> = entry.key.name().into();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let webhooks = configuration.webhooks.into_iter().flatten();
    let hooks = webhooks.map(|webhook| {
        let count = names.entry(webhook.name.clone()).or_default();
        let id = format!("{name}/{}/{count}", webhook.name);
        *count += 1;
        Arc::new(Hook::new(&name, id, webhook))
    });
    hooks.collect()
}

/// Configurations of one kind, in the order of their names.
struct Configurations<const MUTATING: bool> {
    /// Parsed webhooks with the revisions of their configurations.
    read: BTreeMap<Box<str>, (u64, Vec<Arc<Hook>>)>,
    hooks: Hooks,
}

impl<const MUTATING: bool> Follow for Configurations<MUTATING> {
    fn prefixes() -> Vec<Prefix> {
        let plural = if MUTATING {
            "mutatingwebhookconfigurations"
        } else {
            "validatingwebhookconfigurations"
        };
        vec![Prefix::resource(GROUP, plural)]
    }

    fn read(store: &Store, before: Option<&Self>) -> Self {
        let entries = Self::prefixes().into_iter().flat_map(|prefix| store.present(&prefix));
        let read: BTreeMap<Box<str>, _> = entries
            .map(|entry| {
                let known = before.and_then(|before| before.read.get(entry.key.name()));
                let known = known.filter(|(revision, _)| *revision == entry.revision).cloned();
                let hooks = known.unwrap_or_else(|| (entry.revision, read(&entry)));
                (entry.key.name().into(), hooks)
            })
            .collect();
        let hooks = read.values().flat_map(|(_, hooks)| hooks.iter().cloned()).collect();
        Self { read, hooks }
    }
}

/// Admission webhooks of the server.
pub(crate) struct Webhooks {
    mutating: Follower<Configurations<true>>,
    validating: Follower<Configurations<false>>,
}

impl Webhooks {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            mutating: Follower::new(store.clone()),
            validating: Follower::new(store),
        }
    }

    pub(super) fn mutating(&self) -> Hooks {
        Arc::clone(&self.mutating.current().hooks)
    }

    pub(super) fn validating(&self) -> Hooks {
        Arc::clone(&self.validating.current().hooks)
    }
}
