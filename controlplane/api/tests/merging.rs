//! Strategic merge patches as clients make them: a small generator of patches, written from the
//! format alone, and the expected results. The seed is fixed; a failure prints the smallest case.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use controlplane_api::patch::strategic;
use controlplane_api::schema::Schema;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};

/// Merge rule of a field, for the few fields of a pod that are generated.
#[derive(Clone, Copy)]
enum Rule {
    /// Maps and structs: member by member.
    Members(fn(&str) -> Rule),
    /// Structs with one of several members: members that are not named are removed.
    Union,
    /// Lists of objects, by the value of this member.
    Keyed(&'static str, fn(&str) -> Rule),
    /// Lists of scalars without repetitions.
    Set,
    /// Everything else: the new value.
    Whole,
}

fn whole(_member: &str) -> Rule {
    Rule::Whole
}

fn pod(member: &str) -> Rule {
    match member {
        "metadata" => Rule::Members(|member| match member {
            "labels" => Rule::Members(whole),
            "finalizers" => Rule::Set,
            _ => Rule::Whole,
        }),
        "spec" => Rule::Members(|member| match member {
            "nodeSelector" => Rule::Members(whole),
            "containers" => Rule::Keyed("name", |member| match member {
                "env" => Rule::Keyed("name", whole),
                "resources" => Rule::Members(|_member| Rule::Members(whole)),
                _ => Rule::Whole,
            }),
            "volumes" => Rule::Keyed("name", |_member| Rule::Union),
            _ => Rule::Whole,
        }),
        _ => Rule::Whole,
    }
}

/// Patch that changes `old` to `new`.
fn difference(old: &Map<String, Value>, new: &Map<String, Value>, rule: fn(&str) -> Rule) -> Map<String, Value> {
    let mut patch = Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in new {
        let Some(before) = old.get(name) else {
            patch.insert(name.clone(), value.clone());
            continue;
        };
        if before == value {
            continue;
        }
        match (rule(name), before, value) {
            (Rule::Members(inner), Value::Object(before), Value::Object(after)) => {
                patch.insert(name.clone(), Value::Object(difference(before, after, inner)));
            }
            (Rule::Union, Value::Object(before), Value::Object(after)) => {
                let mut inner = difference(before, after, whole);
                inner.insert("$retainKeys".to_owned(), after.keys().cloned().collect());
                patch.insert(name.clone(), Value::Object(inner));
            }
            (Rule::Keyed(key, inner), Value::Array(before), Value::Array(after)) => {
                patch.insert(name.clone(), items(before, after, key, inner));
                let order = after.iter().map(|item| json!({ key: item[key] })).collect();
                patch.insert(format!("$setElementOrder/{name}"), order);
            }
            (Rule::Set, Value::Array(before), Value::Array(after)) => {
                let only = |these: &[Value], those: &[Value]| -> Value {
                    these.iter().filter(|item| !those.contains(item)).cloned().collect()
                };
                patch.insert(name.clone(), only(after, before));
                patch.insert(format!("$deleteFromPrimitiveList/{name}"), only(before, after));
                patch.insert(format!("$setElementOrder/{name}"), value.clone());
            }
            _ => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    patch
}

/// Patch of a list: changed and new items in their new order, then deletions.
fn items(before: &[Value], after: &[Value], key: &str, rule: fn(&str) -> Rule) -> Value {
    let find = |items: &[Value], item: &Value| items.iter().find(|other| other[key] == item[key]).cloned();
    let mut patch = Vec::new();
    for item in after {
        match find(before, item) {
            None => patch.push(item.clone()),
            Some(old) if old == *item => {}
            Some(old) => {
                let mut change = difference(old.as_object().unwrap(), item.as_object().unwrap(), rule);
                change.insert(key.to_owned(), item[key].clone());
                // An item that is itself a union has its own `$retainKeys`.
                if matches!(rule("any"), Rule::Union) {
                    change.insert(
                        "$retainKeys".to_owned(),
                        item.as_object().unwrap().keys().cloned().collect(),
                    );
                }
                patch.push(Value::Object(change));
            }
        }
    }
    for item in before.iter().filter(|item| find(after, item).is_none()) {
        patch.push(json!({ key: item[key], "$patch": "delete" }));
    }
    Value::Array(patch)
}

fn patched(original: &Value, patch: &Value) -> Value {
    let mut document = original.clone();
    strategic::apply(Schema::named("core.v1.Pod").unwrap(), &mut document, patch).unwrap();
    document
}

fn between(old: &Value, new: &Value) -> Value {
    Value::Object(difference(old.as_object().unwrap(), new.as_object().unwrap(), pod))
}

/// An object of some of these members.
fn some(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, value)| {
            proptest::option::of(value).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
        })
        .collect();
    members
        .prop_map(|members| Value::Object(members.into_iter().flatten().collect()))
        .boxed()
}

fn text() -> BoxedStrategy<Value> {
    "[12]".prop_map(Value::from).boxed()
}

fn map() -> BoxedStrategy<Value> {
    some(vec![("a", text()), ("b", text()), ("c", text())])
}

/// Items of these names, each at most once, in any order.
fn keyed(all: &'static [&'static str], item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (
        prop::sample::subsequence(all, 0..=all.len()).prop_shuffle(),
        prop::collection::vec(item, all.len()),
    )
        .prop_map(|(names, items)| {
            let all = names.iter().zip(items).map(|(name, mut item)| {
                item["name"] = (*name).into();
                item
            });
            all.collect()
        })
        .boxed()
}

fn set() -> BoxedStrategy<Value> {
    prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4)
        .prop_shuffle()
        .prop_map(Value::from)
        .boxed()
}

