//! Server-side apply: merges a manager's configuration into an object and detects conflicts with
//! other managers.

use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;

use super::entries::{Entry, Managed, Operation};
use super::last_applied;
use super::set::Set;
use super::strip;
use super::typed::check;
use super::typed::compare::compare;
use super::typed::fields::{fields, with_structs};
use super::typed::merge::{merge, without};
use super::typed::shape::Types;
use super::update::{Writer, take};
use super::versions::{self, Change, Versioning, Versions, converted};

/// Inputs of a server-side apply.
pub struct Application<'a> {
    /// The table of kinds.
    pub kinds: Versioning<'a>,
    /// The kind.
    pub types: Types<'a>,
    /// Name of the kind, for messages.
    pub kind: &'a str,
    /// Stored object without its managed fields; `{}` if there is none.
    pub live: &'a Value,
    /// The applied configuration.
    pub applied: &'a Value,
    /// The applying manager, with the served version.
    pub writer: &'a Writer,
    /// Takes fields from other managers.
    pub force: bool,
    /// Fields that this write must not change: `status`, or all but `status`.
    pub ignored: &'a Set,
}

/// Result of a server-side apply.
#[derive(Debug)]
pub struct Applied {
    /// The new object, before defaults.
    pub object: Value,
    /// Its entries.
    pub managed: Managed,
}

/// Error of a server-side apply.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// 400: the configuration is not an object of the kind and version in the path, or has managed
    /// fields.
    #[error("{0}")]
    Malformed(String),
    /// 500 with this text and no reason, as upstream: the configuration does not fit the schema.
    #[error("{0}")]
    Unfit(String),
    /// 409: other managers have these fields with other values.
    #[error("{}", conflict_message(.0))]
    Conflict(Vec<Conflict>),
}

/// Field that another manager owns with another value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Conflict {
    /// The manager as upstream prints it: `"kubectl" using apps/v1`.
    pub manager: String,
    /// The field: `.spec.replicas`.
    pub field: String,
}

/// Upstream's message for conflicts.
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            only.manager, only.field
        );
    }
    let mut lines = Vec::with_capacity(conflicts.len() + 1);
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies a configuration.
///
/// # Errors
/// See [`ApplyError`].
pub fn apply(application: &Application<'_>, mut managed: Managed) -> Result<Applied, ApplyError> {
    check_kind(application)?;
    if managed.is_empty() {
        begin(application, &mut managed);
    }
    check_fields(application)?;
    let (kind, own) = (application.kind, &application.writer.api_version);
    managed
        .entries
        .retain(|entry| versions::are_one(application.kinds, kind, own, &entry.api_version));
    let outcome = merged(application, managed.clone(), application.force);
    let mut applied = match outcome {
        Err(conflicts) => retry(application, managed, conflicts)?,
        Ok(applied) => applied,
    };
    if application.writer.manager == last_applied::MANAGER {
        last_applied::keep_up(&mut applied.object, application.applied);
    }
    Ok(applied)
}

/// Retries without conflicts over fields that the same user set with client-side apply.
fn retry(application: &Application<'_>, managed: Managed, conflicts: Conflicts) -> Result<Applied, ApplyError> {
    let allowed = if application.writer.manager == last_applied::MANAGER {
        let Application {
            types, writer, live, ..
        } = application;
        last_applied::allowed(*types, &writer.api_version, live)
    } else {
        None
    };
    let mut left = conflicts;
    if let Some(allowed) = allowed {
        for (_, fields) in &mut left {
            fields.subtract(&allowed);
        }
        left.retain(|(_, fields)| !fields.is_empty());
        if left.is_empty()
            && let Ok(applied) = merged(application, managed, true)
        {
            return Ok(applied);
        }
    }
    Err(ApplyError::Conflict(listed(&left)))
}

/// Conflicting fields by the entry that owns them.
type Conflicts = Vec<(Entry, Set)>;

