//! Type-erased built-in kind as the behavior of a row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use schemars::SchemaGenerator;
use serde_json::Value;

use super::{Behavior, ColumnDefinition, Decoded, Reported};
use crate::kind::Kind;
use crate::object::{Object, written};
use crate::schema::Schema;
use crate::schema::decode;
use crate::schema::descriptions::described;
use crate::schema::managed::Types;
use crate::table::{self, Column};
use crate::value::invalid::Invalid;

/// Kind as a zero-sized type.
pub(super) struct Of<K>(pub(super) PhantomData<fn() -> K>);

impl<K: Kind> Behavior for Of<K> {
    fn define(&self, generator: &mut SchemaGenerator) {
        generator.subschema_for::<K>();
    }

    fn types(&self) -> Option<Types<'_>> {
        Schema::of_kind(K::API_VERSION, K::KIND).map(Types::Message)
    }

    fn decode(&self, json: &[u8]) -> Decoded {
        decode_erased::<K>(json)
    }

    fn decode_reporting(&self, json: &[u8]) -> Reported {
        let (mut object, unknown) = decode::decode_reporting::<K>(json)?;
        object.decoded(json);
        Ok((Box::new(object), unknown))
    }

    /// Sets defaults as well: an object that an older version stored is compared with new ones.
    fn decode_stored(&self, json: &[u8]) -> Decoded {
        let mut object: Box<dyn Object> = match &K::STORED_AS {
            Some(representation) => Box::new((representation.decode)(json)?),
            None => decode_erased::<K>(json)?,
        };
        self.set_defaults(object.as_mut());
        Ok(object)
    }

    fn encode_stored(&self, object: &dyn Object) -> Vec<u8> {
        match (&K::STORED_AS, cast::<K>(object)) {
            (Some(representation), Some(object)) => (representation.encode)(object),
            (None, Some(object)) => written(object),
            (_, None) => object.to_json(),
        }
    }

    fn set_defaults(&self, object: &mut dyn Object) {
        drop_empty(object.metadata_mut());
        with_mut(object, K::set_defaults);
    }

    fn prepare_create(&self, object: &mut dyn Object) {
        with_mut(object, K::prepare_create);
        object.metadata_mut().generation = K::GENERATION.then_some(1);
    }

    fn prepare_update(&self, new: &mut dyn Object, old: &dyn Object) {
        let Some(old) = cast::<K>(old) else { return };
        keep_system_metadata(new.metadata_mut(), k8s_openapi::Metadata::metadata(old));
        with_mut(new, |new: &mut K| {
            new.prepare_update(old);
            if K::GENERATION && new.spec_changed(old) {
                let generation = &mut k8s_openapi::Metadata::metadata_mut(new).generation;
                *generation = Some(generation.unwrap_or(0) + 1);
            }
        });
    }

    fn prepare_status(&self, new: &mut dyn Object, old: &dyn Object) {
        let Some(old) = cast::<K>(old) else { return };
        keep_system_metadata(new.metadata_mut(), k8s_openapi::Metadata::metadata(old));
        with_mut(new, |new: &mut K| {
            if !K::STATUS_WITH_METADATA {
                keep_own_metadata(new, old);
            }
            new.prepare_status(old);
        });
    }

    fn prepare_own(&self, new: &mut dyn Object, old: &dyn Object) {
        let Some(old) = cast::<K>(old) else { return };
        with_mut(new, |new: &mut K| new.prepare_own(old));
    }

    fn spec_changed(&self, new: &dyn Object, old: &dyn Object) -> bool {
        pair::<K>(new, old).is_some_and(|(new, old)| new.spec_changed(old))
    }

    fn same(&self, new: &dyn Object, old: &dyn Object) -> bool {
        pair::<K>(new, old).is_some_and(|(new, old)| new == old)
    }

    fn validate(&self, object: &dyn Object) -> Vec<Invalid> {
        cast::<K>(object).map_or_else(|| wrong_kind(K::KIND), Kind::validate)
    }

    fn validate_update(&self, new: &dyn Object, old: &dyn Object, _: &mut Vec<String>) -> Vec<Invalid> {
        pair::<K>(new, old).map_or_else(|| wrong_kind(K::KIND), |(new, old)| new.validate_update(old))
    }

    fn validate_status(&self, new: &dyn Object, old: &dyn Object, _: &mut Vec<String>) -> Vec<Invalid> {
        pair::<K>(new, old).map_or_else(|| wrong_kind(K::KIND), |(new, old)| new.validate_status(old))
    }

    fn validate_own(&self, new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
        pair::<K>(new, old).map_or_else(|| wrong_kind(K::KIND), |(new, old)| new.validate_own(old))
    }

    fn warnings(&self, new: &dyn Object, old: Option<&dyn Object>) -> Vec<String> {
        let old = old.and_then(cast::<K>);
        cast::<K>(new).map_or_else(Vec::new, |new| new.warnings(old))
    }

    fn status_warnings(&self, new: &dyn Object) -> Vec<String> {
        cast::<K>(new).map_or_else(Vec::new, K::status_warnings)
    }

    fn field_labels(&self) -> Vec<&'static str> {
        K::FIELDS.iter().map(|field| field.label).collect()
    }

    fn field_names(&self) -> &'static [(&'static str, &'static str)] {
        K::FIELD_NAMES
    }

    fn fields(&self, object: &dyn Object) -> Vec<(&'static str, String)> {
        let fields = |object| K::FIELDS.iter().map(move |field| (field.label, (field.value)(object)));
        cast::<K>(object).map_or_else(Vec::new, |object| fields(object).collect())
    }

    fn columns(&self) -> Vec<ColumnDefinition> {
        let name = ColumnDefinition {
            name: Cow::Borrowed("Name"),
            cell_type: "string",
            format: "name",
            description: Cow::Borrowed(described("meta.v1.ObjectMeta.name")),
            priority: i32::from(K::NAME_LAST),
        };
        let rest = K::COLUMNS.iter().map(|column: &Column<K>| ColumnDefinition {
            name: Cow::Borrowed(column.name),
            cell_type: column.cell_type.name(),
            format: column.cell_type.format(),
            description: Cow::Borrowed(described(column.description)),
            priority: column.priority,
        });
        with_name::<K, _>(name, rest.collect())
    }

    fn decode_shown(&self, json: &[u8]) -> Decoded {
        decode_erased::<K>(&table::shown(json, K::SHOWN))
    }

    fn row(&self, object: &dyn Object, now: Timestamp) -> Vec<Value> {
        let Some(object) = cast::<K>(object) else {
            return Vec::new();
        };
        with_name::<K, _>(
            Value::from(object.shown_name()),
            K::COLUMNS.iter().map(|column| (column.cell)(object, now)).collect(),
        )
    }

    fn completed(&self, object: &dyn Object) -> Option<(&'static str, &'static str)> {
        cast::<K>(object).and_then(Kind::completed)
    }

    fn scale(&self, object: &dyn Object) -> Option<Scale> {
        cast::<K>(object).and_then(Kind::scale)
    }

    fn set_scale(&self, object: &mut dyn Object, replicas: i32) {
        with_mut(object, |object: &mut K| object.set_scale(replicas));
    }

    fn grace(&self, object: &dyn Object, requested: Option<i64>) -> i64 {
        cast::<K>(object).map_or(0, |object| object.grace(requested))
    }
}

