//! Reference model: an object as facts, and their owners.

use std::collections::{BTreeMap, BTreeSet};

use controlplane_api::managed::Operation;
use serde_json::{Value, json};

/// Type of a field, for the few fields of a Service that are generated.
#[derive(Clone, Copy)]
enum Rule {
    Whole,
    Struct(fn(&str) -> Rule),
    Map,
    Set,
    /// Items with these keys, of which the second defaults to `TCP`.
    Ports,
    /// Atomic items with this key.
    Wholes(&'static str),
}

fn service(member: &str) -> Rule {
    match member {
        "metadata" => Rule::Struct(|member| match member {
            "labels" => Rule::Map,
            "finalizers" => Rule::Set,
            "ownerReferences" => Rule::Wholes("uid"),
            _ => Rule::Whole,
        }),
        "spec" => Rule::Struct(|member| match member {
            "ports" => Rule::Ports,
            "sessionAffinityConfig" => Rule::Struct(|_client| Rule::Struct(|_timeout| Rule::Whole)),
            // `selector` and `externalIPs` are a map and a list, but atomic.
            _ => Rule::Whole,
        }),
        _ => Rule::Whole,
    }
}

/// Path of a fact, in elements of `FieldsV1`.
pub(crate) type Path = Vec<String>;
pub(crate) type Paths = BTreeSet<Path>;

/// Fact about an object: a value, or the existence of a struct, a map, a list or an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fact {
    Value(Value),
    Item,
    Struct,
    Many,
}

pub(crate) type Facts = BTreeMap<Path, Fact>;

pub(crate) fn facts(object: &Value) -> Facts {
    let mut found = Facts::new();
    for top in ["metadata", "spec"] {
        if let Some(value) = object.get(top) {
            note(service(top), value, vec![format!("f:{top}")], &mut found);
        }
    }
    found.remove(&path(&["f:metadata", "f:name"]));
    found
}

pub(crate) fn path(elements: &[&str]) -> Path {
    elements.iter().map(|element| (*element).to_owned()).collect()
}

fn note(rule: Rule, value: &Value, here: Path, found: &mut Facts) {
    let below = |element: String| {
        let mut path = here.clone();
        path.push(element);
        path
    };
    let items = || value.as_array().into_iter().flatten();
    match rule {
        Rule::Whole => {
            found.insert(here, Fact::Value(value.clone()));
            return;
        }
        Rule::Struct(member) => {
            for (name, value) in value.as_object().unwrap() {
                note(member(name), value, below(format!("f:{name}")), found);
            }
            found.insert(here, Fact::Struct);
            return;
        }
        Rule::Map => {
            for (name, value) in value.as_object().unwrap() {
                found.insert(below(format!("f:{name}")), Fact::Value(value.clone()));
            }
        }
        Rule::Set => {
            for item in items() {
                found.insert(below(format!("v:{item}")), Fact::Value(item.clone()));
            }
        }
        Rule::Wholes(key) => {
            for item in items() {
                let element = format!("k:{}", json!({ key: item[key] }));
                found.insert(below(element), Fact::Value(item.clone()));
            }
        }
        Rule::Ports => {
            for item in items() {
                let path = below(port(item));
                for (name, value) in item.as_object().unwrap() {
                    let mut path = path.clone();
                    path.push(format!("f:{name}"));
                    found.insert(path, Fact::Value(value.clone()));
                }
                found.insert(path, Fact::Item);
            }
        }
    }
    if value.as_array().is_none_or(|items| !items.is_empty()) {
        found.insert(here, Fact::Many);
    }
}

/// The path element of a port.
pub(crate) fn port(item: &Value) -> String {
    let protocol = item.get("protocol").cloned().unwrap_or(json!("TCP"));
    format!("k:{}", json!({"port": item["port"], "protocol": protocol}))
}

pub(crate) type Owner = (Operation, &'static str);

/// Facts and their owners.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) facts: Facts,
    pub(crate) owned: BTreeMap<Owner, Paths>,
}

const FIRST: Owner = (Operation::Update, "before-first-apply");

impl Rules {
    /// Differences: paths that are new or have another value, and removed paths. Metadata and spec
    /// are always there.
    fn difference(&self, new: &Facts) -> (Paths, Paths) {
        let counts = |path: &&Path| path.len() > 1;
        let changed = new.iter().filter(|(path, fact)| self.facts.get(*path) != Some(fact));
        let changed = changed.map(|(path, _)| path).filter(counts).cloned().collect();
        let gone = self.facts.keys().filter(|path| !new.contains_key(*path));
        (changed, gone.filter(counts).cloned().collect())
    }

