//! TTL of finished Jobs (`pkg/controller/ttlafterfinished/ttlafterfinished_controller.go`).

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;

use super::end_of;
use crate::objects::target;
use crate::step::{JOBS, Outcome, Plan, Propagation, Step};

/// Deletes the Job and its dependents once its TTL has passed.
pub fn plan(job: &Job, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let ttl = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished);
    let ended = end_of(job).and_then(|condition| condition.last_transition_time.as_ref());
    let (Some(ttl), Some(ended)) = (ttl.filter(|_| job.metadata.deletion_timestamp.is_none()), ended) else {
        return plan;
    };
    let ttl = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
    let passed = Duration::try_from(now.duration_since(ended.0)).unwrap_or_default();
    let left = ttl.saturating_sub(passed);
    if !left.is_zero() {
        plan.again(left);
        return plan;
    }
    plan.stage(vec![Step::Delete {
        target: target(JOBS, job),
        // Fails if the Job's TTL was extended meanwhile.
        resource_version: job.metadata.resource_version.clone(),
        propagation: Some(Propagation::Foreground),
        grace_seconds: None,
        outcome: Outcome::default(),
    }]);
    plan
}
