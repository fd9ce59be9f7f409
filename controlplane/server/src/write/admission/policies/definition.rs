//! Policies and bindings as they are stored.

use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, MatchCondition, MatchResources, Mutation, ParamKind, ParamRef, Validation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// A policy as it is stored. Those that validate have no mutations, those that mutate no validations.
#[derive(Default, Deserialize)]
pub(super) struct Definition {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Spec,
    #[serde(default)]
    pub(super) status: Status,
}

/// Status of a policy.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    pub(super) observed_generation: Option<i64>,
}

/// Spec of a policy.
#[derive(Clone, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) param_kind: Option<ParamKind>,
    pub(super) match_constraints: Option<MatchResources>,
    pub(super) match_conditions: Option<Vec<MatchCondition>>,
    pub(super) variables: Option<Vec<Variable>>,
    pub(super) validations: Option<Vec<Validation>>,
    pub(super) audit_annotations: Option<Vec<AuditAnnotation>>,
    pub(super) mutations: Option<Vec<Mutation>>,
    pub(super) failure_policy: Option<String>,
    pub(super) reinvocation_policy: Option<String>,
}

/// A binding as it is stored.
#[derive(Deserialize)]
pub(super) struct Bound {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: BoundSpec,
}

/// Spec of a binding.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BoundSpec {
    pub(super) policy_name: String,
    #[serde(default)]
    pub(super) param_ref: Option<ParamRef>,
    #[serde(default)]
    pub(super) match_resources: Option<MatchResources>,
    #[serde(default)]
    pub(super) validation_actions: Option<Vec<String>>,
}