fn listed(conflicts: &Conflicts) -> Vec<Conflict> {
    let mut all = Vec::new();
    for (entry, fields) in conflicts {
        let manager = printed(entry);
        all.extend(fields.paths().into_iter().map(|field| Conflict {
            manager: manager.clone(),
            field,
        }));
    }
    all.sort_by(|left, right| left.manager.cmp(&right.manager));
    all
}

fn printed(entry: &Entry) -> String {
    let through = if entry.subresource.is_empty() {
        String::new()
    } else {
        format!(" with subresource {:?}", entry.subresource)
    };
    let version = match entry.operation {
        Operation::Update => format!(" using {}", entry.api_version),
        Operation::Apply => String::new(),
    };
    format!("{:?}{through}{version}", entry.manager)
}

fn text_of<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    let mut value = Some(object);
    for part in path {
        value = value.and_then(|value| value.get(part));
    }
    value.and_then(Value::as_str).unwrap_or_default()
}

fn check_kind(application: &Application<'_>) -> Result<(), ApplyError> {
    let applied = application.applied;
    let (version, kind) = (text_of(applied, &["apiVersion"]), text_of(applied, &["kind"]));
    if version != application.writer.api_version || kind != application.kind {
        return Err(ApplyError::Malformed(format!(
            "invalid object type: {}",
            named(version, kind)
        )));
    }
    let entries = applied
        .get("metadata")
        .and_then(|metadata| metadata.get("managedFields"));
    if entries.is_some_and(|entries| !entries.is_null()) {
        return Err(ApplyError::Malformed("metadata.managedFields must be nil".to_owned()));
    }
    Ok(())
}

/// `apps/v1, Kind=Deployment`; of core `/v1, Kind=Pod`.
fn named(version: &str, kind: &str) -> String {
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}, Kind={kind}")
}

fn check_fields(application: &Application<'_>) -> Result<(), ApplyError> {
    let api_version = &application.writer.api_version;
    check_shape(application.types, api_version, application.kind, application.applied)
}

/// Checks that an applied configuration fits the schema of its kind.
///
/// # Errors
/// Upstream's message for the fields that do not fit.
pub fn check_shape<'s>(
    types: impl Into<Types<'s>>,
    api_version: &str,
    kind: &str,
    applied: &Value,
) -> Result<(), ApplyError> {
    let found = check::check(types.into(), applied);
    if found.is_empty() {
        return Ok(());
    }
    Err(ApplyError::Unfit(format!(
        "failed to create typed patch object ({}/{}; {}): {}",
        text_of(applied, &["metadata", "namespace"]),
        text_of(applied, &["metadata", "name"]),
        named(api_version, kind),
        check::joined(&found),
    )))
}

/// Adds an entry for the fields of an object that has no managed fields yet.
fn begin(application: &Application<'_>, managed: &mut Managed) {
    let mut whole = compare(application.types, "{}", &application.live.to_string());
    whole.changed.subtract_trees(application.ignored);
    let writer = Writer {
        manager: "before-first-apply".to_owned(),
        ..application.writer.clone()
    };
    take(managed, whole.changed, &writer);
}