fn pods(containers: &'static [&'static str]) -> BoxedStrategy<Value> {
    let env = || keyed(&["a", "b", "c"], some(vec![("value", text())]));
    let resources = some(vec![("limits", map()), ("requests", map())]);
    let container = some(vec![
        ("image", text()),
        ("args", set()),
        ("env", env()),
        ("resources", resources),
    ]);
    let volume = some(vec![("emptyDir", map()), ("configMap", map()), ("secret", map())]);
    some(vec![
        (
            "metadata",
            some(vec![("labels", map()), ("finalizers", set()), ("name", text())]),
        ),
        (
            "spec",
            some(vec![
                ("nodeSelector", map()),
                ("tolerations", keyed(&["a", "b"], Just(json!({})).boxed())),
                ("containers", keyed(containers, container)),
                ("volumes", keyed(&["v", "w", "x"], volume)),
            ]),
        ),
    ])
}

const NAMES: &[&str] = &["one", "two", "three", "four"];

fn names(pod: &Value) -> Vec<&str> {
    let containers = pod["spec"]["containers"].as_array();
    containers
        .into_iter()
        .flatten()
        .filter_map(|item| item["name"].as_str())
        .collect()
}

/// True if the items of a list are a subsequence of another's.
fn in_order(part: &[&str], whole: &[&str]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|item| rest.any(|other| other == item))
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(36),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_patch_between_two_objects_makes_one_of_the_other(old in pods(NAMES), new in pods(NAMES)) {
        let patch = between(&old, &new);
        let result = patched(&old, &patch);
        prop_assert_eq!(&result, &new, "{}", patch);
        prop_assert_eq!(&patched(&result, &patch), &new, "a second time");
        prop_assert_eq!(&patched(&new, &between(&new, &new)), &new, "nothing to do");
    }

    /// Same as `kubectl apply`: the patch is made from the last and the new object and does not
    /// know what others added meanwhile.
    #[test]
    fn what_others_added_stays(
        last in pods(NAMES),
        new in pods(NAMES),
        foreign in keyed(&["x", "y"], some(vec![("image", text())])),
        places in prop::collection::vec(any::<prop::sample::Index>(), 2),
    ) {
        let (mut last, mut new) = (last, new);
        for pod in [&mut last, &mut new] {
            let containers = &mut pod["spec"]["containers"];
            *containers = containers.as_array().cloned().unwrap_or_default().into();
        }
        let mut live = last.clone();
        let containers = live["spec"]["containers"].as_array_mut().unwrap();
        for (item, place) in foreign.as_array().unwrap().iter().zip(&places) {
            containers.insert(place.index(containers.len() + 1), item.clone());
        }
        let patch = between(&last, &new);
        let result = patched(&live, &patch);
        let is_foreign = |name: &&str| ["x", "y"].contains(name);
        let (theirs, ours): (Vec<&str>, Vec<&str>) = names(&result).into_iter().partition(is_foreign);
        prop_assert_eq!(ours, names(&new), "{}", patch);
        let before: Vec<&str> = names(&live).into_iter().filter(is_foreign).collect();
        prop_assert_eq!(theirs, before, "{}", patch);
        for item in result["spec"]["containers"].as_array().unwrap() {
            let sources = [&new["spec"]["containers"], &foreign];
            prop_assert!(sources.iter().any(|source| source.as_array().unwrap().contains(item)), "{} {}", item, patch);
        }
        let mut rest = result.clone();
        rest["spec"]["containers"] = new["spec"]["containers"].clone();
        prop_assert_eq!(rest, new);
    }

    #[test]
    fn without_an_order_nothing_is_lost(old in pods(NAMES), change in pods(NAMES)) {
        let result = patched(&old, &change);
        prop_assert_eq!(&patched(&result, &change), &result, "a second time");
        let (before, named, after) = (names(&old), names(&change), names(&result));
        let kept: Vec<&str> = before.iter().copied().filter(|name| !named.contains(name)).collect();
        prop_assert!(in_order(&kept, &after) && in_order(&named, &after), "{:?} {:?} {:?}", before, named, after);
        prop_assert!(after.iter().all(|name| before.contains(name) || named.contains(name)));
    }

    #[test]
    fn replace_and_delete_mean_all_of_it(old in pods(NAMES), new in pods(NAMES)) {
        let mut replacing = new.clone();
        replacing["$patch"] = "replace".into();
        prop_assert_eq!(&patched(&old, &replacing), &new);
        prop_assert_eq!(patched(&old, &json!({"$patch": "delete"})), json!({}));
        if let Some(containers) = new["spec"]["containers"].as_array() {
            let mut list = containers.clone();
            list.push(json!({"$patch": "replace"}));
            let result = patched(&old, &json!({"spec": {"containers": list}}));
            if old["spec"]["containers"].is_array() {
                prop_assert_eq!(&result["spec"]["containers"], &new["spec"]["containers"]);
            }
        }
    }

    #[test]
    fn whatever_is_sent_has_an_answer(old in pods(NAMES), patch in spoiled()) {
        let mut document = old;
        drop(strategic::apply(Schema::named("core.v1.Pod").unwrap(), &mut document, &patch));
    }
}

/// Patches that make little sense.
fn spoiled() -> BoxedStrategy<Value> {
    let words = vec![
        "spec",
        "containers",
        "metadata",
        "finalizers",
        "name",
        "env",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$deleteFromPrimitiveList/finalizers",
        "$deleteFromPrimitiveList/containers",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!("delete")),
        Just(json!("replace")),
        Just(json!("merge")),
        Just(json!("one")),
        Just(json!(1)),
        Just(json!(true)),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        let members = prop::collection::btree_map(prop::sample::select(words.clone()), inner.clone(), 0..4);
        prop_oneof![
            2 => members.prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
    .boxed()
}
