//! Requirement of a pod that is checked on the node only: a `RuntimeClass` handler.
//!
//! A node that does not meet it retries, as it may become available, and reports what is missing in
//! the pod's events.

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;

use super::failure::Failure;
use crate::context::Context;

/// Returns the handler of the pod's `RuntimeClass`, or why the pod has to wait.
pub(in crate::pod::worker) async fn check(context: &Context, spec: &PodSpec) -> Result<String, Failure> {
    let Some(name) = spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(String::new());
    };
    let classes: Api<RuntimeClass> = Api::all(context.parts.client.clone());
    let class = classes.get_opt(name).await;
    match class.map_err(|error| Failure::sandbox_text(&image::chain(&error)))? {
        None => Err(Failure::sandbox_text(&format!(
            "failed to get sandbox runtime: runtimeclass.node.k8s.io {name:?} not found"
        ))),
        Some(class) if context.parts.runtime.has_handler(&class.handler) => Ok(class.handler),
        Some(class) => Err(Failure::sandbox_text(&format!(
            "failed to get sandbox runtime: no runtime for {:?} is configured",
            class.handler
        ))),
    }
}
