//! Compares server-side apply with a reference model, on an object with all types of field:
//! structs, maps, sets, lists with keys, and atomic values. The model is a flat list of facts and
//! their owners; it has no trees, no schema and no order. The seed is fixed; a failure prints the
//! smallest case.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod rules;
mod writes;

use std::collections::BTreeMap;

use controlplane_api::Kinds;
use controlplane_api::managed::{
    Application, ApplyError, Change, Managed, Operation, Set, Writer, apply, compare, update,
};
use controlplane_api::schema::Schema;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use rules::{Path, Paths, Rules, facts, port};
use writes::{Write, changed, defaulted, fields, object, typed, writes};

/// The same writes with the real implementation.
struct Real {
    object: Value,
    managed: Managed,
}

impl Real {
    fn update(&mut self, manager: &str, new: &Value) {
        let schema = Schema::named("core.v1.Service").unwrap();
        let kinds = Kinds::default();
        let change = Change {
            kinds: (&kinds).into(),
            kind: "Service",
            live: &self.object.to_string(),
            new: &new.to_string(),
        };
        let comparison = compare(schema, change.live, change.new);
        // Same as the server: an object without entries keeps none.
        if !self.managed.is_empty() || self.object == json!({}) {
            update(&mut self.managed, change, comparison, &writer(manager));
        }
        self.object = new.clone();
    }

    fn apply(&mut self, manager: &str, wanted: &Value, force: bool) -> Result<(), ApplyError> {
        let kinds = Kinds::default();
        let application = Application {
            kinds: (&kinds).into(),
            types: Schema::named("core.v1.Service").unwrap().into(),
            kind: "Service",
            live: &self.object,
            applied: wanted,
            writer: &writer(manager),
            force,
            ignored: &Set::default(),
        };
        let applied = apply(&application, self.managed.clone())?;
        self.object = typed(&applied.object);
        self.managed = applied.managed;
        Ok(())
    }

    /// Adds defaults after an apply, as the server does: no manager owns them.
    fn set_defaults(&mut self) {
        self.object = defaulted(&self.object);
    }
}

fn writer(manager: &str) -> Writer {
    Writer {
        manager: manager.to_owned(),
        api_version: "v1".to_owned(),
        subresource: String::new(),
        time: "2026-01-01T00:00:00Z".to_owned(),
    }
}

fn check(writes: &[Write]) -> Result<(), TestCaseError> {
    let mut rules = Rules::default();
    let mut real = Real {
        object: json!({}),
        managed: Managed::default(),
    };
    for write in writes {
        let before = real.object.clone();
        match write {
            Write::Update { manager, change } => {
                let new = changed(&real.object, change);
                real.update(manager, &new);
                rules.update(manager, facts(&new));
            }
            Write::Apply { manager, wanted, force } => {
                let expected = rules.apply(manager, &facts(wanted), *force);
                match (real.apply(manager, wanted, *force), expected) {
                    (Ok(()), Ok(())) => {
                        keeps_order(&before, wanted, &real.object)?;
                    }
                    (Err(ApplyError::Conflict(found)), Err(expected)) => {
                        prop_assert_eq!(found.len(), expected.len(), "{:?} {:?}", found, expected);
                    }
                    (found, expected) => prop_assert!(false, "{:?}: {:?}, not {:?}", write, found, expected),
                }
            }
        }
        prop_assert_eq!(&facts(&real.object), &rules.facts, "after {:?}", write);
        real.set_defaults();
        rules.facts = facts(&real.object);
        let owned = rules.owned.iter().filter(|(_, paths)| !paths.is_empty());
        let expected: BTreeMap<(Operation, String), &Paths> = owned
            .map(|((operation, name), paths)| ((*operation, (*name).to_owned()), paths))
            .collect();
        let found: BTreeMap<(Operation, String), Paths> = real
            .managed
            .entries()
            .iter()
            .map(|entry| ((entry.operation, entry.manager.clone()), members(&entry.fields)))
            .collect();
        let found: BTreeMap<(Operation, String), &Paths> =
            found.iter().map(|(owner, paths)| (owner.clone(), paths)).collect();
        prop_assert_eq!(found, expected, "after {:?}", write);
        prop_assert_eq!(&Managed::parse(&real.managed.to_json()).unwrap(), &real.managed);
    }
    Ok(())
}