    pub(crate) fn update(&mut self, manager: &'static str, new: Facts) {
        // Nothing is tracked while there are no owners; the first apply makes up for it.
        if !self.is_tracked() && !self.facts.is_empty() {
            self.facts = new;
            return;
        }
        let (changed, gone) = self.difference(&new);
        for owned in self.owned.values_mut() {
            owned.retain(|path| !changed.contains(path) && !gone.contains(path));
        }
        self.owned
            .entry((Operation::Update, manager))
            .or_default()
            .extend(changed);
        self.facts = new;
    }

    fn is_tracked(&self) -> bool {
        self.owned.values().any(|paths| !paths.is_empty())
    }

    /// Applies, or returns the conflicting facts and their owners.
    pub(crate) fn apply(
        &mut self,
        manager: &'static str,
        wanted: &Facts,
        force: bool,
    ) -> Result<(), BTreeSet<(Owner, Path)>> {
        let me = (Operation::Apply, manager);
        let mut owned = self.owned.clone();
        if !self.is_tracked() {
            let all = self.facts.keys().filter(|path| path.len() > 1).cloned();
            owned.insert(FIRST, all.collect());
        }
        let named = wanted.iter().filter(|(path, fact)| match fact {
            Fact::Value(_) | Fact::Item => true,
            // An empty struct is a value of its own.
            Fact::Struct => !wanted
                .keys()
                .any(|other| other.len() > path.len() && other.starts_with(path)),
            Fact::Many => false,
        });
        let named: Paths = named
            .map(|(path, _)| path.clone())
            .filter(|path| path.len() > 1)
            .collect();
        let last = owned.insert(me, named).unwrap_or_default();
        let mut new = self.facts.clone();
        new.extend(wanted.clone());
        let emptied = take_out(&mut new, &last, &owned);
        let (changed, mut gone) = self.difference(&new);
        gone.retain(|path| !emptied.contains(path));
        let mut against = BTreeSet::new();
        for (owner, paths) in owned.iter_mut().filter(|(owner, _)| **owner != me) {
            against.extend(paths.intersection(&changed).map(|path| (*owner, path.clone())));
            paths.retain(|path| !changed.contains(path) && !gone.contains(path));
        }
        if !force && !against.is_empty() {
            return Err(against);
        }
        (self.facts, self.owned) = (new, owned);
        Ok(())
    }
}

/// Removes what the last application had and no manager has now, with everything below. Returns
/// paths that only became empty: the object loses them without a change of ownership.
fn take_out(new: &mut Facts, last: &Paths, owned: &BTreeMap<Owner, Paths>) -> Paths {
    let (last, mut held) = (with_fields_above(last), Paths::new());
    for paths in owned.values() {
        held.extend(with_fields_above(paths));
    }
    held.insert(path(&["f:metadata"]));
    let lines = |path: &Path| {
        (1..=path.len())
            .map(|length| path[..length].to_vec())
            .collect::<Vec<_>>()
    };
    let falls = |path: &Path| lines(path).iter().any(|above| last.contains(above)) && !held.contains(path);
    let gone: Paths = new
        .keys()
        .filter(|path| last.contains(*path) && lines(path).iter().any(falls))
        .cloned()
        .collect();
    let is_below = |other: &Path, path: &Path| other.len() > path.len() && other.starts_with(path);
    let holds = |facts: &Facts, path: &Path| facts.keys().any(|other| is_below(other, path));
    // The name stays in metadata.
    let may_empty = |path: &&Path| holds(new, path) && path.join("/") != "f:metadata";
    let full: Paths = new.keys().filter(may_empty).cloned().collect();
    new.retain(|path, _| !lines(path).iter().any(|above| gone.contains(above)));
    let emptied: Paths = new
        .keys()
        .filter(|path| full.contains(*path) && !holds(new, path))
        .cloned()
        .collect();
    new.retain(|path, _| !emptied.contains(path));
    emptied
}

/// Adds the named fields above the paths.
fn with_fields_above(paths: &Paths) -> Paths {
    let mut all = paths.clone();
    for path in paths {
        for length in 1..path.len() {
            if path[length - 1].starts_with("f:") {
                all.insert(path[..length].to_vec());
            }
        }
    }
    all
}
