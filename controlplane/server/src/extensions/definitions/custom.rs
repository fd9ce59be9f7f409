//! Custom resources, and the behavior of one version of such a kind: a row's [`Behavior`] that is
//! made from data.

use std::any::Any;
use std::sync::Arc;

use api::decode::{self, DecodeError};
use api::managed::Types;
use api::registration::{Behavior, ColumnDefinition, Decoded, Reported, drop_empty, keep_system_metadata};
use api::{Invalid, Object};
use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec, ScaleStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::version::{Replicas, Version, nested, parts};

/// An object.
#[derive(Clone, PartialEq)]
pub(super) struct Custom {
    metadata: ObjectMeta,
    /// Members besides the metadata, `apiVersion` and `kind` included.
    members: Map<String, Value>,
}

impl Custom {
    fn text(&self, member: &str) -> &str {
        self.members.get(member).and_then(Value::as_str).unwrap_or_default()
    }

    /// The whole object.
    pub(super) fn to_value(&self) -> Value {
        let mut whole = self.members.clone();
        // Metadata serializes: its maps have text keys.
        let metadata = serde_json::to_value(&self.metadata).unwrap_or_default();
        whole.insert("metadata".to_owned(), metadata);
        Value::Object(whole)
    }

    fn of(value: Value) -> Result<(Self, Vec<String>), DecodeError> {
        let Value::Object(mut members) = value else {
            return Err(misfit(
                "json: cannot unmarshal into Go value of type map[string]interface {}",
            ));
        };
        let metadata = members.remove("metadata").filter(|metadata| !metadata.is_null());
        let (metadata, unknown) = match metadata {
            Some(metadata) => {
                let (metadata, unknown) = decode::metadata(&metadata)?;
                let unknown = unknown.into_iter().map(|path| format!("metadata.{path}"));
                (metadata, unknown.collect())
            }
            None => (ObjectMeta::default(), Vec::new()),
        };
        Ok((Self { metadata, members }, unknown))
    }
}

fn misfit(message: impl Into<String>) -> DecodeError {
    DecodeError {
        path: String::new(),
        message: message.into(),
    }
}

fn coerce(version: &Version, value: &mut Value) -> Result<Vec<String>, DecodeError> {
    version.coerce(value).map_err(|error| misfit(error.to_string()))
}

fn read(json: &[u8]) -> Result<Value, DecodeError> {
    serde_json::from_slice(json).map_err(|error| misfit(error.to_string()))
}

impl Object for Custom {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn to_json(&self) -> Vec<u8> {
        // Values serialize.
        serde_json::to_vec(&self.to_value()).unwrap_or_default()
    }

    fn clone_box(&self) -> Box<dyn Object> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn cast(object: &dyn Object) -> Option<&Custom> {
    object.as_any().downcast_ref()
}

fn cast_mut(object: &mut dyn Object) -> Option<&mut Custom> {
    object.as_any_mut().downcast_mut()
}

/// Served version of a kind, with all versions in which objects may be stored.
pub(super) struct Served {
    pub(super) own: Arc<Version>,
    /// The version that is stored.
    pub(super) stored: Arc<Version>,
    pub(super) all: Arc<[Arc<Version>]>,
    /// True if objects of other versions are converted by a webhook.
    pub(super) asks: bool,
}

impl Behavior for Served {
    fn types(&self) -> Option<Types<'_>> {
        Some(Types::Shape(&self.own.shape))
    }

    fn decode(&self, json: &[u8]) -> Decoded {
        Ok(Box::new(Custom::of(read(json)?)?.0))
    }

    fn decode_reporting(&self, json: &[u8]) -> Reported {
        let mut value = read(json)?;
        let text = |member: &str| value.get(member).and_then(Value::as_str).unwrap_or_default();
        if text("kind").is_empty() {
            let shown = String::from_utf8_lossy(json);
            return Err(misfit(format!("Object 'Kind' is missing in '{shown}'")));
        }
        if text("apiVersion") != self.own.qualified {
            return Err(misfit("another version"));
        }
        let dropped = coerce(&self.own, &mut value)?;
        let (object, mut unknown) = Custom::of(value)?;
        unknown.extend(dropped);
        Ok((Box::new(object), unknown))
    }

