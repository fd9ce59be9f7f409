//! What must hold, and what is filled in, before an object is stored: rules that look beyond the object itself.

mod namespace;
mod node;
mod pod;

use api::Object;
use k8s_openapi::api::core::v1::Pod;

use crate::context::Context;
use crate::failure::Failure;

pub(crate) use namespace::may_delete;
pub(crate) use node::{may_become, may_read, may_touch};

/// Admits a new object, or says why not.
///
/// # Errors
/// 403, 404
pub(crate) async fn on_create(context: &Context, object: &mut dyn Object) -> Result<(), Failure> {
    let name = object.metadata().name.clone().unwrap_or_default();
    namespace::may_create(context, &name)?;
    node::may_create(context, object)?;
    if let Some(pod) = object.as_any_mut().downcast_mut::<Pod>() {
        pod::resolve_priority(context, pod).await?;
        pod::add_tolerations(pod);
    }
    Ok(())
}

/// Admits an update: its namespace must exist.
///
/// # Errors
/// 404
pub(crate) fn on_update(context: &Context) -> Result<(), Failure> {
    namespace::exists(context)
}
