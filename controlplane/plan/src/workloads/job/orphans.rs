//! Pods with the tracking finalizer that no Job will count: their Job is gone or finished
//! (`syncOrphanPod` of `pkg/controller/job/job_controller.go`).

use k8s_openapi::api::batch::v1::Job;

use super::manage::untrack;
use super::{is_external, is_finished, is_tracked};
use crate::objects::{Meta as _, controller_of, uid};
use crate::pod::Pod;
use crate::step::{JOBS, Plan};

/// Removes the finalizer of such a pod. `job` is the Job by the name of the pod's controller, if it
/// exists.
pub fn plan(pod: &Pod, job: Option<&Job>) -> Plan {
    let mut plan = Plan::default();
    if is_tracked(pod) && is_orphan(pod, job) {
        plan.stage(vec![untrack(pod, false)]);
    }
    plan
}

fn is_orphan(pod: &Pod, job: Option<&Job>) -> bool {
    let Some(owner) = controller_of(&pod.metadata) else {
        return true;
    };
    if owner.kind != JOBS.kind || owner.api_version != JOBS.api_version() {
        return false;
    }
    match job.filter(|job| uid(*job) == owner.uid) {
        Some(job) => is_finished(job) && !job.spec.as_ref().is_some_and(is_external),
        // The cache may show a new Job after its pods.
        None => pod.metadata.is_deleting(),
    }
}