    fn decode_stored(&self, json: &[u8]) -> Decoded {
        let mut value = read(json)?;
        let stored = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let from = self.all.iter().find(|version| version.qualified == stored);
        let from = from.unwrap_or(&self.stored);
        if self.asks && !Arc::ptr_eq(from, &self.own) {
            return Err(misfit(format!("{stored} must be converted first")));
        }
        coerce(from, &mut value)?;
        if !Arc::ptr_eq(from, &self.own)
            && let Some(members) = value.as_object_mut()
        {
            members.insert("apiVersion".to_owned(), Value::from(self.own.qualified.as_str()));
            self.own.schema.prune(&mut value);
        }
        Ok(Box::new(Custom::of(value)?.0))
    }

    fn encode_stored(&self, object: &dyn Object) -> Vec<u8> {
        let Some(object) = cast(object).filter(|_| !Arc::ptr_eq(&self.own, &self.stored)) else {
            return object.to_json();
        };
        let mut stored = object.clone();
        let version = Value::from(self.stored.qualified.as_str());
        stored.members.insert("apiVersion".to_owned(), version);
        stored.to_json()
    }

    fn set_defaults(&self, object: &mut dyn Object) {
        drop_empty(object.metadata_mut());
    }

    fn prepare_create(&self, object: &mut dyn Object) {
        object.metadata_mut().generation = Some(1);
        if let Some(object) = cast_mut(object).filter(|_| self.own.has_status) {
            object.members.remove("status");
        }
    }

    /// `PrepareForUpdate` of `pkg/registry/customresource/strategy.go`
    fn prepare_update(&self, new: &mut dyn Object, old: &dyn Object) {
        let (Some(new), Some(old)) = (cast_mut(new), cast(old)) else {
            return;
        };
        keep_system_metadata(&mut new.metadata, &old.metadata);
        if self.own.has_status {
            match old.members.get("status") {
                Some(status) => drop(new.members.insert("status".to_owned(), status.clone())),
                None => drop(new.members.remove("status")),
            }
        }
        if new.members != old.members {
            new.metadata.generation = Some(old.metadata.generation.unwrap_or(0) + 1);
        }
    }

    fn prepare_status(&self, new: &mut dyn Object, old: &dyn Object) {
        let (Some(new), Some(old)) = (cast_mut(new), cast(old)) else {
            return;
        };
        let status = new.members.remove("status");
        let revision = new.metadata.resource_version.take();
        new.clone_from(old);
        new.metadata.resource_version = revision;
        match status {
            Some(status) => drop(new.members.insert("status".to_owned(), status)),
            None => drop(new.members.remove("status")),
        }
    }

    fn prepare_own(&self, _new: &mut dyn Object, _old: &dyn Object) {}

    fn spec_changed(&self, new: &dyn Object, old: &dyn Object) -> bool {
        cast(new)
            .zip(cast(old))
            .is_some_and(|(new, old)| new.members != old.members)
    }

    fn same(&self, new: &dyn Object, old: &dyn Object) -> bool {
        cast(new).zip(cast(old)).is_some_and(|(new, old)| new == old)
    }

    fn validate(&self, object: &dyn Object) -> Vec<Invalid> {
        let Some(object) = cast(object) else { return Vec::new() };
        let mut errors = self.type_meta(object);
        if errors.is_empty() {
            let value = object.to_value();
            errors.extend(self.own.validate(&value, None, &mut Vec::new()));
        }
        errors
    }

    fn validate_update(&self, new: &dyn Object, old: &dyn Object, warnings: &mut Vec<String>) -> Vec<Invalid> {
        let (Some(new), Some(old)) = (cast(new), cast(old)) else {
            return Vec::new();
        };
        let mut errors = self.type_meta(new);
        if errors.is_empty() {
            errors.extend(self.own.validate(&new.to_value(), Some(&old.to_value()), warnings));
        }
        errors
    }

