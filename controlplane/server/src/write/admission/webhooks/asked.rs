//! A request as webhooks see it (`pkg/admission/attributes.go`).

use api::kinds::subresources::SCALE;
use api::managed::{Types, splice};
use api::{Object, Registration, Row};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;
use crate::request::options::{Deletion, FieldValidation, Propagation};

/// Operation of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub(in crate::write::admission) const fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(in crate::write::admission) struct GroupVersionKind {
    pub(in crate::write::admission) group: String,
    pub(in crate::write::admission) version: String,
    pub(in crate::write::admission) kind: String,
}

impl GroupVersionKind {
    pub(in crate::write::admission) fn of(row: &Registration) -> Self {
        Self {
            group: row.group.to_owned(),
            version: row.version.to_owned(),
            kind: row.kind.to_owned(),
        }
    }
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(in crate::write::admission) struct GroupVersionResource {
    pub(in crate::write::admission) group: String,
    pub(in crate::write::admission) version: String,
    pub(in crate::write::admission) resource: String,
}

/// Request as webhooks see it.
pub(crate) struct Asked<'a> {
    pub(in crate::write::admission) context: &'a Context,
    pub(in crate::write::admission) operation: Operation,
    pub(in crate::write::admission) kind: GroupVersionKind,
    pub(in crate::write::admission) resource: GroupVersionResource,
    pub(in crate::write::admission) name: String,
    /// Namespace; for a Namespace, its own name.
    pub(in crate::write::admission) namespace: String,
    pub(in crate::write::admission) dry_run: bool,
    /// The options of the operation.
    pub(in crate::write::admission) options: Value,
    pub(in crate::write::admission) old: Option<&'a dyn Object>,
    /// Options of a `CONNECT` request, which take the object's place.
    pub(in crate::write::admission) connection: Option<Value>,
    /// Kind of the object; `None` for a connection.
    row: Option<&'a Registration>,
    /// Text of the object's managed fields.
    managed: &'a str,
}

/// The form of a request in which rules are for it.
pub(in crate::write::admission) struct Fit {
    pub(in crate::write::admission) kind: GroupVersionKind,
    pub(in crate::write::admission) resource: GroupVersionResource,
    /// Equivalent resource to which the request is converted, if not its own.
    pub(in crate::write::admission) form: Option<Row>,
}

impl Fit {
    /// The request's own form.
    pub(in crate::write::admission) fn own(asked: &Asked<'_>) -> Self {
        Self {
            kind: asked.kind.clone(),
            resource: asked.resource.clone(),
            form: None,
        }
    }
}

impl<'a> Asked<'a> {
    fn new(context: &'a Context, operation: Operation, row: &'a Registration, name: &str) -> Self {
        let info = &context.info;
        let name = if info.name.is_empty() { name } else { info.name.as_str() };
        let is_namespace = info.group.is_empty() && info.resource == "namespaces";
        let namespace = if is_namespace { name } else { info.namespace.as_str() };
        Self {
            context,
            operation,
            kind: GroupVersionKind::of(row),
            resource: GroupVersionResource {
                group: info.group.clone(),
                version: info.version.clone(),
                resource: info.resource.clone(),
            },
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            dry_run: false,
            options: Value::Null,
            old: None,
            connection: None,
            row: Some(row),
            managed: "",
        }
    }

    /// The request to create an object of a row, or to change one.
    pub(crate) fn to_write(
        context: &'a Context,
        row: &'a Registration,
        object: &dyn Object,
        old: Option<&'a dyn Object>,
        managed: &'a str,
    ) -> Self {
        let operation = if old.is_some() {
            Operation::Update
        } else {
            Operation::Create
        };
        let row = if context.info.subresource == "scale" {
            &SCALE
        } else {
            row
        };
        let name = object.metadata().name.as_deref().unwrap_or_default();
        Self {
            dry_run: context.query.text("dryRun").is_some(),
            options: write_options(context, operation),
            old,
            managed,
            ..Self::new(context, operation, row, name)
        }
    }

    /// The request to delete an object.
    pub(crate) fn to_delete(context: &'a Context, old: &'a dyn Object, managed: &'a str, deletion: &Deletion) -> Self {
        Self {
            dry_run: deletion.dry_run,
            options: delete_options(deletion),
            old: Some(old),
            managed,
            ..Self::new(context, Operation::Delete, &context.registration, "")
        }
    }

    /// The request to connect to something.
    pub(crate) fn to_connect(context: &'a Context, kind: &str, options: Value) -> Self {
        Self {
            kind: GroupVersionKind {
                group: String::new(),
                version: "v1".to_owned(),
                kind: kind.to_owned(),
            },
            connection: Some(options),
            row: None,
            ..Self::new(context, Operation::Connect, &context.registration, "")
        }
    }

    fn is_of_scale(&self) -> bool {
        self.row.is_some_and(|row| std::ptr::eq(row, &raw const SCALE))
    }

    /// True if the object has labels of its own in the version in which it is sent.
    pub(in crate::write::admission) fn has_labels(&self) -> bool {
        !self.is_of_scale()
    }

