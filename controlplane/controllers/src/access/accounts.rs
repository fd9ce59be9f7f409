//! Objects for service accounts: each namespace's account `default` and `kube-root-ca.crt`; and
//! token Secrets, which are filled, and deleted with their account, when they expire, or when they
//! are no longer used.

pub(crate) mod legacy_tokens;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use controlplane_plan::objects::{Meta as _, Object, uid};
use controlplane_plan::step::{CONFIG_MAPS, Outcome, Plan, Resource, SECRETS, SERVICE_ACCOUNTS, Step, Target};
use controlplane_plan::workloads::rollout::Failure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::Sign;
use crate::machinery::cache::{Cache, Cached, Key};
use crate::machinery::driver::Controller;
use crate::machinery::kinds::Caches;
use crate::machinery::kinds::contents::{ACCOUNT_NAME, BOOTSTRAP, CERTIFICATE, Contents, TOKEN};
use crate::machinery::queue::Queue;

const DEFAULT: &str = "default";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Upstream's text: users read it in the object.
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as \
     the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";
/// Delay before another look at a Secret whose account exists in the server but not yet in the
/// cache.
const BEHIND: Duration = Duration::from_secs(5);

/// Plans each namespace's `default` service account; a key is a namespace.
pub(crate) struct ServiceAccounts(pub(crate) Arc<Caches>);

impl Controller for ServiceAccounts {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let there = self.0.service_accounts.get(&Key::new(&key.name, DEFAULT));
        if is_alive(&self.0, key) && there.is_none() {
            plan.stage(vec![Step::Create {
                resource: SERVICE_ACCOUNTS,
                namespace: key.name.clone(),
                body: Box::new(json!({ "metadata": { "name": DEFAULT, "namespace": key.name } })),
                outcome: Outcome::default(),
            }]);
        }
        plan
    }
}

fn is_alive(caches: &Caches, key: &Key) -> bool {
    let namespace = caches.namespaces.get(key);
    namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none())
}

/// Plans each namespace's `kube-root-ca.crt`; a key is a namespace.
pub(crate) struct RootCertificates {
    pub(crate) caches: Arc<Caches>,
    pub(crate) certificate: Arc<str>,
}

impl Controller for RootCertificates {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if !is_alive(&self.caches, key) {
            return plan;
        }
        let data = json!({ "ca.crt": &*self.certificate });
        let step = match self.caches.config_maps.get(&Key::new(&key.name, CERTIFICATE)) {
            None => Step::Create {
                resource: CONFIG_MAPS,
                namespace: key.name.clone(),
                body: Box::new(json!({
                    "metadata": {
                        "name": CERTIFICATE,
                        "namespace": key.name,
                        "annotations": { "kubernetes.io/description": DESCRIPTION },
                    },
                    "data": data,
                })),
                outcome: Outcome::default(),
            },
            Some(there) if there.data == BTreeMap::from([("ca.crt".to_owned(), self.certificate.to_string())]) => {
                return plan;
            }
            Some(there) => {
                // Other keys in the `ConfigMap` are removed.
                let mut new: BTreeMap<&str, Value> = there.data.keys().map(|key| (key.as_str(), Value::Null)).collect();
                new.insert("ca.crt", Value::from(&*self.certificate));
                target_of(CONFIG_MAPS, there.meta()).merge(json!({ "data": new }))
            }
        };
        plan.stage(vec![step]);
        plan
    }
}

fn target_of(resource: Resource, metadata: &ObjectMeta) -> Target {
    Target {
        resource,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    }
}

/// Plans token Secrets; a key is a Secret.
pub(crate) struct TokenSecrets {
    pub(crate) caches: Arc<Caches>,
    pub(crate) certificate: Arc<str>,
    pub(crate) sign: Sign,
    /// Accounts that are missing in the cache, with their uids if known, and whether the server has
    /// them.
    pub(crate) asked: Mutex<BTreeMap<(Key, String), bool>>,
}

impl Controller for TokenSecrets {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(secret) = self.caches.secrets.get(key) else {
            return plan;
        };
        if secret.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        match secret.kind.as_str() {
            TOKEN => self.plan_token(&secret, &mut plan),
            BOOTSTRAP if key.namespace == "kube-system" => plan_bootstrap(&secret, now, &mut plan),
            _ => {}
        }
        plan
    }

    fn learn(&self, target: &Target, exists: bool, _now: Timestamp) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::new(&target.namespace, &target.name);
        asked.insert((key, target.uid.clone()), exists);
        // Bounded by the number of Secrets that refer to an account.
        asked.retain(|(account, _), _| {
            let entry = crate::machinery::kinds::contents::of_account(&account.namespace, &account.name);
            !self.caches.secrets.indexed(&entry).is_empty()
        });
    }
}

