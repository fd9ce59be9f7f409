//! Row of the table of kinds: a built-in [`Kind`], or one that an object defines.

mod derived;
mod erased;
mod rules;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::jiff::Timestamp;
use schemars::SchemaGenerator;
use serde::Serialize;
use serde_json::Value;

use crate::kind::{Dependents, Kind, Representation, Scope, Scoped, Subresource, Updates, Verbs};
use crate::object::Object;
use crate::schema::decode::DecodeError;
use crate::schema::managed::{Types, splice};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;
use derived::Names;
use erased::Of;

pub use erased::{drop_empty, keep_system_metadata};

/// A column's heading; the cells come from [`Behavior::row`], in the same order.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ColumnDefinition {
    /// Heading.
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    #[serde(rename = "type")]
    pub cell_type: &'static str,
    /// `name` for the first column, else empty or as the definition says.
    pub format: &'static str,
    /// Description of the column, for people.
    pub description: Cow<'static, str>,
    /// 0 is always shown; 1 only with `-o wide`.
    pub priority: i32,
}

/// Storage location and form of a kind's objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Storage {
    /// Group of the stored form; empty for core.
    pub group: &'static str,
    /// Version of the stored form.
    pub version: &'static str,
    /// Path segment of the stored form.
    pub plural: &'static str,
}

/// Object, or the decoding error.
pub type Decoded = Result<Box<dyn Object>, DecodeError>;

/// Object, with the paths of its unknown fields.
pub type Reported = Result<(Box<dyn Object>, Vec<String>), DecodeError>;