    fn validate_status(&self, new: &dyn Object, old: &dyn Object, warnings: &mut Vec<String>) -> Vec<Invalid> {
        let (Some(new), Some(old)) = (cast(new), cast(old)) else {
            return Vec::new();
        };
        let mut errors = self.type_meta(new);
        if errors.is_empty() {
            errors.extend(self.own.validate_status(&new.to_value(), &old.to_value(), warnings));
        }
        errors
    }

    /// `validateKubeFinalizerName` of `pkg/registry/customresource/validator.go`
    fn warnings(&self, new: &dyn Object, old: Option<&dyn Object>) -> Vec<String> {
        let before = old
            .and_then(|old| old.metadata().finalizers.as_deref())
            .unwrap_or_default();
        let added = new.metadata().finalizers.iter().flatten();
        let added = added.filter(|name| !before.contains(name) && !name.contains('/'));
        let standard = ["orphan", "foregroundDeletion"];
        let odd = added.filter(|name| !standard.contains(&name.as_str()));
        let warnings = odd.map(|name| {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            format!(
                "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts \
                 with other finalizer writers"
            )
        });
        warnings.collect()
    }

    fn field_labels(&self) -> Vec<&'static str> {
        self.own.selectable.iter().map(|(label, _)| *label).collect()
    }

    fn fields(&self, object: &dyn Object) -> Vec<(&'static str, String)> {
        let Some(whole) = cast(object)
            .filter(|_| !self.own.selectable.is_empty())
            .map(Custom::to_value)
        else {
            return Vec::new();
        };
        let value = |path: &super::json_path::JsonPath| match path.find(&whole) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        self.own
            .selectable
            .iter()
            .map(|(label, path)| (*label, value(path)))
            .collect()
    }

    fn columns(&self) -> Vec<ColumnDefinition> {
        self.own.columns.headings()
    }

    fn row(&self, object: &dyn Object, now: Timestamp) -> Vec<Value> {
        let Some(object) = cast(object) else { return Vec::new() };
        self.own.columns.cells(&object.to_value(), now)
    }

    fn scale(&self, object: &dyn Object) -> Option<Scale> {
        let (replicas, object) = (self.own.replicas.as_ref()?, cast(object)?);
        let number = |path: &str| nested(&object.members, path).and_then(Value::as_i64);
        let replicas_of = |path: &str| number(path).and_then(|own| i32::try_from(own).ok());
        let Replicas { spec, status, selector } = replicas;
        let own = &object.metadata;
        Some(Scale {
            metadata: ObjectMeta {
                name: own.name.clone(),
                namespace: own.namespace.clone(),
                uid: own.uid.clone(),
                resource_version: own.resource_version.clone(),
                creation_timestamp: own.creation_timestamp.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(ScaleSpec {
                replicas: replicas_of(spec),
            }),
            status: Some(ScaleStatus {
                replicas: replicas_of(status).unwrap_or(0),
                selector: selector
                    .as_deref()
                    .and_then(|path| nested(&object.members, path)?.as_str())
                    .map(str::to_owned),
            }),
        })
    }

    fn replicas_path(&self) -> &'static str {
        self.own.replicas.as_ref().map_or("", |replicas| replicas.spec)
    }

    fn set_scale(&self, object: &mut dyn Object, replicas: i32) {
        let (Some(own), Some(object)) = (self.own.replicas.as_ref(), cast_mut(object)) else {
            return;
        };
        let mut names: Vec<&str> = parts(own.spec).collect();
        let last = names.pop().unwrap_or_default();
        let mut members = &mut object.members;
        for name in names {
            let below = members.entry(name).or_insert_with(|| json!({}));
            let Some(below) = below.as_object_mut() else { return };
            members = below;
        }
        members.insert(last.to_owned(), Value::from(replicas));
    }
}

impl Served {
    /// `ValidateTypeMeta` of `pkg/registry/customresource/validator.go`
    fn type_meta(&self, object: &Custom) -> Vec<Invalid> {
        let check = |member: &str, wanted: &str| {
            let own = object.text(member);
            (own != wanted).then(|| Invalid::value(member, own, format!("must be {wanted}")))
        };
        let found = [check("kind", self.own.kind), check("apiVersion", &self.own.qualified)];
        found.into_iter().flatten().collect()
    }
}
