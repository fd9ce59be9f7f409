//! Compares server-side apply with a small reference model: owners of a map's keys, and its values.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};

use controlplane_api::Kinds;
use controlplane_api::managed::{
    Application, ApplyError, Change, Managed, Operation, Set, Writer, apply, compare, update,
};
use controlplane_api::schema::Schema;
use proptest::prelude::*;
use serde_json::{Value, json};

type Data = BTreeMap<String, String>;

/// Write of a test.
#[derive(Clone, Debug)]
enum Write {
    Apply {
        manager: &'static str,
        wanted: Data,
        force: bool,
    },
    Update {
        manager: &'static str,
        new: Data,
    },
}

/// Reference model without paths, lists or structs.
#[derive(Debug, Default)]
struct Rules {
    data: Data,
    owners: BTreeMap<String, BTreeSet<(Operation, &'static str)>>,
}

impl Rules {
    /// Performs the write; true if it is accepted.
    fn write(&mut self, write: &Write) -> bool {
        match write {
            Write::Update { manager, new } => {
                for (key, value) in new {
                    if self.data.get(key) != Some(value) {
                        self.owners
                            .insert(key.clone(), BTreeSet::from([(Operation::Update, *manager)]));
                    }
                }
                self.owners.retain(|key, _| new.contains_key(key));
                self.data.clone_from(new);
                true
            }
            Write::Apply { manager, wanted, force } => {
                let me = (Operation::Apply, *manager);
                let others = |key: &String| self.owners.get(key).is_some_and(|all| all.iter().any(|own| *own != me));
                let taken = |(key, value): (&String, &String)| self.data.get(key) != Some(value) && others(key);
                if !force && wanted.iter().any(taken) {
                    return false;
                }
                for (key, value) in wanted {
                    let owners = self.owners.entry(key.clone()).or_default();
                    if self.data.insert(key.clone(), value.clone()).as_ref() != Some(value) {
                        owners.clear();
                    }
                    owners.insert(me);
                }
                for (key, owners) in &mut self.owners {
                    if !wanted.contains_key(key) && owners.remove(&me) && owners.is_empty() {
                        self.data.remove(key);
                    }
                }
                self.owners.retain(|_, owners| !owners.is_empty());
                true
            }
        }
    }
}

/// Object under test: the data of a ConfigMap, or the variables of a container, each with a part
/// that is always there.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kind: &'static str,
    schema: &'static str,
    wrap: fn(&Data) -> Value,
    unwrap: fn(&Value) -> Data,
    path: fn(&str) -> Vec<String>,
}

const MAP: Shape = Shape {
    kind: "ConfigMap",
    schema: "core.v1.ConfigMap",
    wrap: |data| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}),
    unwrap: |object| serde_json::from_value(object["data"].clone()).unwrap_or_default(),
    path: |key| vec!["f:data".to_owned(), format!("f:{key}")],
};

const LIST: Shape = Shape {
    kind: "Pod",
    schema: "core.v1.Pod",
    wrap: |data| {
        let env: Vec<Value> = data
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "c", "env": env}]}})
    },
    unwrap: |object| {
        let env = object["spec"]["containers"][0]["env"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        env.iter()
            .map(|item| (text(&item["name"]), text(&item["value"])))
            .collect()
    },
    path: |key| {
        let item = format!("k:{{\"name\":\"{key}\"}}");
        [
            "f:spec",
            "f:containers",
            "k:{\"name\":\"c\"}",
            "f:env",
            &item,
            "f:value",
        ]
        .map(str::to_owned)
        .to_vec()
    },
};

fn writer(manager: &str) -> Writer {
    Writer {
        manager: manager.to_owned(),
        api_version: "v1".to_owned(),
        subresource: String::new(),
        time: "2026-01-01T00:00:00Z".to_owned(),
    }
}

fn owners(managed: &Managed, path: &[&str]) -> BTreeSet<(Operation, String)> {
    let entries = managed.entries().iter();
    let own = entries.filter(|entry| entry.fields.contains(path));
    own.map(|entry| (entry.operation, entry.manager.clone())).collect()
}