    /// JSON of the object, or of the old one, as a webhook gets it: in the request's own form, or in another of the same kind.
    ///
    /// # Errors
    /// 500 where it cannot be converted.
    pub(in crate::write::admission) async fn shown(
        &self,
        object: &dyn Object,
        form: Option<&Row>,
    ) -> Result<Vec<u8>, Failure> {
        if self.is_of_scale() {
            let scale = self.context.registration.scale(object).ok_or(Failure::NoSuchResource)?;
            return Ok(scale.to_json());
        }
        let mut object = match (form, self.row) {
            (Some(form), Some(row)) if !form.is_defined() => form
                .decode_stored(&row.encode_stored(object))
                .map_err(Failure::internal)?,
            (_, _) => object.clone_box(),
        };
        let metadata = object.metadata_mut();
        if let Some(old) = self.old {
            metadata.resource_version.clone_from(&old.metadata().resource_version);
        }
        metadata.managed_fields = None;
        let json = splice::join(object.to_json(), self.managed);
        match (form, self.row) {
            (Some(form), Some(row)) if form.is_defined() => self.converted(row, form, json).await,
            (_, _) => Ok(json),
        }
    }

    /// An object of a defined kind in another version.
    async fn converted(&self, from: &Registration, to: &Registration, object: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let converted = self.context.in_version(from, to, object).await;
        if let Err(Failure::Unexpected { message }) = converted {
            // The fault is another server's: our own log has said so.
            let status = Box::new(Failure::Internal { message }.status());
            return Err(Failure::Told { status });
        }
        converted
    }

    /// Types of the object's fields in a version; `None` for a connection.
    pub(in crate::write::admission) fn types<'r>(&self, form: Option<&'r Row>) -> Option<Types<'r>>
    where
        'a: 'r,
    {
        match form {
            Some(form) => form.types(),
            None => self.row?.types(),
        }
    }

    /// True if two objects are the same.
    pub(in crate::write::admission) fn is_same(&self, left: &dyn Object, right: &dyn Object) -> bool {
        let row = self.row.filter(|_| !self.is_of_scale());
        row.unwrap_or(&self.context.registration).same(left, right)
    }

    /// Decodes the object that a patch produced; returns whether it changed.
    ///
    /// # Errors
    /// 500 for objects that cannot be decoded, or with unknown fields under strict validation.
    pub(in crate::write::admission) async fn take(
        &self,
        patched: &Value,
        form: Option<&Row>,
        object: &mut Box<dyn Object>,
        validation: FieldValidation,
    ) -> Result<bool, Failure> {
        let row = self.row.ok_or(Failure::NoSuchResource)?;
        let text = patched.to_string();
        let read = object::decode_bare(form.map_or(row, |form| form), text.as_bytes(), validation);
        let (mut new, unknown) = read.map_err(Failure::internal)?;
        if validation == FieldValidation::Strict && !unknown.is_empty() {
            return Err(Failure::internal(format!(
                "strict decoding error: {}",
                unknown.join(", ")
            )));
        }
        if self.is_of_scale() {
            let row = &self.context.registration;
            let before = row.scale(&**object).and_then(|scale| scale.spec?.replicas).unwrap_or(0);
            let scale: k8s_openapi::api::autoscaling::v1::Scale = object::part(&*new)?;
            let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
            row.set_scale(&mut **object, replicas);
            return Ok(replicas != before);
        }
        if let Some(form) = form {
            let read = if form.is_defined() {
                row.decode(&self.converted(form, row, new.to_json()).await?)
            } else {
                row.decode_stored(&form.encode_stored(&*new))
            };
            new = read.map_err(Failure::internal)?;
        }
        let metadata = new.metadata_mut();
        metadata.managed_fields = None;
        metadata
            .resource_version
            .clone_from(&object.metadata().resource_version);
        row.set_defaults(&mut *new);
        let changed = !row.same(&*new, &**object);
        *object = new;
        Ok(changed)
    }
}

/// Options of a write as they were sent. A patch has those of the create or update that it becomes.
fn write_options(context: &Context, operation: Operation) -> Value {
    let kind = if operation == Operation::Create {
        "CreateOptions"
    } else {
        "UpdateOptions"
    };
    let mut options = typed(kind);
    if context.query.text("dryRun").is_some() {
        options.insert("dryRun".to_owned(), json!(["All"]));
    }
    for name in ["fieldManager", "fieldValidation"] {
        if let Some(value) = context.query.text(name) {
            options.insert(name.to_owned(), value.into());
        }
    }
    options.into()
}

fn delete_options(deletion: &Deletion) -> Value {
    let mut options = typed("DeleteOptions");
    if deletion.dry_run {
        options.insert("dryRun".to_owned(), json!(["All"]));
    }
    let policy = deletion.propagation.map(|policy| match policy {
        Propagation::Orphan => "Orphan",
        Propagation::Background => "Background",
        Propagation::Foreground => "Foreground",
    });
    let preconditions = [("uid", &deletion.uid), ("resourceVersion", &deletion.resource_version)];
    let preconditions = preconditions.into_iter();
    let preconditions: Map<String, Value> = preconditions
        .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?.into())))
        .collect();
    let members = [
        ("gracePeriodSeconds", deletion.grace.map(Value::from)),
        ("orphanDependents", deletion.orphan_dependents.map(Value::from)),
        ("propagationPolicy", policy.map(Value::from)),
        (
            "preconditions",
            Some(preconditions).filter(|own| !own.is_empty()).map(Value::from),
        ),
    ];
    options.extend(
        members
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?))),
    );
    options.into()
}

fn typed(kind: &str) -> Map<String, Value> {
    let members = [("kind", kind), ("apiVersion", "meta.k8s.io/v1")];
    members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}
