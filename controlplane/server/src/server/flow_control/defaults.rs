//! The objects of flow control that every cluster has
//! (`staging/src/k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap/default.go`), and how they are kept up
//! (`pkg/registry/flowcontrol/ensurer`).

use api::Kind;
use http::Method;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::{Key, Prefix, Store};

use super::{GROUP, LEVELS, SCHEMAS};

/// The names of schemas and levels that no server can do without.
pub(super) const EXEMPT: &str = "exempt";
pub(super) const CATCH_ALL: &str = "catch-all";

const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
const MANAGER: &str = "api-priority-and-fairness-config-producer-v1";

/// Levels with queues: shares, percent that they lend, queues, size of a hand. Queues hold 50 requests each.
const QUEUING: [(&str, u8, u8, u8, u8); 6] = [
    ("system", 30, 33, 64, 6),
    ("node-high", 40, 25, 64, 6),
    ("leader-election", 10, 0, 16, 4),
    ("workload-high", 40, 50, 128, 6),
    ("workload-low", 100, 90, 128, 6),
    ("global-default", 20, 50, 128, 6),
];

fn level(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}},
        "spec": spec,
    })
}

fn all_levels() -> Vec<Value> {
    let queuing = QUEUING.map(|(name, shares, lends, queues, hand)| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        let limited = json!({
            "nominalConcurrencyShares": shares, "lendablePercent": lends,
            "limitResponse": {"type": "Queue", "queuing": queuing},
        });
        level(name, &json!({"type": "Limited", "limited": limited}))
    });
    let exempt = json!({"nominalConcurrencyShares": 0, "lendablePercent": 0});
    let catch_all = json!({"nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}});
    let mandatory = [
        level(CATCH_ALL, &json!({"type": "Limited", "limited": catch_all})),
        level(EXEMPT, &json!({"type": "Exempt", "exempt": exempt})),
    ];
    queuing.into_iter().chain(mandatory).collect()
}

/// A schema: its level, its precedence, the distinguisher's type or nothing, and its only rule.
fn schema(name: &str, level: &str, precedence: u16, by: &str, rule: &Value) -> Value {
    let mut schema = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}},
        "spec": {
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule],
        },
    });
    if !by.is_empty()
        && let Some(spec) = schema.pointer_mut("/spec").and_then(Value::as_object_mut)
    {
        spec.insert("distinguisherMethod".to_owned(), json!({"type": by}));
    }
    schema
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

/// Rule that matches all requests of these subjects.
fn everything(subjects: &[Value]) -> Value {
    json!({
        "subjects": subjects,
        "resourceRules": [{
            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    })
}

fn all_schemas() -> Vec<Value> {
    let everybody = [group("system:unauthenticated"), group("system:authenticated")];
    let nodes = [group("system:nodes")];
    let accounts = [group("system:serviceaccounts")];
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let own_accounts = json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}});
    let probes = json!({
        "subjects": everybody,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    });
    let leases = |verbs: &[&str]| {
        json!({
            "verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"],
        })
    };
    let election = json!({
        "subjects": [manager, scheduler, own_accounts], "resourceRules": [leases(&["get", "create", "update"])],
    });
    let own_node = json!({
        "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"], "clusterScope": true,
        "namespaces": ["*"],
    });
    let node_high = json!({"subjects": nodes, "resourceRules": [own_node, leases(&["*"])]});
    let (by_user, by_namespace) = ("ByUser", "ByNamespace");
    let high = "workload-high";
    vec![
        schema("system-nodes", "system", 500, by_user, &everything(&nodes)),
        schema("system-node-high", "node-high", 400, by_user, &node_high),
        schema("probes", EXEMPT, 2, "", &probes),
        schema("system-leader-election", "leader-election", 100, by_user, &election),
        schema(
            "kube-controller-manager",
            high,
            800,
            by_namespace,
            &everything(&[manager]),
        ),
        schema("kube-scheduler", high, 800, by_namespace, &everything(&[scheduler])),
        schema(
            "kube-system-service-accounts",
            high,
            900,
            by_namespace,
            &everything(&[own_accounts]),
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            by_user,
            &everything(&accounts),
        ),
        schema(
            "global-default",
            "global-default",
            9900,
            by_user,
            &everything(&everybody),
        ),
        schema(EXEMPT, EXEMPT, 1, "", &everything(&[group("system:masters")])),
        schema(CATCH_ALL, CATCH_ALL, 10000, by_user, &everything(&everybody)),
    ]
}

fn read<T: DeserializeOwned>(all: Vec<Value>) -> Vec<T> {
    all.into_iter()
        .filter_map(|object| serde_json::from_value(object).ok())
        .collect()
}

/// Default priority levels, without any stored objects.
pub(super) fn levels() -> Vec<PriorityLevelConfiguration> {
    read(all_levels())
}

/// Default flow schemas, without any stored objects.
pub(super) fn schemas() -> Vec<FlowSchema> {
    read(all_schemas())
}

/// Method, path and object of a request.
type Change = (Method, String, Value);