/// Merged object with its entries, or the conflicts.
fn merged(application: &Application<'_>, mut managed: Managed, force: bool) -> Result<Applied, Conflicts> {
    let Application {
        types,
        live,
        applied,
        writer,
        ..
    } = *application;
    let mut wanted = fields(types, &applied.to_string());
    wanted.subtract_trees(application.ignored);
    let mut own = writer.entry(Operation::Apply, wanted);
    let before = managed
        .place(&own)
        .and_then(|place| managed.entries.get(place))
        .cloned();
    own.time = before.as_ref().and_then(|entry| entry.time.clone());
    managed.put(own.clone());
    let object = merge(types, live, applied);
    let object = match &before {
        Some(before) => prune(application, object, &managed, before),
        None => object,
    };
    let (old, new) = (live.to_string(), object.to_string());
    let change = Change {
        kinds: application.kinds,
        kind: application.kind,
        live: &old,
        new: &new,
    };
    let mut versions = Versions::new(change, &writer.api_version, compare(types, &old, &new));
    let mut conflicts = Vec::new();
    for entry in managed.entries.iter_mut().filter(|entry| !entry.is_same_manager(&own)) {
        let Some(comparison) = versions.of(&entry.api_version) else {
            continue;
        };
        let mut conflict = entry.fields.intersection(&comparison.changed);
        conflict.subtract_trees(application.ignored);
        if !conflict.is_empty() {
            entry.fields.subtract(&conflict);
            conflicts.push((entry.clone(), conflict));
        }
        entry.fields.subtract(&comparison.removed);
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    strip(&mut own.fields);
    if object != *live {
        own.time = Some(writer.time.clone());
    }
    managed.put(own);
    managed.tidy();
    Ok(Applied { object, managed })
}

/// Removes fields that the manager applied last time but not this time, unless another manager owns
/// them.
fn prune(application: &Application<'_>, merged: Value, managed: &Managed, last: &Entry) -> Value {
    let own = &application.writer.api_version;
    let mut owned: BTreeMap<&str, Set> = BTreeMap::new();
    for entry in &managed.entries {
        let fields = owned.entry(&entry.api_version).or_default();
        fields.union(entry.fields.clone());
    }
    let mut left_out = last.fields.clone();
    if let Some(owned) = owned.get(&*last.api_version) {
        left_out.subtract(owned);
    }
    if left_out.is_empty() {
        return merged;
    }
    // The version of the last apply comes first: fields missing in it may be unavailable for a
    // conversion.
    let first = (&*last.api_version, owned.remove(&*last.api_version).unwrap_or_default());
    let versions: Vec<(&str, Set)> = std::iter::once(first).chain(owned).collect();
    let pruned = taken_out((application.kinds, application.kind), own, &merged, &versions, last);
    pruned.unwrap_or(merged)
}

/// Object without the fields that only the last apply owned; `versions` holds the fields of each
/// version's managers, that of `last` first. None if the object is not served in one of them.
fn taken_out(
    (kinds, kind): (Versioning<'_>, &str),
    own: &str,
    merged: &Value,
    versions: &[(&str, Set)],
    last: &Entry,
) -> Option<Value> {
    let row = versions::row(kinds, kind, &last.api_version)?;
    let types = row.types()?;
    let whole = converted(kinds, kind, own, &last.api_version, merged)?;
    let applied = with_structs(types, &last.fields);
    let mut left = without(types, &whole, &applied);
    let mut current = &*last.api_version;
    for (version, owned) in versions {
        // Fields of other managers are restored.
        let row = versions::row(kinds, kind, version)?;
        let types = row.types()?;
        let merged = converted(kinds, kind, own, version, merged)?;
        let rest = converted(kinds, kind, current, version, &left)?;
        let mut gone = missing(types, &merged, &rest, current != *version);
        gone.subtract(&with_structs(types, owned));
        left = without(types, &merged, &gone);
        current = version;
    }
    // Also the fields that were only removed with their parent.
    let rest = converted(kinds, kind, current, &last.api_version, &left)?;
    let gone = missing(types, &whole, &rest, current != last.api_version);
    let pruned = without(types, &whole, &gone.intersection(&applied));
    Some(converted(kinds, kind, &last.api_version, own, &pruned)?.into_owned())
}

/// Fields of the whole object that the rest lacks; the rest may have been converted.
fn missing(types: Types<'_>, whole: &Value, rest: &Value, is_converted: bool) -> Set {
    let all = |object: &str| with_structs(types, &fields(types, object));
    let (before, after) = (whole.to_string(), rest.to_string());
    let whole = all(&before);
    let mut gone = whole.clone();
    gone.subtract(&all(&after));
    if is_converted {
        // A conversion sets defaults for removed fields.
        gone.union(compare(types, &before, &after).changed.intersection(&whole));
    }
    gone
}