fn cast<K: Kind>(object: &dyn Object) -> Option<&K> {
    object.as_any().downcast_ref()
}

fn pair<'a, K: Kind>(new: &'a dyn Object, old: &'a dyn Object) -> Option<(&'a K, &'a K)> {
    cast(new).zip(cast(old))
}

fn with_mut<K: Kind>(object: &mut dyn Object, change: impl FnOnce(&mut K)) {
    if let Some(object) = object.as_any_mut().downcast_mut() {
        change(object);
    }
}

fn decode_erased<K: Kind>(json: &[u8]) -> Decoded {
    Ok(Box::new(decode::decode::<K>(json)?))
}

/// Drops empty values, so that equal objects have equal bytes.
pub fn drop_empty(metadata: &mut ObjectMeta) {
    for map in [&mut metadata.labels, &mut metadata.annotations] {
        if map.as_ref().is_some_and(BTreeMap::is_empty) {
            *map = None;
        }
    }
    for text in [&mut metadata.name, &mut metadata.generate_name, &mut metadata.namespace] {
        if text.as_deref() == Some("") {
            *text = None;
        }
    }
    if metadata.finalizers.as_ref().is_some_and(Vec::is_empty) {
        metadata.finalizers = None;
    }
    if metadata.owner_references.as_ref().is_some_and(Vec::is_empty) {
        metadata.owner_references = None;
    }
}

/// Restores metadata that a client must not change.
fn keep_own_metadata<K: Kind>(new: &mut K, old: &K) {
    let old = k8s_openapi::Metadata::metadata(old);
    let new = k8s_openapi::Metadata::metadata_mut(new);
    new.labels.clone_from(&old.labels);
    new.annotations.clone_from(&old.annotations);
    new.finalizers.clone_from(&old.finalizers);
    new.owner_references.clone_from(&old.owner_references);
}

/// Restores metadata that only the system sets and clients may leave out.
pub fn keep_system_metadata(new: &mut ObjectMeta, old: &ObjectMeta) {
    if new.uid.as_deref().is_none_or(str::is_empty) {
        new.uid.clone_from(&old.uid);
    }
    new.generation = old.generation;
    new.creation_timestamp.clone_from(&old.creation_timestamp);
    if old.deletion_timestamp.is_some() || new.deletion_timestamp.is_none() {
        new.deletion_timestamp.clone_from(&old.deletion_timestamp);
    }
    if new.deletion_grace_period_seconds.is_none() {
        new.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    }
}

fn wrong_kind(kind: &'static str) -> Vec<Invalid> {
    vec![Invalid::internal("kind", format!("the object is not a {kind}"))]
}

fn with_name<K: Kind, T>(name: T, mut rest: Vec<T>) -> Vec<T> {
    rest.insert(if K::NAME_LAST { rest.len() } else { 0 }, name);
    rest
}
