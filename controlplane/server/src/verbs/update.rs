//! PUT of a whole object, or of its status.

use axum::body::Body;
use http::StatusCode;

use crate::body;
use crate::context::{Context, Identity};
use crate::failure::Failure;
use crate::negotiation::negotiate;
use crate::object;
use crate::options::WriteOptions;
use crate::respond::Response;
use crate::shape;
use crate::verbs::amend::{Amendment, Part, amend};

/// Answers the object as stored.
pub(crate) async fn update(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let part = if context.info.subresource == "status" {
        Part::Status
    } else {
        Part::Object
    };
    update_part(context, body, part).await
}

/// The same for a given part.
pub(crate) async fn update_part(context: &mut Context, body: Body, part: Part) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions")?;
    let body = body::read(body).await?;
    let read = object::read(context.registration, &context.headers, body, options.field_validation)?;
    context.warnings.extend(read.warnings);
    context.notes.request = Some(read.json);
    context.notes.sent = Identity::of(read.object.metadata());
    let name = context.info.name.clone();
    let amendment = Amendment {
        name: &name,
        part,
        dry_run: options.dry_run,
    };
    let bytes = amend(context, amendment, &mut |_entry, _old| Ok(read.object.clone_box())).await?;
    context.notes.response = Some(bytes.clone());
    shape::one(context, StatusCode::OK, representation, bytes)
}
