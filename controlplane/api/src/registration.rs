//! One row of the table of kinds: a [`Kind`] behind function pointers.

mod derived;
mod erased;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::jiff::Timestamp;
use schemars::{Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::decode::DecodeError;
use crate::invalid::Invalid;
use crate::kind::{Dependents, Kind, Representation, Scope, Scoped, Subresource, Updates, Verbs};
use crate::managed::splice;
use crate::names::Rule;
use crate::object::Object;
use crate::validation::metadata;
use derived::Names;

/// A column's heading; the cells come from [`Registration::row`], in the same order.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct ColumnDefinition {
    /// Heading.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    #[serde(rename = "type")]
    pub cell_type: &'static str,
    /// `name` for the first column, else empty.
    pub format: &'static str,
    /// What the column means, for people.
    pub description: &'static str,
    /// 0 is always shown; 1 only with `-o wide`.
    pub priority: i32,
}

/// Where objects of a kind are kept, and in which form.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Storage {
    /// Group of the stored form; empty for core.
    pub group: &'static str,
    /// Version of the stored form.
    pub version: &'static str,
    /// Path segment of the stored form.
    pub plural: &'static str,
}

/// An object, or why the bytes are none.
pub type Decoded = Result<Box<dyn Object>, DecodeError>;

/// An object and the paths of the fields that its kind does not know.
pub type Reported = Result<(Box<dyn Object>, Vec<String>), DecodeError>;

/// A kind, erased. Functions that take an object do nothing to one of another kind.
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
    /// What may be done.
    pub verbs: Verbs,
    /// The rule for `metadata.name`.
    pub name_rule: Rule,
    /// Whether `metadata.generation` counts.
    pub counts_generations: bool,
    /// Whether a deletion answers the object that is gone instead of a `Status`.
    pub answers_deleted: bool,
    /// Whether a write of status may change metadata, too.
    pub status_with_metadata: bool,
    /// What becomes of what an object owns.
    pub dependents: Dependents,
    /// What clients are warned of who use the kind.
    pub deprecated: Option<&'static str>,
    /// What a PUT may do.
    pub updates: Updates,
    /// Where and as what objects are kept.
    pub storage: Storage,
    /// Whether the stored form is another kind's, so that stored bytes need [`Registration::decode_stored`].
    pub converts: bool,
    /// Adds the kind's definition to an OpenAPI document.
    pub(crate) define: fn(&mut SchemaGenerator) -> Schema,
    decode: fn(&[u8]) -> Decoded,
    decode_reporting: fn(&[u8]) -> Reported,
    decode_stored: fn(&[u8]) -> Decoded,
    encode_stored: fn(&dyn Object) -> Vec<u8>,
    set_defaults: fn(&mut dyn Object),
    prepare_create: fn(&mut dyn Object),
    prepare_update: fn(&mut dyn Object, &dyn Object),
    prepare_status: fn(&mut dyn Object, &dyn Object),
    prepare_own: fn(&mut dyn Object, &dyn Object),
    spec_changed: fn(&dyn Object, &dyn Object) -> bool,
    same: fn(&dyn Object, &dyn Object) -> bool,
    validate: fn(&dyn Object) -> Vec<Invalid>,
    validate_update: fn(&dyn Object, &dyn Object) -> Vec<Invalid>,
    validate_status: fn(&dyn Object, &dyn Object) -> Vec<Invalid>,
    validate_own: fn(&dyn Object, &dyn Object) -> Vec<Invalid>,
    warnings: fn(&dyn Object, Option<&dyn Object>) -> Vec<String>,
    field_labels: fn() -> Vec<&'static str>,
    field_names: &'static [(&'static str, &'static str)],
    fields: fn(&dyn Object) -> Vec<(&'static str, String)>,
    columns: fn() -> Vec<ColumnDefinition>,
    row: fn(&dyn Object, Timestamp) -> Vec<Value>,
    scale: fn(&dyn Object) -> Option<Scale>,
    set_scale: fn(&mut dyn Object, i32),
    grace: fn(&dyn Object, Option<i64>) -> i64,
}

impl Registration {
    /// The row of a kind.
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
            define: SchemaGenerator::subschema_for::<K>,
            decode: erased::decode_erased::<K>,
            decode_reporting: erased::decode_reporting_erased::<K>,
            decode_stored: erased::decode_stored::<K>,
            encode_stored: erased::encode_stored::<K>,
            set_defaults: erased::set_defaults::<K>,
            prepare_create: erased::prepare_create::<K>,
            prepare_update: erased::prepare_update::<K>,
            prepare_status: erased::prepare_status::<K>,
            prepare_own: erased::prepare_own::<K>,
            spec_changed: |new, old| erased::pair::<K>(new, old).is_some_and(|(new, old)| new.spec_changed(old)),
            same: |new, old| erased::pair::<K>(new, old).is_some_and(|(new, old)| new == old),
            validate: erased::validate::<K>,
            validate_update: erased::validate_update::<K>,
            validate_status: erased::validate_status::<K>,
            validate_own: erased::validate_own::<K>,
            warnings: erased::warnings::<K>,
            field_labels: || K::FIELDS.iter().map(|field| field.label).collect(),
            field_names: K::FIELD_NAMES,
            fields: erased::fields::<K>,
            columns: erased::columns::<K>,
            row: erased::row::<K>,
            scale: |object| erased::cast::<K>(object).and_then(Kind::scale),
            set_scale: |object, replicas| erased::with_mut(object, |object: &mut K| object.set_scale(replicas)),
            grace: |object, requested| erased::cast::<K>(object).map_or(0, |object| object.grace(requested)),
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