/// The paths of a set, read off its JSON.
fn members(set: &Set) -> Paths {
    fn walk(value: &Value, here: &Path, found: &mut Paths) {
        let members = value.as_object().unwrap();
        if members.is_empty() || members.contains_key(".") {
            found.insert(here.clone());
        }
        for (element, below) in members.iter().filter(|(element, _)| *element != ".") {
            let mut path = here.clone();
            path.push(element.clone());
            walk(below, &path, found);
        }
    }
    let mut found = Paths::new();
    walk(&serde_json::to_value(set).unwrap(), &Path::new(), &mut found);
    found
}

/// Checks that applied items have the order of the application, and all others their former order.
fn keeps_order(before: &Value, wanted: &Value, after: &Value) -> Result<(), TestCaseError> {
    let keys = |object: &Value, list: &str| -> Vec<String> {
        let items = object.pointer(list).and_then(Value::as_array);
        let key = |item: &Value| if item.is_string() { item.to_string() } else { port(item) };
        items.into_iter().flatten().map(key).collect()
    };
    for list in ["/metadata/finalizers", "/spec/ports"] {
        let (before, wanted, after) = (keys(before, list), keys(wanted, list), keys(after, list));
        let applied: Vec<&String> = after.iter().filter(|key| wanted.contains(key)).collect();
        prop_assert_eq!(applied, wanted.iter().collect::<Vec<_>>(), "{} of {:?}", list, before);
        let others: Vec<&String> = after.iter().filter(|key| !wanted.contains(key)).collect();
        let stood: Vec<&String> = before.iter().filter(|key| others.contains(key)).collect();
        prop_assert_eq!(others, stood, "{} after {:?}", list, wanted);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(36),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_fact_has_the_owners_that_the_rules_give_it(writes in prop::collection::vec(writes(), 1..10)) {
        check(&writes)?;
    }

    /// Whatever others did meanwhile: applying again by force changes the differences, and a third
    /// apply changes nothing.
    #[test]
    fn an_apply_is_done_once(writes in prop::collection::vec(writes(), 0..8), fields in fields(false)) {
        let mut real = Real { object: json!({}), managed: Managed::default() };
        for write in &writes {
            match write {
                Write::Update { manager, change } => {
                    let new = changed(&real.object, change);
                    real.update(manager, &new);
                }
                Write::Apply { manager, wanted, .. } => {
                    real.apply(manager, wanted, true).unwrap();
                    real.set_defaults();
                }
            }
        }
        let wanted = object(&fields["metadata"], &fields["spec"]);
        real.apply("me", &wanted, true).unwrap();
        real.set_defaults();
        let (object, managed) = (real.object.clone(), real.managed.clone());
        real.apply("me", &wanted, false).unwrap();
        real.set_defaults();
        prop_assert_eq!(&real.object, &object);
        prop_assert_eq!(&real.managed, &managed);
        // Applied fields are there, and the applier owns them.
        let (all, own) = (facts(&real.object), facts(&wanted));
        for (path, fact) in own {
            prop_assert_eq!(all.get(&path), Some(&fact), "{:?}", path);
        }
        // Applying nothing removes all fields that only this applier owned.
        let nothing = bare();
        real.apply("me", &nothing, false).unwrap();
        prop_assert!(real.managed.entries().iter().all(|entry| entry.manager != "me"));
    }
}

/// Empty application.
fn bare() -> Value {
    object(&json!({}), &json!({}))
}

/// Live items keep their position when others are applied around them: before the shared item that
/// followed them.
#[test]
fn live_items_keep_their_neighbours() {
    let rows = [
        ("abc", "db", "adbc"),
        ("abc", "ca", "bca"),
        ("abc", "xy", "abcxy"),
        ("ab", "bxa", "bxa"),
        ("xay", "ab", "xayb"),
        ("abcd", "dxb", "acdxb"),
        ("abcd", "bxd", "abcxd"),
    ];
    let list = |letters: &str| letters.chars().map(|letter| format!("x/{letter}")).collect::<Vec<_>>();
    let metadata = |letters: &str| object(&json!({"finalizers": list(letters)}), &json!({}));
    for (live, wanted, expected) in rows {
        let mut real = Real {
            object: json!({}),
            managed: Managed::default(),
        };
        real.update("one", &metadata(live));
        real.apply("two", &metadata(wanted), false).unwrap();
        assert_eq!(
            real.object["metadata"]["finalizers"],
            json!(list(expected)),
            "{wanted} onto {live}"
        );
    }
}