/// Behavior of the objects of a kind, to which a [`Registration`] dereferences. Functions that take
/// an object do nothing for one of another kind.
pub trait Behavior: Send + Sync {
    /// Adds the definition of a built-in kind to an OpenAPI document.
    fn define(&self, _generator: &mut SchemaGenerator) {}
    /// Types of the kind's values for server-side apply.
    fn types(&self) -> Option<Types<'_>>;
    /// Decodes directly from JSON into the kind; unknown fields are dropped.
    fn decode(&self, json: &[u8]) -> Decoded;
    /// Like [`Behavior::decode`]; also returns the paths of unknown fields, such as `spec.foo`.
    fn decode_reporting(&self, json: &[u8]) -> Reported;
    /// Decodes the stored form.
    fn decode_stored(&self, json: &[u8]) -> Decoded;
    /// Encodes the stored form. The same as [`Object::to_json`] unless [`Registration::converts`].
    fn encode_stored(&self, object: &dyn Object) -> Vec<u8>;
    /// Sets defaults. Idempotent.
    fn set_defaults(&self, object: &mut dyn Object);
    /// Drops fields that a create must not set, and initializes `generation`.
    fn prepare_create(&self, object: &mut dyn Object);
    /// Keeps fields that an update must not change, and increments `generation` if the spec changed.
    fn prepare_update(&self, new: &mut dyn Object, old: &dyn Object);
    /// Keeps fields that an update of `status` must not change.
    fn prepare_status(&self, new: &mut dyn Object, old: &dyn Object);
    /// Keeps all fields but those that the kind's own subresource changes: `finalize` or `approval`.
    fn prepare_own(&self, new: &mut dyn Object, old: &dyn Object);
    /// True if the spec differs.
    fn spec_changed(&self, new: &dyn Object, old: &dyn Object) -> bool;
    /// True if two objects are equal in every field: an update without changes needs no write.
    fn same(&self, new: &dyn Object, old: &dyn Object) -> bool;
    /// Validates a new object.
    fn validate(&self, object: &dyn Object) -> Vec<Invalid>;
    /// Validates an update; errors that it leaves unchanged become warnings.
    fn validate_update(&self, new: &dyn Object, old: &dyn Object, warnings: &mut Vec<String>) -> Vec<Invalid>;
    /// Validates an update of `status`; errors that it leaves unchanged become warnings.
    fn validate_status(&self, new: &dyn Object, old: &dyn Object, warnings: &mut Vec<String>) -> Vec<Invalid>;
    /// Validates an update of the kind's own subresource.
    fn validate_own(&self, _new: &dyn Object, _old: &dyn Object) -> Vec<Invalid> {
        Vec::new()
    }
    /// Warnings for a client whose create, or update of `old`, is accepted.
    fn warnings(&self, _new: &dyn Object, _old: Option<&dyn Object>) -> Vec<String> {
        Vec::new()
    }
    /// Warnings for a client whose update of `status` is accepted.
    fn status_warnings(&self, _new: &dyn Object) -> Vec<String> {
        Vec::new()
    }
    /// Fields that selectors may name, besides `metadata.name` and `metadata.namespace`.
    fn field_labels(&self) -> Vec<&'static str>;
    /// Names that selectors use instead of the labels; if empty, the labels are the names.
    fn field_names(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// The values of the fields that selectors may name.
    fn fields(&self, object: &dyn Object) -> Vec<(&'static str, String)>;
    /// Headings of the table, the name first.
    fn columns(&self) -> Vec<ColumnDefinition>;
    /// Decodes the fields that the cells show, and little else.
    fn decode_shown(&self, json: &[u8]) -> Decoded {
        self.decode(json)
    }
    /// The cells of one object, in the order of the headings.
    fn row(&self, object: &dyn Object, now: Timestamp) -> Vec<Value>;
    /// Reason and message for the row of an object that has run to completion.
    fn completed(&self, _object: &dyn Object) -> Option<(&'static str, &'static str)> {
        None
    }
    /// The `scale` subresource, if the kind has one.
    fn scale(&self, object: &dyn Object) -> Option<Scale>;
    /// Path of the replicas of the `scale` subresource.
    fn replicas_path(&self) -> &'static str {
        ".spec.replicas"
    }
    /// Sets the replicas of the `scale` subresource.
    fn set_scale(&self, object: &mut dyn Object, replicas: i32);
    /// Grace period of a deletion in seconds; 0 deletes immediately.
    fn grace(&self, _object: &dyn Object, _requested: Option<i64>) -> i64 {
        0
    }
}

/// Origin of a row's behavior.
enum Source {
    Program(&'static dyn Behavior),
    Defined(Box<dyn Behavior>),
}

/// Names of one version of a custom kind. Strings are [interned](crate::value::intern).
#[derive(Clone, Copy, Debug)]
pub struct Defined {
    /// API group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Version of the stored form.
    pub stored_version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Kind of lists.
    pub list_kind: &'static str,
    /// Path segment.
    pub plural: &'static str,
    /// Singular name.
    pub singular: &'static str,
    /// Cluster or namespaces.
    pub scope: Scope,
    /// Further names.
    pub short_names: &'static [&'static str],
    /// Groups of kinds.
    pub categories: &'static [&'static str],
    /// Subresources that are served.
    pub subresources: &'static [Subresource],
    /// Deprecation warning for clients that use the version.
    pub deprecated: Option<&'static str>,
    /// True if a webhook converts objects of other versions.
    pub asks: bool,
}

/// Row of the table, kept alive while it is in use; rows of built-in kinds are static.
#[derive(Clone)]
pub enum Row {
    /// Built-in kind.
    Program(&'static Registration),
    /// Custom kind.
    Defined(Arc<Registration>),
}

impl Row {
    /// True if both are the same row.
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const **self, &raw const **other)
    }
}

impl Deref for Row {
    type Target = Registration;

    fn deref(&self) -> &Registration {
        match self {
            Self::Program(row) => row,
            Self::Defined(row) => row,
        }
    }
}

/// A kind, erased.
#[expect(
    clippy::struct_excessive_bools,
    reason = "a row of a table: each tells one thing of a kind"
)]
pub struct Registration {
    /// API group; empty for core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Kind, such as `Pod`.
    pub kind: &'static str,
    /// Kind of lists, such as `PodList`.
    pub list_kind: &'static str,
    /// Path segment, such as `pods`.
    pub plural: &'static str,
    /// Singular name, such as `pod`.
    pub singular: &'static str,
    /// Cluster or namespaces.
    pub scope: Scope,
    /// Names such as `po`.
    pub short_names: &'static [&'static str],
    /// Groups of kinds, such as `all`.
    pub categories: &'static [&'static str],
    /// Subresources that are served.
    pub subresources: &'static [Subresource],
    /// Verbs that are supported.
    pub verbs: Verbs,
    /// The rule for `metadata.name`.
    pub name_rule: Rule,
    /// True if `metadata.generation` is maintained.
    pub counts_generations: bool,
    /// True if a deletion returns the deleted object instead of a `Status`.
    pub answers_deleted: bool,
    /// True if a write of status may also change metadata.
    pub status_with_metadata: bool,
    /// Default for dependents when the owner is deleted.
    pub dependents: Dependents,
    /// Deprecation warning that clients of the kind get.
    pub deprecated: Option<&'static str>,
    /// Behavior of a PUT.
    pub updates: Updates,
    /// Storage location and form of the objects.
    pub storage: Storage,
    /// True if the stored form is another kind's, so that stored bytes need
    /// [`Registration::decode_stored`].
    pub converts: bool,
    /// True if a webhook converts objects of other versions.
    pub asks: bool,
    behavior: Source,
}