impl TokenSecrets {
    fn plan_token(&self, secret: &Contents, plan: &mut Plan) {
        let Some(name) = annotation(secret, ACCOUNT_NAME) else {
            return;
        };
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let account = self.caches.service_accounts.get(&Key::new(namespace, name));
        let uid = account.as_deref().map(uid);
        let wanted = annotation(secret, ACCOUNT_UID).filter(|wanted| !wanted.is_empty());
        let Some(uid) = uid.filter(|uid| wanted.is_none_or(|wanted| wanted == *uid)) else {
            self.plan_orphan(secret, Key::new(namespace, name), wanted.unwrap_or_default(), plan);
            return;
        };
        let mut data = serde_json::Map::new();
        let mut want = |key: &str, value: &str| {
            let encoded = STANDARD.encode(value);
            if secret.data.get(key) != Some(&encoded) {
                data.insert(key.to_owned(), encoded.into());
            }
        };
        want("ca.crt", &self.certificate);
        want("namespace", namespace);
        if secret.data.get("token").is_none_or(String::is_empty) {
            let own = secret.metadata.name.as_deref().unwrap_or_default();
            let Some(token) = (self.sign)(namespace, name, uid, own) else {
                return;
            };
            want("token", &token);
        }
        if data.is_empty() && wanted.is_some() {
            return;
        }
        let version = secret.metadata.resource_version.as_deref();
        let body = json!({
            "metadata": { "resourceVersion": version, "annotations": { ACCOUNT_UID: uid } },
            "data": data,
        });
        plan.stage(vec![target_of(SECRETS, &secret.metadata).merge(body)]);
    }
}

impl TokenSecrets {
    /// Plans a Secret whose account is missing in the cache. As upstream, the server is asked
    /// before it is deleted.
    fn plan_orphan(&self, secret: &Contents, account: Key, uid: &str, plan: &mut Plan) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match asked.remove(&(account.clone(), uid.to_owned())) {
            None => plan.stage(vec![Step::Look(Target {
                resource: SERVICE_ACCOUNTS,
                namespace: account.namespace,
                name: account.name,
                uid: uid.to_owned(),
            })]),
            Some(true) => plan.again(BEHIND),
            Some(false) => plan.stage(vec![delete(secret)]),
        }
    }
}

fn annotation<'a>(secret: &'a Contents, name: &str) -> Option<&'a str> {
    let annotations = secret.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

fn delete(secret: &Contents) -> Step {
    Step::Delete {
        target: target_of(SECRETS, &secret.metadata),
        resource_version: secret.metadata.resource_version.clone(),
        propagation: None,
        grace_seconds: None,
        outcome: Outcome::default(),
    }
}

/// Deletes an expired bootstrap token. An expiration that is no time is over
/// (`staging/src/k8s.io/cluster-bootstrap/util/secrets/secrets.go`).
fn plan_bootstrap(secret: &Contents, now: Timestamp, plan: &mut Plan) {
    let end = secret.data.get("expiration").and_then(|end| STANDARD.decode(end).ok());
    let Some(end) = end.filter(|end| !end.is_empty()) else {
        return;
    };
    let end = String::from_utf8(end).ok().and_then(|end| {
        // The last day that jiff has is 9999-12-30; Go's ends a day later.
        let is_last = end.starts_with("9999-12-3");
        end.parse::<Timestamp>().ok().or(is_last.then_some(Timestamp::MAX))
    });
    match end.and_then(|end| Duration::try_from(end.duration_since(now)).ok()) {
        Some(left) if !left.is_zero() => plan.again(left),
        Some(_) | None => plan.stage(vec![delete(secret)]),
    }
}

/// Wakes namespaces when they change, or their object of this name.
pub(crate) fn listen<K: Cached>(
    caches: &Caches,
    objects: &Cache<K>,
    name: &'static str,
    measured: &'static str,
) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new(measured);
    caches.namespaces.wake_if(&queue, |_| true);
    let wake = queue.clone();
    objects.listen(move |change| {
        for metadata in change.sides().map(Object::meta) {
            if metadata.name() == name {
                wake.push(Key::new("", metadata.namespace()));
            }
        }
    });
    queue
}

/// Wakes namespaces for their service account.
pub(crate) fn listen_accounts(caches: &Caches) -> Arc<Queue<Key>> {
    listen(caches, &caches.service_accounts, DEFAULT, "serviceaccount")
}

/// Wakes namespaces for their `kube-root-ca.crt`.
pub(crate) fn listen_certificates(caches: &Caches) -> Arc<Queue<Key>> {
    listen(caches, &caches.config_maps, CERTIFICATE, "root_ca_cert_publisher")
}

/// Wakes token Secrets, also when their account changes.
pub(crate) fn listen_secrets(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("serviceaccount_tokens_secret");
    caches
        .secrets
        .wake_if(&queue, |new| matches!(new.kind.as_str(), TOKEN | BOOTSTRAP));
    let (wake, all) = (queue.clone(), Arc::downgrade(caches));
    caches.service_accounts.listen(move |change| {
        let Some(caches) = all.upgrade() else { return };
        for account in change.sides().map(Object::meta) {
            let entry = crate::machinery::kinds::contents::of_account(account.namespace(), account.name());
            for secret in caches.secrets.indexed(&entry) {
                wake.push(Key::of(&secret.metadata));
            }
        }
    });
    queue
}

#[cfg(test)]
mod tests;
