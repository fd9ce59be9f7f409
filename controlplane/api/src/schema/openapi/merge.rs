//! v2 documents of other API servers as parts of this server's
//! (`vendor/k8s.io/kube-openapi/pkg/aggregator/aggregator.go`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

pub(super) const DEFINITIONS: &str = "#/definitions/";
pub(super) const PARAMETERS: &str = "#/parameters/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// Part of the v2 document of another server: the paths of one group version, and what they refer to.
pub struct Other {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) paths: Map<String, Value>,
    pub(super) parameters: Map<String, Value>,
    pub(super) definitions: Map<String, Value>,
}

impl Other {
    /// Takes the paths of a group version from a document; definitions that only other paths used are left out.
    pub fn of(mut document: Value, group: &str, version: &str) -> Self {
        let mut take = |member: &str| match document.get_mut(member).map(Value::take) {
            Some(Value::Object(members)) => members,
            _ => Map::new(),
        };
        let mut own = Self {
            group: group.to_owned(),
            version: version.to_owned(),
            paths: take("paths"),
            parameters: take("parameters"),
            definitions: take("definitions"),
        };
        let before = own.used();
        let prefix = format!("/apis/{group}/{version}/");
        own.paths.retain(|path, _| path.starts_with(&prefix));
        let after = own.used();
        let is_kept = |prefix: &str, name: &str| {
            let reference = format!("{prefix}{name}");
            after.contains(&reference) || !before.contains(&reference)
        };
        own.definitions.retain(|name, _| is_kept(DEFINITIONS, name));
        own.parameters.retain(|name, _| is_kept(PARAMETERS, name));
        own
    }

    /// References that are reached from the paths.
    fn used(&self) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        let mut next: Vec<&Value> = self.paths.values().collect();
        while let Some(value) = next.pop() {
            each_reference(value, &mut |reference| {
                if used.insert(reference.to_owned()) {
                    let definition = reference
                        .strip_prefix(DEFINITIONS)
                        .map(|name| self.definitions.get(name));
                    let parameter = || reference.strip_prefix(PARAMETERS).map(|name| self.parameters.get(name));
                    next.extend(definition.or_else(parameter).flatten());
                }
            });
        }
        used
    }
}

/// Visits all references within a value, which is no deeper than its parser allows.
fn each_reference<'v>(value: &'v Value, visit: &mut impl FnMut(&'v str)) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                visit(reference);
            }
            members.values().for_each(|member| each_reference(member, visit));
        }
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn rename(value: &mut Value, renames: &BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref")
                && let Some(new) = renames.get(reference)
            {
                reference.clone_from(new);
            }
            members.values_mut().for_each(|member| rename(member, renames));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renames)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// True if two definitions differ at most in the kinds that they name.
fn are_same(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else {
        return one == other;
    };
    let rest = |own: &Map<String, Value>| own.keys().filter(|name| *name != KINDS).count();
    let mut members = one.iter().filter(|(name, _)| *name != KINDS);
    rest(one) == rest(other) && members.all(|(name, value)| other.get(name) == Some(value))
}

/// Adds the kinds that the other definition names.
fn add_kinds(definition: &mut Value, other: &Value) {
    let Some(Value::Array(new)) = other.get(KINDS) else {
        return;
    };
    if let Some(own) = definition.get_mut(KINDS).and_then(Value::as_array_mut) {
        for kind in new {
            if !own.contains(kind) {
                own.push(kind.clone());
            }
        }
    }
}

/// Finds a name for each new value of which there is another one by its name: `NAME_v2` and so on, as references have it.
fn renames(existing: &Map<String, Value>, new: &Map<String, Value>, prefix: &str) -> BTreeMap<String, String> {
    let mut renames = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for (name, value) in new {
        let is_free = |name: &str| existing.get(name).is_none_or(|own| are_same(own, value));
        if is_free(name) {
            continue;
        }
        let mut names = (2_u64..).map(|count| format!("{name}_v{count}"));
        let found = names.find(|own| is_free(own) && !new.contains_key(own) && !taken.contains(own));
        if let Some(found) = found {
            taken.insert(found.clone());
            renames.insert(format!("{prefix}{name}"), format!("{prefix}{found}"));
        }
    }
    renames
}

/// Additions of other servers' documents to this server's.
#[derive(Default)]
pub(super) struct Merged {
    pub(super) paths: Map<String, Value>,
    pub(super) parameters: Map<String, Value>,
    pub(super) definitions: Map<String, Value>,
    /// Definitions of this server's that others have too.
    pub(super) shared: Map<String, Value>,
}

impl Merged {
    pub(super) fn add(&mut self, mut other: Other) {
        let mut existing = self.shared.clone();
        existing.extend(self.definitions.clone());
        let mut changes = renames(&existing, &other.definitions, DEFINITIONS);
        changes.extend(renames(&self.parameters, &other.parameters, PARAMETERS));
        for members in [&mut other.paths, &mut other.parameters, &mut other.definitions] {
            members.values_mut().for_each(|member| rename(member, &changes));
        }
        let renamed = |prefix: &str, name: String| {
            let new = changes.get(&format!("{prefix}{name}"));
            new.and_then(|new| new.strip_prefix(prefix)).map_or(name, str::to_owned)
        };
        for (name, definition) in other.definitions {
            let name = renamed(DEFINITIONS, name);
            match self.shared.get_mut(&name).or_else(|| self.definitions.get_mut(&name)) {
                Some(own) => add_kinds(own, &definition),
                None => drop(self.definitions.insert(name, definition)),
            }
        }
        let parameters = other.parameters.into_iter();
        self.parameters
            .extend(parameters.map(|(name, own)| (renamed(PARAMETERS, name), own)));
        self.paths.extend(other.paths);
    }

    /// A definition of this server's, with the kinds that others name in it.
    pub(super) fn marked<'d>(&'d self, name: &str, definition: &'d Value) -> Cow<'d, Value> {
        self.shared.get(name).map_or(Cow::Borrowed(definition), Cow::Borrowed)
    }
}
