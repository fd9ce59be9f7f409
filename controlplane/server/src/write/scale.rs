//! The `scale` subresource: an object's replicas alone, as `autoscaling/v1` Scale.

use api::Object;
use api::descriptions::described;
use api::kinds::subresources::SCALE;
use api::managed::splice;
use api::registration::ColumnDefinition;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::autoscaling::v1::Scale;
use serde_json::{Value, json};

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object::{self, Live};
use crate::request::options::{FieldValidation, WriteOptions};
use crate::transport::body;
use crate::transport::negotiation::{MetaVersion, Representation, Shape, negotiate};
use crate::transport::respond::{self, Response, encode};
use crate::transport::shape::{self, IncludeObject, ListMeta, Row};
use crate::write::admission::Part;
use crate::write::amend::{Amendment, amend};
use crate::write::apply::{Applying, applied_to};
use crate::write::create::{check_name, check_namespace};
use crate::write::patch::{Patch, apply_to, is_apply};

/// Answers the scale.
pub(crate) async fn get(context: &mut Context) -> Result<Response, Failure> {
    let live = context.live(context.entry()?).await?;
    let object = object::stored(&context.registration, &live)?;
    let scale = scale(context, &*object)?;
    if context.registration.is_defined() && replicas(&scale).is_none() {
        let path = context.registration.replicas_path();
        let message = format!("the spec replicas field {path:?} does not exist");
        return Err(Failure::internal(message));
    }
    answer(context, &scale)
}

/// Replaces the scale.
pub(crate) async fn update(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let options = WriteOptions::read(&context.query, "UpdateOptions")?;
    let body = body::read(body).await?;
    let decoded = body::to_json(
        &context.headers,
        body,
        SCALE.kind,
        options.field_validation != FieldValidation::Ignore,
    )?;
    let wanted: Scale = context.read_part(&SCALE, decoded, options.field_validation)?;
    check_namespace(context, wanted.metadata.namespace.as_deref())?;
    change(context, options, &mut |_current| Ok(wanted.clone())).await
}

/// Patches the scale.
pub(crate) async fn patch(context: &mut Context, body: Body) -> Result<Response, Failure> {
    if is_apply(context) {
        return apply(context, body).await;
    }
    let options = WriteOptions::of_patch(&context.query, false)?;
    let body = body::repaired(body::read(body).await?)?;
    let patch = Patch::read(&context.registration, &context.headers, &body)?;
    let validation = options.field_validation;
    let own = patch.complaints(&body, validation);
    context.notes.request = Some(body);
    let mut warnings = Vec::new();
    let patched = &mut |current: &Scale| {
        let document = serde_json::to_value(current).map_err(Failure::internal)?;
        let (scale, complaints) = apply_to(&SCALE, &patch, &own, document, validation)?;
        warnings = complaints;
        object::part(&*scale)
    };
    let response = change(context, options, patched).await?;
    context.warnings.extend(warnings);
    Ok(response)
}

async fn change(
    context: &mut Context,
    options: WriteOptions,
    wanted: &mut (dyn FnMut(&Scale) -> Result<Scale, Failure> + Send),
) -> Result<Response, Failure> {
    let name = context.info.name.clone();
    let amendment = Amendment {
        name: &name,
        part: Part::Object,
        dry_run: options.dry_run,
    };
    let shared: &Context = context;
    let bytes = amend(shared, amendment, &mut |_live: &Live, old: &dyn Object| {
        let wanted = wanted(&scale(shared, old)?)?;
        check(&wanted, &name)?;
        let replicas = replicas(&wanted);
        if shared.registration.is_defined() && replicas.is_none() {
            let path = shared.registration.replicas_path();
            return Err(Failure::bad_request(format!(
                "the spec replicas field {path:?} cannot be empty"
            )));
        }
        let mut new = old.clone_box();
        shared.registration.set_scale(&mut *new, replicas.unwrap_or(0));
        let metadata = new.metadata_mut();
        metadata.resource_version = wanted.metadata.resource_version;
        metadata.uid = wanted.metadata.uid;
        Ok(new.into())
    })
    .await?;
    answer_stored(context, &bytes)
}

fn answer_stored(context: &mut Context, bytes: &[u8]) -> Result<Response, Failure> {
    // The answer has its defaults.
    let object = context
        .registration
        .decode(&splice::split(bytes).object)
        .map_err(Failure::internal)?;
    let scale = scale(context, &*object)?;
    context.notes.response = Some(encode(&scale));
    answer(context, &scale)
}

