//! Default roles and bindings, as data, and their reconciliation: missing rules are added, and
//! additions by administrators stay.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use api::yaml::{self, YamlError};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::rules;

pub(crate) use super::index::GROUP;

const DEFAULTS: &str = include_str!("policy/defaults.yaml");
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// Invalid embedded policy data: a bug in them.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The data are not valid YAML.
    #[error("parse the default roles")]
    Yaml(#[from] YamlError),
    /// The data do not have the expected types.
    #[error("read the default roles")]
    Shape(#[from] serde_json::Error),
}

type ByName<T> = BTreeMap<String, T>;

/// The data, as written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Defaults {
    aggregated: Vec<String>,
    aggregate: ByName<String>,
    cluster_roles: ByName<Vec<PolicyRule>>,
    cluster_role_bindings: ByName<Vec<String>>,
    role_of: ByName<String>,
    controllers: ByName<Vec<PolicyRule>>,
    own: ByName<Vec<PolicyRule>>,
    roles: ByName<ByName<Vec<PolicyRule>>>,
    role_bindings: ByName<ByName<Vec<String>>>,
}

fn read() -> Result<Defaults, PolicyError> {
    Ok(serde_json::from_value(yaml::to_json(DEFAULTS.as_bytes())?.value)?)
}

static NODE_RULES: OnceLock<Vec<PolicyRule>> = OnceLock::new();

/// Default rules of the role `system:node`, regardless of the stored ones.
pub(super) fn node_rules() -> &'static [PolicyRule] {
    NODE_RULES.get_or_init(|| {
        let rules = read().map(|mut defaults| defaults.cluster_roles.remove("system:node"));
        rules.ok().flatten().unwrap_or_default()
    })
}

/// An object that a cluster should have.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) plural: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) object: Value,
}

impl Wanted {
    fn new(kind: &str, plural: &'static str, namespace: &str, name: &str, own: Value) -> Self {
        let mut object = json!({
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
                "annotations": {AUTO_UPDATE: "true"},
            },
        });
        if let (Value::Object(object), Value::Object(own)) = (&mut object, own) {
            object.extend(own);
        }
        Self {
            plural,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            object,
        }
    }

    fn cluster_role(name: &str, rules: &[PolicyRule]) -> Self {
        Self::new("ClusterRole", "clusterroles", "", name, json!({ "rules": rules }))
    }

    fn label(&mut self, key: String) {
        if let Some(labels) = self
            .object
            .pointer_mut("/metadata/labels")
            .and_then(Value::as_object_mut)
        {
            labels.insert(key, "true".into());
        }
    }
}

fn aggregation(name: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{name}")
}

/// Default roles and bindings, roles first.
///
/// # Errors
/// For a mistake in the data.
pub(crate) fn wanted() -> Result<Vec<Wanted>, PolicyError> {
    let defaults = read()?;
    let mut all: Vec<Wanted> = Vec::new();
    for name in &defaults.aggregated {
        let selector = json!({"matchLabels": {aggregation(name): "true"}});
        let rule = json!({"aggregationRule": {"clusterRoleSelectors": [selector]}});
        all.push(Wanted::new("ClusterRole", "clusterroles", "", name, rule));
    }
    let roles = defaults.cluster_roles.iter();
    all.extend(roles.map(|(name, rules)| Wanted::cluster_role(name, rules)));
    for (into, name) in &defaults.aggregate {
        if let Some(role) = all.iter_mut().find(|role| role.name == *into) {
            role.label(aggregation(name));
        }
    }
    let mut bindings: Vec<Wanted> = Vec::new();
    for (prefix, controllers) in [("system", &defaults.controllers), ("skiff", &defaults.own)] {
        for (controller, rules) in controllers {
            let name = format!("{prefix}:controller:{controller}");
            all.push(Wanted::cluster_role(&name, rules));
            let subject = format!("ServiceAccount:kube-system:{controller}");
            bindings.push(cluster_binding(&name, &name, &[subject]));
        }
    }
    for (namespace, roles) in &defaults.roles {
        let role = |(name, rules): (&String, &Vec<PolicyRule>)| {
            Wanted::new("Role", "roles", namespace, name, json!({ "rules": rules }))
        };
        all.extend(roles.iter().map(role));
    }
    all.extend(bindings);
    let role_of = |binding: &str| defaults.role_of.get(binding).map_or(binding, String::as_str).to_owned();
    let named = defaults.cluster_role_bindings.iter();
    all.extend(named.map(|(name, subjects)| cluster_binding(name, &role_of(name), subjects)));
    for (namespace, named) in &defaults.role_bindings {
        all.extend(named.iter().map(|(name, subjects)| {
            let own = binding("Role", &role_of(name), subjects);
            Wanted::new("RoleBinding", "rolebindings", namespace, name, own)
        }));
    }
    let node = defaults.cluster_roles.get("system:node").cloned();
    NODE_RULES.get_or_init(|| node.unwrap_or_default());
    Ok(all)
}

