//! The functions of a kind behind the signatures of a row.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{ColumnDefinition, Decoded, Reported};
use crate::decode;
use crate::descriptions::described;
use crate::invalid::Invalid;
use crate::kind::{Column, Kind};
use crate::object::{Object, written};

pub(super) fn cast<K: Kind>(object: &dyn Object) -> Option<&K> {
    object.as_any().downcast_ref()
}

pub(super) fn pair<'a, K: Kind>(new: &'a dyn Object, old: &'a dyn Object) -> Option<(&'a K, &'a K)> {
    cast(new).zip(cast(old))
}

pub(super) fn with_mut<K: Kind>(object: &mut dyn Object, change: impl FnOnce(&mut K)) {
    if let Some(object) = object.as_any_mut().downcast_mut() {
        change(object);
    }
}

pub(super) fn decode_erased<K: Kind>(json: &[u8]) -> Decoded {
    Ok(Box::new(decode::decode::<K>(json)?))
}

pub(super) fn decode_reporting_erased<K: Kind>(json: &[u8]) -> Reported {
    let (mut object, unknown) = decode::decode_reporting::<K>(json)?;
    object.decoded(json);
    Ok((Box::new(object), unknown))
}

/// Defaults are set here as well: an object that an older version stored is compared with new ones.
pub(super) fn decode_stored<K: Kind>(json: &[u8]) -> Decoded {
    let mut object: Box<dyn Object> = match &K::STORED_AS {
        Some(representation) => Box::new((representation.decode)(json)?),
        None => decode_erased::<K>(json)?,
    };
    set_defaults::<K>(object.as_mut());
    Ok(object)
}

pub(super) fn encode_stored<K: Kind>(object: &dyn Object) -> Vec<u8> {
    match (&K::STORED_AS, cast::<K>(object)) {
        (Some(representation), Some(object)) => (representation.encode)(object),
        (None, Some(object)) => written(object),
        (_, None) => object.to_json(),
    }
}

pub(super) fn set_defaults<K: Kind>(object: &mut dyn Object) {
    drop_empty(object.metadata_mut());
    with_mut(object, K::set_defaults);
}

/// Drops what means the same as nothing, so that equal objects have equal bytes.
fn drop_empty(metadata: &mut ObjectMeta) {
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

pub(super) fn prepare_create<K: Kind>(object: &mut dyn Object) {
    with_mut(object, K::prepare_create);
    object.metadata_mut().generation = K::GENERATION.then_some(1);
}

pub(super) fn prepare_update<K: Kind>(new: &mut dyn Object, old: &dyn Object) {
    let Some(old) = cast::<K>(old) else { return };
    with_mut(new, |new: &mut K| {
        keep_system_metadata(new, old);
        new.prepare_update(old);
        if K::GENERATION && new.spec_changed(old) {
            let generation = &mut k8s_openapi::Metadata::metadata_mut(new).generation;
            *generation = Some(generation.unwrap_or(0) + 1);
        }
    });
}

pub(super) fn prepare_status<K: Kind>(new: &mut dyn Object, old: &dyn Object) {
    let Some(old) = cast::<K>(old) else { return };
    with_mut(new, |new: &mut K| {
        keep_system_metadata(new, old);
        if !K::STATUS_WITH_METADATA {
            keep_own_metadata(new, old);
        }
        new.prepare_status(old);
    });
}

pub(super) fn prepare_own<K: Kind>(new: &mut dyn Object, old: &dyn Object) {
    let Some(old) = cast::<K>(old) else { return };
    with_mut(new, |new: &mut K| new.prepare_own(old));
}

/// Takes from the old object what clients set otherwise.
fn keep_own_metadata<K: Kind>(new: &mut K, old: &K) {
    let old = k8s_openapi::Metadata::metadata(old);
    let new = k8s_openapi::Metadata::metadata_mut(new);
    new.labels.clone_from(&old.labels);
    new.annotations.clone_from(&old.annotations);
    new.finalizers.clone_from(&old.finalizers);
    new.owner_references.clone_from(&old.owner_references);
}

/// Takes from the old object what the system alone sets and clients may leave out.
fn keep_system_metadata<K: Kind>(new: &mut K, old: &K) {
    let old = k8s_openapi::Metadata::metadata(old);
    let new = k8s_openapi::Metadata::metadata_mut(new);
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

pub(super) fn validate<K: Kind>(object: &dyn Object) -> Vec<Invalid> {
    cast::<K>(object).map_or_else(|| wrong_kind(K::KIND), Kind::validate)
}

pub(super) fn validate_update<K: Kind>(new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
    pair::<K>(new, old).map_or_else(|| wrong_kind(K::KIND), |(new, old)| new.validate_update(old))
}

pub(super) fn validate_status<K: Kind>(new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
    pair::<K>(new, old).map_or_else(|| wrong_kind(K::KIND), |(new, old)| new.validate_status(old))
}

pub(super) fn validate_own<K: Kind>(new: &dyn Object, old: &dyn Object) -> Vec<Invalid> {
    pair::<K>(new, old).map_or_else(|| wrong_kind(K::KIND), |(new, old)| new.validate_own(old))
}

pub(super) fn warnings<K: Kind>(new: &dyn Object, old: Option<&dyn Object>) -> Vec<String> {
    let old = old.and_then(cast::<K>);
    cast::<K>(new).map_or_else(Vec::new, |new| new.warnings(old))
}

fn wrong_kind(kind: &'static str) -> Vec<Invalid> {
    vec![Invalid::internal("kind", format!("the object is not a {kind}"))]
}

pub(super) fn fields<K: Kind>(object: &dyn Object) -> Vec<(&'static str, String)> {
    let Some(object) = cast::<K>(object) else {
        return Vec::new();
    };
    K::FIELDS
        .iter()
        .map(|field| (field.label, (field.value)(object)))
        .collect()
}

pub(super) fn columns<K: Kind>() -> Vec<ColumnDefinition> {
    let name = ColumnDefinition {
        name: "Name",
        cell_type: "string",
        format: "name",
        description: described("meta.v1.ObjectMeta.name"),
        priority: i32::from(K::NAME_LAST),
    };
    let rest = K::COLUMNS.iter().map(|column: &Column<K>| ColumnDefinition {
        name: column.name,
        cell_type: column.cell_type.name(),
        format: "",
        description: described(column.description),
        priority: column.priority,
    });
    with_name::<K, _>(name, rest.collect())
}

pub(super) fn row<K: Kind>(object: &dyn Object, now: Timestamp) -> Vec<Value> {
    let Some(object) = cast::<K>(object) else {
        return Vec::new();
    };
    with_name::<K, _>(
        Value::from(object.shown_name()),
        K::COLUMNS.iter().map(|column| (column.cell)(object, now)).collect(),
    )
}

fn with_name<K: Kind, T>(name: T, mut rest: Vec<T>) -> Vec<T> {
    rest.insert(if K::NAME_LAST { rest.len() } else { 0 }, name);
    rest
}
