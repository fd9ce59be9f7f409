//! Kinds that `CustomResourceDefinitions` bring (`staging/src/k8s.io/apiextensions-apiserver`).
//!
//! ```text
//! definition written ─► rules (api) ─► schemas (`rules`) ─► names, conditions (`names`) ─► store
//! any request ─► `Definitions::current`: the program's kinds and those that the store's definitions make (`version`,
//!                `custom`) as rows of one table; `conversion` where a webhook converts between versions
//! definition deleted ─► Terminating ─► `upkeep`: its objects go, then its finalizer, then itself
//! ```
//!
//! The table follows the store: a request that comes after a definition was acknowledged is answered with it.

mod conversion;
mod custom;
mod json_path;
pub(crate) mod names;
pub(crate) mod rules;
mod span;
pub(crate) mod upkeep;
mod version;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, OnceLock};

use api::intern;
use api::kind::{Scope, Subresource};
use api::kinds::custom_resource_definition::{FINALIZER, GROUP, names as conditions};
use api::registration::Defined;
use api::{Kinds, Registration, Row};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    CustomResourceDefinitionVersion,
};
use serde_json::Value;
use store::{Entry, Key, Prefix, Seen, Store};

use self::custom::Served;
use self::version::Version;
use crate::discovery::Discovery;
use crate::discovery::openapi::{Documents, Program};
use crate::storage::follower::{Follow, Follower};

pub(crate) use conversion::{Calls, Converter, PATIENT_LIMIT};
pub(crate) use span::Span;

const PLURAL: &str = "customresourcedefinitions";

pub(crate) fn prefix() -> Prefix {
    Prefix::resource(GROUP, PLURAL)
}

/// Key of the definition of a kind.
pub(crate) fn key(row: &Registration) -> Option<Key> {
    Key::new(GROUP, PLURAL, "", &format!("{}.{}", row.plural, row.group)).ok()
}

/// Snapshot of all kinds, with documents that are derived on demand.
pub(crate) struct Table {
    pub(crate) kinds: Kinds,
    by_definition: BTreeMap<String, (u64, Arc<Made>)>,
    discovery: OnceLock<Discovery>,
    documents: OnceLock<Documents>,
    program: Program,
}

/// Rows made from one definition.
#[derive(Default)]
struct Made {
    /// A row for each version that is served.
    rows: Vec<Arc<Registration>>,
    /// The row of the version that is stored, be it served or not.
    stored: Option<Arc<Registration>>,
    /// Uid of the definition that the rows are made from, and hash of its spec: its generation moves with its deletion, too.
    source: (Option<String>, u64),
    /// The webhook that converts between its versions.
    converter: Option<Arc<Converter>>,
    /// The names that it was given.
    accepted: CustomResourceDefinitionNames,
    /// Served versions for which there is no row, though the names are accepted, with their scope.
    unresolved: Vec<(String, Scope)>,
    /// True if the definition is being deleted, so that no objects may be created.
    is_terminating: bool,
    /// True if the server must act on it: accept names, or delete its objects.
    is_pending: bool,
}

impl Follow for Table {
    fn prefixes() -> Vec<Prefix> {
        vec![prefix()]
    }

    fn read(store: &Store, before: Option<&Self>) -> Self {
        let entries = store.present(&prefix()).into_iter();
        let made = entries.map(|entry| {
            let known = before.and_then(|before| before.by_definition.get(entry.key.name()));
            let made = match known {
                Some((revision, made)) if *revision == entry.revision => Arc::clone(made),
                known => Arc::new(Made::of(&entry, known.map(|(_, made)| &**made))),
            };
            (entry.key.name().to_owned(), (entry.revision, made))
        });
        let by_definition: BTreeMap<_, _> = made.collect();
        let rows = by_definition.values().flat_map(|(_, made)| made.rows.iter().cloned());
        Self {
            kinds: Kinds::with(rows),
            by_definition,
            discovery: OnceLock::new(),
            documents: OnceLock::new(),
            program: before.map(|before| before.program.clone()).unwrap_or_default(),
        }
    }
}

impl Table {
    /// The documents of discovery; `address` is where clients reach the server.
    pub(crate) fn discovery(&self, address: &str) -> &Discovery {
        self.discovery.get_or_init(|| Discovery::new(&self.kinds, address))
    }

    /// The documents of OpenAPI.
    pub(crate) fn documents(&self) -> &Documents {
        self.documents
            .get_or_init(|| Documents::new(&self.program, &self.kinds, |row| self.revised(row)))
    }

    /// Text that changes when the definition of a row may have changed.
    fn revised(&self, row: &Registration) -> String {
        let name = format!("{}.{}", row.plural, row.group);
        let revision = self.by_definition.get(&name).map_or(0, |(revision, _)| *revision);
        format!("{name} {revision}")
    }