fn cluster_binding(name: &str, role: &str, subjects: &[String]) -> Wanted {
    let own = binding("ClusterRole", role, subjects);
    Wanted::new("ClusterRoleBinding", "clusterrolebindings", "", name, own)
}

fn binding(kind: &str, role: &str, subjects: &[String]) -> Value {
    let subjects: Vec<Value> = subjects.iter().map(|text| subject(text)).collect();
    let mut own = json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}});
    if let Some(own) = own.as_object_mut().filter(|_| !subjects.is_empty()) {
        own.insert("subjects".to_owned(), subjects.into());
    }
    own
}

/// `Group:system:masters`, `ServiceAccount:kube-system:kube-dns`
fn subject(text: &str) -> Value {
    let (kind, name) = text.split_once(':').unwrap_or(("User", text));
    if kind == "ServiceAccount" {
        let (namespace, name) = name.split_once(':').unwrap_or(("kube-system", name));
        return json!({"kind": kind, "namespace": namespace, "name": name});
    }
    json!({"apiGroup": GROUP, "kind": kind, "name": name})
}

/// Reconciliation of an existing object.
#[derive(Debug, PartialEq)]
pub(crate) enum Repair {
    /// The object is complete.
    None,
    /// The object must be updated to this.
    Update(Value),
    /// The binding references another role, which is immutable: it must be recreated.
    Replace,
}

/// Compares the existing object with the default.
pub(crate) fn compare(wanted: &Value, existing: &Value) -> Repair {
    let auto = existing
        .pointer("/metadata/annotations")
        .and_then(|all| all.get(AUTO_UPDATE));
    if auto.and_then(Value::as_str) == Some("false") {
        return Repair::None;
    }
    if wanted.get("roleRef") != existing.get("roleRef") {
        return Repair::Replace;
    }
    let mut new = existing.clone();
    for field in ["labels", "annotations"] {
        add_members(&mut new, field, wanted);
    }
    add_items(&mut new, wanted, "/subjects");
    add_items(&mut new, wanted, "/aggregationRule/clusterRoleSelectors");
    if wanted.get("aggregationRule").is_none() {
        // As upstream's `computeReconciledRole`: a role that is to have rules of its own collects none.
        if let Some(object) = new.as_object_mut() {
            object.remove("aggregationRule");
        }
        add_rules(&mut new, wanted);
    }
    if new == *existing {
        Repair::None
    } else {
        Repair::Update(new)
    }
}

fn add_members(new: &mut Value, field: &str, wanted: &Value) {
    let wanted = wanted
        .pointer("/metadata")
        .and_then(|metadata| metadata.get(field)?.as_object());
    let metadata = new.get_mut("metadata").and_then(Value::as_object_mut);
    let (Some(wanted), Some(metadata)) = (wanted, metadata) else {
        return;
    };
    let own = metadata.entry(field).or_insert_with(|| Map::new().into());
    if let Some(own) = own.as_object_mut() {
        for (key, value) in wanted {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

fn add_items(new: &mut Value, wanted: &Value, pointer: &str) {
    let Some(wanted) = wanted.pointer(pointer).and_then(Value::as_array) else {
        return;
    };
    if let Some(Value::Array(own)) = new.pointer_mut(pointer) {
        let missing: Vec<Value> = wanted.iter().filter(|item| !own.contains(item)).cloned().collect();
        own.extend(missing);
        return;
    }
    // None at all: the whole member is missing.
    let (parent, member) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(Value::Object(parent)) = new.pointer_mut(parent) {
        parent.insert(member.to_owned(), wanted.clone().into());
    } else if let (Some(new), Some(name)) = (new.as_object_mut(), parent.strip_prefix('/')) {
        new.insert(name.to_owned(), json!({ member: wanted }));
    }
}

fn add_rules(new: &mut Value, wanted: &Value) {
    let read = |value: &Value| -> Vec<PolicyRule> {
        let rules = value.get("rules").cloned().unwrap_or_default();
        serde_json::from_value(rules).unwrap_or_default()
    };
    if wanted.get("rules").is_none() || wanted.get("rules") == new.get("rules") {
        return;
    }
    let mut rules = read(new);
    match rules::missing(&rules, &read(wanted)) {
        Ok(missing) if !missing.is_empty() => {
            rules.extend(missing);
            if let Some(object) = new.as_object_mut() {
                object.insert("rules".to_owned(), json!(rules));
            }
        }
        Ok(_) | Err(rules::TooMany) => {}
    }
}