    /// Whether a subresource is served.
    pub fn has(&self, subresource: Subresource) -> bool {
        self.subresources.contains(&subresource)
    }

    /// Decodes straight from JSON into the kind; unknown fields are dropped.
    pub fn decode(&self, json: &[u8]) -> Decoded {
        (self.decode)(json)
    }

    /// Like [`Registration::decode`]; also returns the paths of unknown fields, such as `spec.foo`.
    pub fn decode_reporting(&self, json: &[u8]) -> Reported {
        (self.decode_reporting)(json)
    }

    /// Decodes the stored form, and sets the defaults that the version which stored it may not have known.
    ///
    /// `metadata.managedFields` is left out: see [`splice`].
    pub fn decode_stored(&self, json: &[u8]) -> Decoded {
        (self.decode_stored)(&splice::split(json).object)
    }

    /// Encodes the form that is stored. The same as [`Object::to_json`] unless [`Registration::converts`].
    pub fn encode_stored(&self, object: &dyn Object) -> Vec<u8> {
        (self.encode_stored)(object)
    }

    /// Fills in what was left out. Idempotent.
    pub fn set_defaults(&self, object: &mut dyn Object) {
        (self.set_defaults)(object);
    }

    /// Drops what a creator may not set and starts `generation`.
    pub fn prepare_create(&self, object: &mut dyn Object) {
        (self.prepare_create)(object);
    }

    /// Keeps what an update may not change and moves `generation` when what is asked for changed.
    pub fn prepare_update(&self, new: &mut dyn Object, old: &dyn Object) {
        (self.prepare_update)(new, old);
    }

    /// Keeps what an update of `status` may not change.
    pub fn prepare_status(&self, new: &mut dyn Object, old: &dyn Object) {
        (self.prepare_status)(new, old);
    }

    /// Keeps all but what an update of the kind's own subresource changes: `finalize` or `approval`.
    pub fn prepare_own(&self, new: &mut dyn Object, old: &dyn Object) {
        (self.prepare_own)(new, old);
    }

    /// Whether what is asked for differs.
    pub fn spec_changed(&self, new: &dyn Object, old: &dyn Object) -> bool {
        (self.spec_changed)(new, old)
    }

    /// Whether two objects are equal in every field: an update that changes nothing needs no write.
    pub fn same(&self, new: &dyn Object, old: &dyn Object) -> bool {
        (self.same)(new, old)
    }

    /// What is wrong with a new object, its metadata included. Call it with the final name and namespace.
    pub fn validate(&self, object: &dyn Object) -> Vec<Invalid> {
        let mut errors = metadata::validate(object.metadata(), self.scope, self.name_rule);
        errors.extend((self.validate)(object));
        errors
    }

    /// What is wrong with an update, its metadata included.
    pub fn validate_update(&self, new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
        let mut errors = metadata::validate_update(new.metadata(), old.metadata(), self.scope, self.name_rule);
        errors.extend((self.validate_update)(new, old));
        if !errors.is_empty() {
            // What was accepted once is not held against changes of something else.
            let before = (self.validate)(old);
            errors.retain(|error| !before.contains(error));
        }
        errors
    }

    /// What is wrong with an update of `status`, the metadata included.
    pub fn validate_status(&self, new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
        let mut errors = metadata::validate_update(new.metadata(), old.metadata(), self.scope, self.name_rule);
        errors.extend((self.validate_status)(new, old));
        errors
    }

    /// What a client is warned of whose new object, or whose change of `old`, is accepted.
    pub fn warnings(&self, new: &dyn Object, old: Option<&dyn Object>) -> Vec<String> {
        (self.warnings)(new, old)
    }

    /// What is wrong with an update of the kind's own subresource, the metadata included.
    pub fn validate_own(&self, new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
        let mut errors = metadata::validate_update(new.metadata(), old.metadata(), self.scope, self.name_rule);
        errors.extend((self.validate_own)(new, old));
        errors
    }

    /// Fields that selectors may name, besides `metadata.name` and `metadata.namespace`.
    pub fn field_labels(&self) -> Vec<&'static str> {
        (self.field_labels)()
    }

    /// The label behind the name of a field in a selector, if the kind has such a field.
    pub fn field_behind(&self, name: &str) -> Option<&'static str> {
        if self.field_names.is_empty() {
            return self.field_labels().into_iter().find(|label| *label == name);
        }
        let mut names = self.field_names.iter();
        names.find(|(own, _)| *own == name).map(|(_, label)| *label)
    }

    /// The values of those fields.
    pub fn fields(&self, object: &dyn Object) -> Vec<(&'static str, String)> {
        (self.fields)(object)
    }

    /// Headings of the table, the name first.
    pub fn columns(&self) -> Vec<ColumnDefinition> {
        (self.columns)()
    }

    /// The cells of one object, in the order of the headings.
    pub fn row(&self, object: &dyn Object, now: Timestamp) -> Vec<Value> {
        (self.row)(object, now)
    }

    /// The `scale` subresource, where there is one.
    pub fn scale(&self, object: &dyn Object) -> Option<Scale> {
        (self.scale)(object)
    }

    /// Sets the replicas of the `scale` subresource.
    pub fn set_scale(&self, object: &mut dyn Object, replicas: i32) {
        (self.set_scale)(object, replicas);
    }

    /// Seconds between a deletion's request and the end; 0 deletes at once.
    pub fn grace(&self, object: &dyn Object, requested: Option<i64>) -> i64 {
        (self.grace)(object, requested)
    }
}