/// Runs the writes on both; the results must be the same after each.
fn check(shape: Shape, writes: &[Write]) -> Result<(), TestCaseError> {
    let schema = Schema::named(shape.schema).unwrap();
    let base = Write::Update {
        manager: "base",
        new: Data::from([("z".to_owned(), "0".to_owned())]),
    };
    let (mut rules, mut managed) = (Rules::default(), Managed::default());
    let mut live = json!({});
    for write in std::iter::once(&base).chain(writes) {
        let passed = match write {
            Write::Update { manager, new } => {
                let mut new = new.clone();
                new.insert("z".to_owned(), "0".to_owned());
                let new = (shape.wrap)(&new);
                let kinds = Kinds::default();
                let change = Change {
                    kinds: (&kinds).into(),
                    kind: shape.kind,
                    live: &live.to_string(),
                    new: &new.to_string(),
                };
                let difference = compare(schema, change.live, change.new);
                update(&mut managed, change, difference, &writer(manager));
                live = new;
                true
            }
            Write::Apply { manager, wanted, force } => {
                let kinds = Kinds::default();
                let application = Application {
                    kinds: (&kinds).into(),
                    types: schema.into(),
                    kind: shape.kind,
                    live: &live,
                    applied: &(shape.wrap)(wanted),
                    writer: &writer(manager),
                    force: *force,
                    ignored: &Set::default(),
                };
                match apply(&application, managed.clone()) {
                    Ok(applied) => {
                        (live, managed) = (applied.object, applied.managed);
                        true
                    }
                    Err(ApplyError::Conflict(conflicts)) => {
                        prop_assert!(!conflicts.is_empty());
                        false
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
        };
        let mut same = write.clone();
        if let Write::Update { new, .. } = &mut same {
            new.insert("z".to_owned(), "0".to_owned());
        }
        prop_assert_eq!(passed, rules.write(&same), "{:?}", write);
        prop_assert_eq!(&(shape.unwrap)(&live), &rules.data, "{:?}", write);
        for key in ["a", "b", "c", "z"] {
            let path = (shape.path)(key);
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let owners = owners(&managed, &path);
            let expected = rules.owners.get(key).into_iter().flatten();
            let expected = expected
                .map(|(operation, name)| (*operation, (*name).to_owned()))
                .collect();
            prop_assert_eq!(owners, expected, "{} after {:?}", key, write);
        }
        prop_assert_eq!(&Managed::parse(&managed.to_json()).unwrap(), &managed);
    }
    Ok(())
}

fn data() -> impl Strategy<Value = Data> {
    prop::collection::btree_map("[abc]", "[12]", 0..3)
}

fn applies() -> impl Strategy<Value = Write> {
    (prop::sample::select(vec!["one", "two", "three"]), data(), any::<bool>())
        .prop_map(|(manager, wanted, force)| Write::Apply { manager, wanted, force })
}

fn writes() -> impl Strategy<Value = Write> {
    let updates =
        (prop::sample::select(vec!["one", "four"]), data()).prop_map(|(manager, new)| Write::Update { manager, new });
    prop_oneof![3 => applies(), 1 => updates]
}

proptest! {
    #[test]
    fn maps_follow_the_rules(writes in prop::collection::vec(writes(), 0..12)) {
        check(MAP, &writes)?;
    }

    #[test]
    fn lists_follow_the_rules(mut writes in prop::collection::vec(applies(), 0..12)) {
        // A forced apply takes the value, but not the item: the rules of this test do not model
        // that.
        for write in &mut writes {
            if let Write::Apply { force, .. } = write {
                *force = false;
            }
        }
        check(LIST, &writes)?;
    }

    #[test]
    fn any_text_is_survived(json in "[\\[\\]{}\":,a0\\\\ ]{0,40}", managed in "[\\[\\]{}\":,fk.a]{0,40}") {
        let schema = Schema::named("core.v1.Pod").unwrap();
        compare(schema, "{}", &json);
        compare(schema, &json, "{}");
        drop(Managed::parse(&managed));
        controlplane_api::managed::splice::split(json.as_bytes());
    }
}

#[test]
fn attack_24_large_sets_in_the_wrong_order_are_read() {
    let elements: Vec<String> = (0..30_000)
        .rev()
        .map(|number| format!("\"f:{number:05}\":{{}}"))
        .collect();
    let entry = |manager: &str, fields: &str| {
        format!(
            r#"{{"manager":"{manager}","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{{fields}}}}}}}"#
        )
    };
    let (even, odd): (Vec<_>, Vec<_>) = elements.iter().enumerate().partition(|(place, _)| place % 2 == 0);
    let text = |half: Vec<(usize, &String)>| {
        half.into_iter()
            .map(|(_, text)| text.as_str())
            .collect::<Vec<_>>()
            .join(",")
    };
    let json = format!("[{},{}]", entry("a", &text(even)), entry("b", &text(odd)));
    let mut all = Set::default();
    for entry in Managed::parse(&json).unwrap().entries() {
        all.union(entry.fields.clone());
    }
    assert_eq!(all.paths().len(), 30_000);
}

#[test]
fn deep_and_doubled_input_is_bounded() {
    let schema = Schema::named("apps.v1.ControllerRevision").unwrap();
    let deep = format!(
        r#"{{"data":{}{}}}"#,
        r#"{"a":"#.repeat(126),
        "1".to_owned() + &"}".repeat(126)
    );
    assert_eq!(compare(schema, "{}", &deep).changed.paths(), [".data"]);
    let fields = format!("{}{}", r#"{"f:a":"#.repeat(200), "{}".to_owned() + &"}".repeat(200));
    let entry = format!(r#"[{{"operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}]"#);
    assert!(Managed::parse(&entry).is_err(), "deeper than any object");
    let schema = Schema::named("core.v1.Pod").unwrap();
    let twice = r#"{"spec":{"containers":[{"name":"a","image":"x"},{"name":"a","image":"y"}]}}"#;
    let once = r#"{"spec":{"containers":[{"name":"a","image":"x"}]}}"#;
    let found = compare(schema, once, twice);
    assert_eq!(found.changed.paths(), [".spec.containers[name=\"a\"]"]);
    assert_eq!(found.removed.paths().len(), 3, "{:?}", found.removed.paths());
}
