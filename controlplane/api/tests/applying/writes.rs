//! Generated writes.

use proptest::prelude::*;
use serde_json::{Value, json};

/// Write of a test.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Apply {
        manager: &'static str,
        wanted: Value,
        force: bool,
    },
    /// Replaces fields in metadata and spec; null removes one.
    Update { manager: &'static str, change: Value },
}

/// Document as the server decodes it: nulls are dropped.
pub(crate) fn typed(document: &Value) -> Value {
    through(document, false)
}

/// The same with defaults.
pub(crate) fn defaulted(document: &Value) -> Value {
    through(document, true)
}

fn through(document: &Value, sets_defaults: bool) -> Value {
    let service = controlplane_api::find_kind("", "v1", "Service").unwrap();
    let mut object = service.decode(document.to_string().as_bytes()).unwrap();
    if sets_defaults {
        service.set_defaults(&mut *object);
    }
    let mut object: Value = serde_json::from_slice(&object.to_json()).unwrap();
    object.as_object_mut().unwrap().remove("status");
    object
}

pub(crate) fn object(metadata: &Value, spec: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
    object["metadata"]["name"] = json!("a");
    if spec.as_object().is_some_and(|spec| !spec.is_empty()) {
        object["spec"] = spec.clone();
    }
    object
}

/// The object with some fields of metadata and spec replaced.
pub(crate) fn changed(live: &Value, change: &Value) -> Value {
    let mut parts = ["metadata", "spec"].map(|top| live.get(top).cloned().unwrap_or_else(|| json!({})));
    for (part, change) in parts.iter_mut().zip([&change["metadata"], &change["spec"]]) {
        let members = part.as_object_mut().unwrap();
        for (name, value) in change.as_object().unwrap() {
            if value.is_null() {
                members.remove(name);
            } else {
                members.insert(name.clone(), value.clone());
            }
        }
    }
    defaulted(&object(&parts[0], &parts[1]))
}

/// An object of some of these members.
fn some(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, value)| {
            prop::option::weighted(0.4, value).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
        })
        .collect();
    members
        .prop_map(|members| Value::Object(members.into_iter().flatten().collect()))
        .boxed()
}

fn map() -> BoxedStrategy<Value> {
    prop::collection::btree_map("[abc]", "[12]", 1..4)
        .prop_map(|map| json!(map))
        .boxed()
}

fn ports() -> BoxedStrategy<Value> {
    let all = vec![(1, None), (1, Some("UDP")), (2, Some("TCP")), (3, Some("UDP"))];
    let items = prop::collection::vec(
        some(vec![
            ("name", "[ab]".prop_map(Value::from).boxed()),
            ("targetPort", (1..3).prop_map(Value::from).boxed()),
        ]),
        4,
    );
    (prop::sample::subsequence(all, 1..=3).prop_shuffle(), items)
        .prop_map(|(keys, items)| {
            let items = keys.iter().zip(items).map(|((port, protocol), mut item)| {
                item["port"] = json!(port);
                if let Some(protocol) = protocol {
                    item["protocol"] = json!(protocol);
                }
                item
            });
            items.collect()
        })
        .boxed()
}

/// The fields of metadata and spec; `null` among them where it means something.
pub(crate) fn fields(clears: bool) -> BoxedStrategy<Value> {
    let or_null = move |value: BoxedStrategy<Value>| {
        if clears {
            prop_oneof![3 => value, 1 => Just(Value::Null)].boxed()
        } else {
            value
        }
    };
    let finalizers = prop::sample::subsequence(vec!["x/a", "x/b", "x/c"], 1..=3).prop_shuffle();
    let owners = prop::sample::subsequence(vec!["u", "v"], 1..=2).prop_flat_map(|uids| {
        let names = prop::collection::vec("[ab]", uids.len());
        names.prop_map(move |names| {
            let owners = uids.iter().zip(names);
            owners
                .map(|(uid, name)| json!({"apiVersion": "v1", "kind": "Pod", "uid": uid, "name": name}))
                .collect::<Value>()
        })
    });
    let addresses = prop::sample::subsequence(vec!["1.1.1.1", "2.2.2.2"], 1..=2).prop_map(Value::from);
    let affinity = (1..3).prop_map(|seconds| json!({"clientIP": {"timeoutSeconds": seconds}}));
    let metadata = some(vec![
        ("labels", or_null(map())),
        ("finalizers", or_null(finalizers.prop_map(Value::from).boxed())),
        ("ownerReferences", or_null(owners.boxed())),
    ]);
    let spec = some(vec![
        ("type", or_null("[AB]".prop_map(Value::from).boxed())),
        ("selector", or_null(map())),
        ("externalIPs", or_null(addresses.boxed())),
        ("sessionAffinityConfig", or_null(affinity.boxed())),
        ("ports", or_null(ports())),
    ]);
    (metadata, spec)
        .prop_map(|(metadata, mut spec): (Value, Value)| {
            // Without it, defaulting drops the settings.
            if spec.get("sessionAffinityConfig").is_some_and(Value::is_object) {
                spec["sessionAffinity"] = json!("ClientIP");
            }
            json!({"metadata": metadata, "spec": spec})
        })
        .boxed()
}

pub(crate) fn writes() -> BoxedStrategy<Write> {
    let managers = prop::sample::select(vec!["one", "two", "three"]);
    let applies = (managers, fields(false), any::<bool>()).prop_map(|(manager, fields, force)| Write::Apply {
        manager,
        wanted: object(&fields["metadata"], &fields["spec"]),
        force,
    });
    let updates = (prop::sample::select(vec!["one", "four"]), fields(true))
        .prop_map(|(manager, change)| Write::Update { manager, change });
    prop_oneof![3 => applies, 2 => updates].boxed()
}