/// Requests that create missing objects, update those that operators leave to the server, and
/// remove obsolete ones.
pub(crate) fn changes(store: &Store) -> Vec<Change> {
    let mut changes = changes_of::<PriorityLevelConfiguration>(store, LEVELS, all_levels());
    changes.extend(changes_of::<FlowSchema>(store, SCHEMAS, all_schemas()));
    for (_, path, _) in &mut changes {
        path.extend(["?fieldManager=", MANAGER]);
    }
    changes
}

fn changes_of<T: Kind + Serialize + DeserializeOwned>(
    store: &Store,
    plural: &'static str,
    defaults: Vec<Value>,
) -> Vec<Change> {
    let all = format!("/apis/{GROUP}/v1/{plural}");
    let mut changes = Vec::new();
    let mut names = Vec::new();
    for default in defaults {
        let name = text(&default, "/metadata/name");
        let key = Key::new(GROUP, plural, "", &name).ok();
        match key.and_then(|key| store.get(&key)) {
            None => changes.push((Method::POST, all.clone(), default)),
            Some(entry) => {
                let current = serde_json::from_slice(&entry.bytes).unwrap_or_default();
                let revised = revise::<T>(current, default);
                changes.extend(revised.map(|revised| (Method::PUT, format!("{all}/{name}"), revised)));
            }
        }
        names.push(name);
    }
    for entry in store.present(&Prefix::resource(GROUP, plural)) {
        let current: Value = serde_json::from_slice(&entry.bytes).unwrap_or_default();
        let name = entry.key.name();
        if updates(&current) == Some(true) && !names.iter().any(|own| own == name) {
            changes.push((Method::DELETE, format!("{all}/{name}"), Value::Null));
        }
    }
    changes
}

fn text(object: &Value, pointer: &str) -> String {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

/// The annotation that leaves an object to the server, read as Go's `strconv.ParseBool` does.
fn updates(object: &Value) -> Option<bool> {
    match object.pointer("/metadata/annotations")?.get(AUTO_UPDATE)?.as_str()? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Updated object; `None` where it is up to date.
fn revise<T: Kind + Serialize + DeserializeOwned>(mut current: Value, default: Value) -> Option<Value> {
    let is_mandatory = [EXEMPT, CATCH_ALL].contains(&text(&default, "/metadata/name").as_str());
    let told = updates(&current);
    let is_first = current.pointer("/metadata/generation") == Some(&json!(1));
    let wanted = is_mandatory || told.unwrap_or(is_first);
    let mut spec = complete::<T>(default)?;
    // The seats of the level that is exempt are the operator's.
    if let (Some(own), Some(set)) = (spec.pointer_mut("/exempt"), current.pointer("/spec/exempt")) {
        own.clone_from(set);
    }
    let differs = wanted && complete::<T>(current.clone())? != spec;
    if !differs && told == Some(wanted) {
        return None;
    }
    let object = current.as_object_mut()?;
    if differs {
        object.insert("spec".to_owned(), spec);
    }
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    annotations
        .as_object_mut()?
        .insert(AUTO_UPDATE.to_owned(), wanted.to_string().into());
    Some(current)
}

/// The specification of an object with all its defaults.
fn complete<T: Kind + Serialize + DeserializeOwned>(object: Value) -> Option<Value> {
    let mut object: T = serde_json::from_value(object).ok()?;
    object.set_defaults();
    serde_json::to_value(object).ok()?.get_mut("spec").map(Value::take)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_keep_what_they_have_changed_unless_the_server_needs_it() {
        let of = |all: Vec<Value>, name: &str| {
            let found = all.into_iter().find(|object| text(object, "/metadata/name") == name);
            found.unwrap()
        };
        let revise =
            |current: &Value, name: &str| revise::<PriorityLevelConfiguration>(current.clone(), of(all_levels(), name));
        let shares = "/spec/limited/nominalConcurrencyShares";
        for (name, annotation, generation, kept) in [
            ("system", json!({AUTO_UPDATE: "false"}), 2, true),
            ("system", json!({AUTO_UPDATE: "true"}), 2, false),
            ("system", json!({}), 2, true),
            ("system", json!({}), 1, false),
            ("catch-all", json!({AUTO_UPDATE: "false"}), 2, false),
        ] {
            let mut level = of(all_levels(), name);
            level["metadata"]["annotations"] = annotation.clone();
            level["metadata"]["generation"] = generation.into();
            *level.pointer_mut(shares).unwrap() = 77.into();
            let revised = revise(&level, name);
            let after = revised.as_ref().unwrap_or(&level);
            assert_eq!(
                after.pointer(shares) == Some(&json!(77)),
                kept,
                "{name} {annotation} {generation}"
            );
            assert_eq!(after["metadata"]["annotations"][AUTO_UPDATE], (!kept).to_string());
            assert_eq!(revise(after, name), None);
        }
        let mut exempt = of(all_levels(), EXEMPT);
        exempt["spec"]["exempt"]["nominalConcurrencyShares"] = 10.into();
        assert_eq!(revise(&exempt, EXEMPT), None);
    }
}
