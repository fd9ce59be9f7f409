//! Pods from a template: common code of all controllers that create and delete pods
//! (`pkg/controller/controller_utils.go`).

use k8s_openapi::api::core::v1::{Pod as Whole, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::objects::{controlled_by, target};
use crate::pod::Pod;
use crate::step::{Outcome, PODS, Severity, Step, Target};

/// A pod from the template with `owner` as controller and a generated name: the owner's plus five
/// random letters.
pub fn pod(owner: &Target, template: &PodTemplateSpec) -> Whole {
    let metadata = template.metadata.clone().unwrap_or_default();
    Whole {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name)),
            namespace: Some(owner.namespace.clone()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: Some(vec![controlled_by(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creates a pod, and records an event for the result on its owner.
pub fn create(owner: &Target, pod: &Whole) -> Step {
    Step::Create {
        resource: PODS,
        namespace: owner.namespace.clone(),
        body: Box::new(json!(pod)),
        outcome: Outcome {
            done: Some(owner.note(Severity::Normal, "SuccessfulCreate", "Created pod: {}")),
            failed: vec![owner.note(Severity::Warning, "FailedCreate", "Error creating: {}")],
        },
    }
}

/// Deletes a pod, and records an event for the result on its owner.
pub fn delete(owner: &Target, pod: &Pod) -> Step {
    target(PODS, pod).delete().with(Outcome {
        done: Some(owner.note(Severity::Normal, "SuccessfulDelete", "Deleted pod: {}")),
        failed: vec![owner.note(Severity::Warning, "FailedDelete", "Error deleting: {}")],
    })
}