/// Applies a scale: its replicas are the object's.
async fn apply(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let mut applying = Applying::read(context, body).await?;
    let wanted: Scale = applying.decode(&SCALE)?;
    let name = context.info.name.clone();
    check(&wanted, &name)?;
    let registration = &context.registration;
    let mut object = json!({
        "apiVersion": registration.api_version(),
        "kind": registration.kind,
        "metadata": { "name": name },
    });
    if let Some(replicas) = wanted.spec.and_then(|spec| spec.replicas) {
        let path = registration.replicas_path().trim_start_matches('.');
        let below = path
            .rsplit('.')
            .fold(json!(replicas), |below, name| json!({ name: below }));
        if let (Some(members), Value::Object(below)) = (object.as_object_mut(), below) {
            members.extend(below);
        }
    }
    let versions = [
        ("resourceVersion", wanted.metadata.resource_version),
        ("uid", wanted.metadata.uid),
    ];
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.extend(
            versions
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?.into()))),
        );
    }
    applying.object = object;
    let amendment = Amendment {
        name: &name,
        part: Part::Object,
        dry_run: applying.options.dry_run,
    };
    let shared: &Context = context;
    let change = &mut |live: &Live, _old: &dyn Object| applied_to(shared, &applying, live);
    let bytes = amend(shared, amendment, change).await?;
    answer_stored(context, &bytes)
}

fn check(wanted: &Scale, name: &str) -> Result<(), Failure> {
    check_name(wanted, name)?;
    let replicas = replicas(wanted).unwrap_or(0);
    if replicas < 0 {
        let found = api::Invalid::value("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(Failure::invalid("autoscaling", "Scale", name, &[found]));
    }
    Ok(())
}

/// The scale of an object. One of a kind that is defined need not say the replicas
/// (`ScaleREST` of `staging/src/k8s.io/apiextensions-apiserver/pkg/registry/customresource/etcd.go`).
fn scale(context: &Context, object: &dyn Object) -> Result<Scale, Failure> {
    context.registration.scale(object).ok_or(Failure::NoSuchResource)
}

fn replicas(scale: &Scale) -> Option<i32> {
    scale.spec.as_ref().and_then(|spec| spec.replicas)
}

fn answer(context: &Context, scale: &Scale) -> Result<Response, Failure> {
    let Representation { encoding, shape } = negotiate(&context.headers, &context.query)?;
    let (kind, bytes) = match shape {
        Shape::Object => (("autoscaling/v1", "Scale"), encode(scale)),
        Shape::Table(version) => ((version.api_version(), "Table"), table(context, scale, version)?),
        Shape::Metadata(version) | Shape::MetadataList(version) => (
            (version.api_version(), shape::PARTIAL),
            encode(&shape::partial(&scale.metadata, version)),
        ),
    };
    respond::document(encoding, StatusCode::OK, kind, &bytes)
}

/// Table that `kubectl get --subresource=scale` shows.
fn table(context: &Context, scale: &Scale, version: MetaVersion) -> Result<Bytes, Failure> {
    let metadata = &scale.metadata;
    let object = match IncludeObject::read(&context.query)? {
        IncludeObject::None => None,
        IncludeObject::Metadata => Some(encode(&shape::partial(metadata, version))),
        IncludeObject::Object => Some(encode(scale)),
    };
    let column = |name: &'static str, cell_type, description: &'static str| ColumnDefinition {
        name: name.into(),
        cell_type,
        format: "",
        description: description.into(),
        priority: 0,
    };
    let columns = [
        column("Name", "string", described("meta.v1.ObjectMeta.name")),
        column(
            "Desired",
            "integer",
            "replicas is the desired number of instances for the scaled object.",
        ),
        column(
            "Available",
            "integer",
            "replicas is the actual number of observed instances of the scaled object.",
        ),
        column("Age", "string", described("meta.v1.ObjectMeta.creationTimestamp")),
    ];
    let desired = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    let available = scale.status.as_ref().map_or(0, |status| status.replicas);
    let age = api::table::since(metadata.creation_timestamp.as_ref(), context.now());
    let row = Row {
        cells: vec![json!(metadata.name), desired.into(), available.into(), age.into()],
        completed: None,
        object,
    };
    let revision = metadata.resource_version.clone().unwrap_or_default();
    Ok(shape::table(version, &ListMeta::at(revision), &columns, &[row]))
}