    /// Version of the definition that a row is made from; `None` for built-in kinds.
    pub(crate) fn seen(&self, row: &Registration) -> Option<Seen> {
        if !row.is_defined() {
            return None;
        }
        let name = format!("{}.{}", row.plural, row.group);
        let (revision, _) = self.by_definition.get(&name)?;
        Some(Seen {
            key: Key::new(GROUP, PLURAL, "", &name).ok()?,
            revision: *revision,
        })
    }

    /// The names of the definitions for which the server has something to do.
    fn pending(&self) -> Vec<String> {
        let pending = self.by_definition.iter().filter(|(_, (_, made))| made.is_pending);
        pending.map(|(name, _)| name.clone()).collect()
    }

    /// Names that other definitions in the group have.
    fn taken(&self, definition: &CustomResourceDefinition) -> conditions::Taken {
        let group = &definition.spec.group;
        let mut taken = conditions::Taken::default();
        let own = api::KINDS.iter().filter(|row| row.group == group);
        own.for_each(|row| taken.add_row(row));
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        let is_other = |other: &str| other != name && other.split_once('.').is_some_and(|(_, other)| other == group);
        let others = self.by_definition.iter().filter(|(other, _)| is_other(other));
        others.for_each(|(_, (_, made))| taken.add(&made.accepted));
        taken
    }

    /// The webhook that converts between the versions of a row's kind.
    pub(crate) fn converter(&self, row: &Registration) -> Option<&Arc<Converter>> {
        if !row.asks {
            return None;
        }
        self.made(row.group, row.plural)?.converter.as_ref()
    }

    /// Versions of a row's kind that are served or stored, in the order of its definition.
    pub(crate) fn versions(&self, row: &Registration) -> impl Iterator<Item = Row> {
        let made = self.made(row.group, row.plural);
        let rows = made.map(|made| made.rows.clone()).unwrap_or_default();
        let stored = made.and_then(|made| made.stored.clone());
        let is_served = |stored: &Arc<Registration>| rows.iter().any(|row| row.version == stored.version);
        let stored = stored.filter(|stored| !is_served(stored));
        rows.into_iter().chain(stored).map(Row::Defined)
    }

    /// Scope of a version that a definition with accepted names has, but whose webhook cannot be
    /// trusted (`getOrCreateServingInfoFor` of `pkg/apiserver/customresource_handler.go`).
    pub(crate) fn unresolved(&self, group: &str, version: &str, plural: &str) -> Option<Scope> {
        let mut unresolved = self.made(group, plural)?.unresolved.iter();
        unresolved.find(|(own, _)| own == version).map(|(_, scope)| *scope)
    }

    /// Rows made from the definition of a resource.
    fn made(&self, group: &str, plural: &str) -> Option<&Made> {
        let (_, made) = self.by_definition.get(&format!("{plural}.{group}"))?;
        Some(made)
    }
}

/// The schema of a row, as its definition in the store has it.
pub(crate) fn published_schema(store: &Store, row: &Registration) -> Option<Value> {
    let key = Key::new(GROUP, PLURAL, "", &format!("{}.{}", row.plural, row.group)).ok()?;
    let mut definition: Value = serde_json::from_slice(&store.get(&key)?.bytes).ok()?;
    let versions = definition.pointer_mut("/spec/versions")?.as_array_mut()?;
    let own = versions
        .iter_mut()
        .find(|own| own.get("name").is_some_and(|name| name == row.version))?;
    own.pointer_mut("/schema/openAPIV3Schema").map(Value::take)
}

impl Made {
    fn of(entry: &Entry, before: Option<&Self>) -> Self {
        match serde_json::from_slice::<CustomResourceDefinition>(&entry.bytes) {
            Ok(definition) => Self::of_definition(&definition, before),
            Err(error) => {
                tracing::error!(key = %entry.key, %error, "unreadable, so it defines nothing");
                Self::default()
            }
        }
    }

    /// Content of a definition without its rows, and whether these are served.
    fn bare(definition: &CustomResourceDefinition) -> (Self, bool) {
        let status = definition.status.clone().unwrap_or_default();
        let is_terminating = conditions::is_true(&status, "Terminating");
        let is_accepted = conditions::is_true(&status, "NamesAccepted");
        // A definition whose conversion cannot work is accepted, but not established.
        let is_served = conditions::is_true(&status, "Established");
        let finalizers = definition.metadata.finalizers.as_deref().unwrap_or_default();
        let is_held = finalizers.iter().any(|own| own == FINALIZER);
        let accepted = status.accepted_names.unwrap_or_default();
        let unresolved = definition.spec.versions.iter();
        let unresolved = unresolved.filter(|version| is_accepted && !is_served && version.served);
        let own = Self {
            unresolved: unresolved
                .map(|version| (version.name.clone(), scope(&definition.spec)))
                .collect(),
            is_pending: (definition.metadata.deletion_timestamp.is_some() && is_held)
                || !is_accepted
                || !is_served
                || accepted != definition.spec.names,
            is_terminating,
            accepted,
            source: (definition.metadata.uid.clone(), hash(&definition.spec)),
            ..Self::default()
        };
        (own, is_served)
    }

