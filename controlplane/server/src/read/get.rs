//! GET of one object.

use http::StatusCode;

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape;

/// Answers the object that the path names, or its subresource `status`, which is the same object.
pub(crate) async fn get(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    if context.query.flag("export") {
        let message = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(Failure::bad_request(message));
    }
    if let Some(wanted) = context.query.text("resourceVersion") {
        let wanted: u64 = wanted.parse().map_err(|_error| {
            Failure::bad_request(format!(
                "Invalid value: {wanted:?}: strconv.ParseUint: parsing {wanted:?}: invalid syntax"
            ))
        })?;
        context.fresh(wanted).await?;
    }
    let live = context.live(context.entry()?).await?;
    let bytes = object::external(&context.registration, &live)?;
    shape::one(context, StatusCode::OK, representation, bytes).await
}
