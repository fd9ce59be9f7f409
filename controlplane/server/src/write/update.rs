//! PUT of a whole object, or of a part of it.

use api::Object;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;

use crate::authz::Attributes;
use crate::request::context::{Context, Identity};
use crate::request::failure::{Failure, Target};
use crate::request::info::RequestInfo;
use crate::request::object;
use crate::request::options::WriteOptions;
use crate::transport::body;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape;
use crate::write::admission::Part;
use crate::write::amend::{Amendment, amend};
use crate::write::create::{Stored, check_name, revision, set_namespace, store_new};
use crate::write::owners;

/// Answers the object as stored.
pub(crate) async fn update(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions")?;
    let body = body::read(body).await?;
    let read = object::read(&context.registration, &context.headers, body, options.field_validation)?;
    context.warnings.extend(read.warnings);
    context.notes.request = Some(read.json);
    context.notes.sent = Identity::of(read.object.metadata());
    let name = context.info.name.clone();
    let mut object = read.object;
    context.warnings.extend(owners::once(object.metadata_mut(), false));
    // The namespace is checked before the existing object is read.
    set_namespace(context, &mut *object)?;
    check_name(&*object, &name)?;
    let amendment = Amendment {
        name: &name,
        part: Part::of(&context.info.subresource),
        dry_run: options.dry_run,
    };
    let outcome = amend(context, amendment, &mut |_entry, _old| Ok(object.clone_box().into())).await;
    let (code, bytes) = match outcome {
        Err(Failure::NotFound { target }) if creates(context, amendment.part, &target) => {
            (StatusCode::CREATED, create(context, object, &options).await?)
        }
        outcome => (StatusCode::OK, outcome?),
    };
    context.notes.response = Some(bytes.clone());
    shape::one(context, code, representation, bytes).await
}

/// True if the missing object is that of the request and its kind can be created by PUT.
fn creates(context: &Context, part: Part, missing: &Target) -> bool {
    part == Part::Object && context.registration.updates.create && *missing == context.own_target()
}

/// Creates the object that a PUT found missing; the user needs the right to create, too.
async fn create(context: &mut Context, mut object: Box<dyn Object>, options: &WriteOptions) -> Result<Bytes, Failure> {
    let info = RequestInfo {
        verb: "create",
        ..context.info.clone()
    };
    context
        .server
        .authorizer
        .check(&context.user, &Attributes::of(&info, ""))?;
    let metadata = object.metadata_mut();
    if let Some(uid) = metadata.uid.take().filter(|uid| !uid.is_empty()) {
        return Err(Failure::Conflict {
            target: context.own_target(),
            because: format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ").into(),
        });
    }
    revision(&*object)?;
    object.metadata_mut().resource_version = None;
    Ok(match store_new(context, object, None, options.dry_run).await? {
        Stored::Entry(entry) => object::external(&context.registration, &context.live(entry).await?)?,
        Stored::DryRun(mut object, managed) => object::unstored(&mut *object, None, &managed),
    })
}
