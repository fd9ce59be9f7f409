//! Pods with a Job's finalizer whose Job will not count them any more: it is gone, or has come to
//! its end (`syncOrphanPod` of `pkg/controller/job/job_controller.go`).

use k8s_openapi::api::batch::v1::Job;

use super::{is_external, is_finished, is_tracked, manage::untrack};
use crate::{
    objects::{Meta as _, controller_of, uid},
    pod::Pod,
    step::{JOBS, Plan},
};

/// Lets such a pod go. `job` is the Job by the name of the pod's controller, if there is one.
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
        // A Job that was just made may be known later than its pods.
        None => pod.metadata.is_deleting(),
    }
}