    /// True if a definition still makes the same rows.
    fn is_still(&self, definition: &CustomResourceDefinition) -> bool {
        let (own, is_served) = Self::bare(definition);
        is_served && self.source == own.source && self.accepted == own.accepted
    }

    /// Rows stay the same while neither spec nor accepted names change: long-running requests end
    /// with their rows (`updateCustomResourceDefinition` of
    /// `pkg/apiserver/customresource_handler.go`).
    fn of_definition(definition: &CustomResourceDefinition, before: Option<&Self>) -> Self {
        let (bare, is_served) = Self::bare(definition);
        let same = before.filter(|before| before.source == bare.source && before.accepted == bare.accepted);
        if let Some(before) = same.filter(|before| is_served && !before.rows.is_empty()) {
            return Self {
                rows: before.rows.clone(),
                stored: before.stored.clone(),
                converter: before.converter.clone(),
                ..bare
            };
        }
        let versions = definition.spec.versions.iter();
        let read = versions.map(|version| Some((version, Arc::new(Version::of(definition, version)?))));
        let Some(read) = read.collect::<Option<Vec<_>>>().filter(|_| is_served) else {
            return bare;
        };
        let all: Arc<[Arc<Version>]> = read.iter().map(|(_, own)| Arc::clone(own)).collect();
        let Some((stored_version, stored)) = read.iter().find(|(version, _)| version.storage) else {
            return bare;
        };
        let converter = Converter::of(definition, &all, stored).map(Arc::new);
        let row = |version: &CustomResourceDefinitionVersion, own: &Arc<Version>| {
            let asks = converter.is_some();
            let served = Served {
                own: Arc::clone(own),
                stored: Arc::clone(stored),
                all: Arc::clone(&all),
                asks,
            };
            let names = Defined {
                asks,
                ..names_of(definition, version, &stored_version.name)
            };
            Arc::new(Registration::defined(names, Box::new(served)))
        };
        let served = read.iter().filter(|(version, _)| version.served);
        Self {
            rows: served.map(|(version, own)| row(version, own)).collect(),
            stored: Some(row(stored_version, stored)),
            converter,
            ..bare
        }
    }
}

fn scope(spec: &CustomResourceDefinitionSpec) -> Scope {
    if spec.scope == "Namespaced" {
        Scope::Namespaced
    } else {
        Scope::Cluster
    }
}

fn hash(spec: &CustomResourceDefinitionSpec) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Specs serialize.
    hasher.write(&serde_json::to_vec(spec).unwrap_or_default());
    hasher.finish()
}

/// The names by which a version is served: those that were accepted.
fn names_of(
    definition: &CustomResourceDefinition,
    version: &CustomResourceDefinitionVersion,
    stored_version: &str,
) -> Defined {
    let spec = &definition.spec;
    let accepted = definition
        .status
        .as_ref()
        .and_then(|status| status.accepted_names.as_ref());
    let names = accepted.unwrap_or(&spec.names);
    let subresources = version.subresources.as_ref();
    let has_status = subresources.is_some_and(|own| own.status.is_some());
    let has_scale = subresources.is_some_and(|own| own.scale.is_some());
    let deprecated = (version.deprecated == Some(true)).then(|| {
        let told = version.deprecation_warning.clone();
        told.unwrap_or_else(|| format!("{}/{} {} is deprecated", spec.group, version.name, spec.names.kind))
    });
    Defined {
        group: intern::text(&spec.group),
        version: intern::text(&version.name),
        stored_version: intern::text(stored_version),
        kind: intern::text(&spec.names.kind),
        list_kind: intern::text(names.list_kind.as_deref().unwrap_or_default()),
        plural: intern::text(&spec.names.plural),
        singular: intern::text(names.singular.as_deref().unwrap_or_default()),
        scope: scope(spec),
        short_names: intern::list(names.short_names.as_deref().unwrap_or_default()),
        categories: intern::list(names.categories.as_deref().unwrap_or_default()),
        subresources: match (has_status, has_scale) {
            (true, true) => &[Subresource::Status, Subresource::Scale],
            (true, false) => &[Subresource::Status],
            (false, true) => &[Subresource::Scale],
            (false, false) => &[],
        },
        deprecated: deprecated.map(|text| intern::text(&text)),
        asks: false,
    }
}

/// The table, up to date with the store.
pub(crate) type Definitions = Follower<Table>;
