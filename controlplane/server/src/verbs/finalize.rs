//! PUT of a namespace's own finalizers.

use axum::body::Body;

use crate::context::Context;
use crate::failure::Failure;
use crate::respond::Response;
use crate::verbs::amend::Part;
use crate::verbs::update::update_part;

/// Answers the namespace; without finalizers and being deleted, it is gone.
pub(crate) async fn update(context: &mut Context, body: Body) -> Result<Response, Failure> {
    update_part(context, body, Part::Finalizers).await
}
