//! Replication controllers, the predecessors of `ReplicaSet`s, which are processed as such.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    self, ReplicationControllerCondition, ReplicationControllerSpec, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Deserialize;

use crate::objects::Object;

/// A replication controller converted to a `ReplicaSet`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "v1::ReplicationController")]
pub struct ReplicationController(pub ReplicaSet);

impl Object for ReplicationController {
    type Meta = ObjectMeta;

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }
}

impl From<v1::ReplicationController> for ReplicationController {
    fn from(whole: v1::ReplicationController) -> Self {
        Self(ReplicaSet {
            metadata: whole.metadata,
            spec: whole.spec.map(spec),
            status: whole.status.map(status),
        })
    }
}

fn spec(spec: ReplicationControllerSpec) -> ReplicaSetSpec {
    ReplicaSetSpec {
        min_ready_seconds: spec.min_ready_seconds,
        replicas: spec.replicas,
        selector: LabelSelector {
            match_labels: spec.selector,
            match_expressions: None,
        },
        template: spec.template,
    }
}

fn status(status: ReplicationControllerStatus) -> ReplicaSetStatus {
    ReplicaSetStatus {
        available_replicas: status.available_replicas,
        conditions: status
            .conditions
            .map(|conditions| conditions.into_iter().map(condition).collect()),
        fully_labeled_replicas: status.fully_labeled_replicas,
        observed_generation: status.observed_generation,
        ready_replicas: status.ready_replicas,
        replicas: status.replicas,
        terminating_replicas: None,
    }
}

fn condition(condition: ReplicationControllerCondition) -> ReplicaSetCondition {
    ReplicaSetCondition {
        last_transition_time: condition.last_transition_time,
        message: condition.message,
        reason: condition.reason,
        status: condition.status,
        type_: condition.type_,
    }
}