impl Registration {
    /// Row of a kind.
    pub const fn of<K: Kind>() -> Self {
        let storage = match &K::STORED_AS {
            Some(Representation {
                group, version, plural, ..
            }) => Storage { group, version, plural },
            None => Storage {
                group: K::GROUP,
                version: K::VERSION,
                plural: K::URL_PATH_SEGMENT,
            },
        };
        Self {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            list_kind: Names::<K>::LIST_KIND,
            plural: K::URL_PATH_SEGMENT,
            singular: Names::<K>::SINGULAR,
            scope: <K::Scope as Scoped>::SCOPE,
            short_names: K::SHORT_NAMES,
            categories: K::CATEGORIES,
            subresources: K::SUBRESOURCES,
            verbs: K::VERBS,
            name_rule: K::NAME,
            counts_generations: K::GENERATION,
            answers_deleted: K::ANSWERS_DELETED,
            dependents: K::DEPENDENTS,
            status_with_metadata: K::STATUS_WITH_METADATA,
            deprecated: K::DEPRECATED,
            updates: K::UPDATES,
            storage,
            converts: K::STORED_AS.is_some(),
            asks: false,
            behavior: Source::Program(&Of::<K>(PhantomData)),
        }
    }

    /// `v1`, or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Row of a custom kind.
    pub fn defined(names: Defined, behavior: Box<dyn Behavior>) -> Self {
        Self {
            group: names.group,
            version: names.version,
            kind: names.kind,
            list_kind: names.list_kind,
            plural: names.plural,
            singular: names.singular,
            scope: names.scope,
            short_names: names.short_names,
            categories: names.categories,
            subresources: names.subresources,
            verbs: Verbs::All,
            name_rule: Rule::Subdomain,
            counts_generations: true,
            answers_deleted: false,
            dependents: Dependents::Collected,
            status_with_metadata: false,
            deprecated: names.deprecated,
            updates: Updates::CONDITIONAL,
            storage: Storage {
                group: names.group,
                version: names.stored_version,
                plural: names.plural,
            },
            converts: true,
            asks: names.asks,
            behavior: Source::Defined(behavior),
        }
    }

    /// True if the kind is custom, so that the tables of messages do not have it.
    pub fn is_defined(&self) -> bool {
        matches!(self.behavior, Source::Defined(_))
    }

    /// True if a subresource is served.
    pub fn has(&self, subresource: Subresource) -> bool {
        self.subresources.contains(&subresource)
    }

    /// Decodes the stored form, and sets defaults that the version which stored it may not have
    /// known.
    ///
    /// `metadata.managedFields` is left out: see [`splice`].
    pub fn decode_stored(&self, json: &[u8]) -> Decoded {
        (**self).decode_stored(&splice::split(json).object)
    }

    /// Label of a field by its name in selectors, if the kind has such a field.
    pub fn field_behind(&self, name: &str) -> Option<&'static str> {
        let names = self.field_names();
        if names.is_empty() {
            return self.field_labels().into_iter().find(|label| *label == name);
        }
        let mut names = names.iter();
        names.find(|(own, _)| *own == name).map(|(_, label)| *label)
    }
}

impl Deref for Registration {
    type Target = dyn Behavior;

    fn deref(&self) -> &Self::Target {
        match &self.behavior {
            Source::Program(behavior) => *behavior,
            Source::Defined(behavior) => &**behavior,
        }
    }
}
