//! Reasons that a container does not run, in the kubelet's words.

use agent_plan::pod::observed::{Exit, Instance, State};
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use runtime::Refusal;

use super::plan::Plan;

/// Reason that a container does not run.
pub(crate) struct Failure {
    pub(in crate::pod::worker) reason: &'static str,
    pub(in crate::pod::worker) message: String,
    /// Instance that was created nevertheless.
    pub(in crate::pod::worker) instance: Option<Box<Instance>>,
    /// True if not the container failed: its sandbox or its supervisor was lost.
    pub(in crate::pod::worker) lost: bool,
}

impl Failure {
    pub(super) fn configuration(message: String) -> Self {
        Self {
            reason: "CreateContainerConfigError",
            message,
            instance: None,
            lost: false,
        }
    }

    pub(in crate::pod::worker) fn creation(message: String) -> Self {
        Self {
            reason: "CreateContainerError",
            message,
            instance: None,
            lost: false,
        }
    }
}

/// Failure of a container whose program could not be executed: it counts as one that ran and
/// failed.
pub(super) fn not_executed(plan: &Plan, id: String, image_id: String, error: &runtime::Error) -> Failure {
    let message = if let runtime::Error::Refused(Refusal::Program(why)) = error {
        start_error(&plan.context.scheme(), why)
    } else {
        image::chain(error)
    };
    let exit = Exit {
        code: 128,
        reason: "StartError".to_owned(),
        message,
        started_at: None,
        finished_at: plan.context.now(),
    };
    ended(plan, id, image_id, exit)
}

/// Failure of an instance that ended before it was seen running.
pub(in crate::pod::worker) fn ended(plan: &Plan, id: String, image_id: String, exit: Exit) -> Failure {
    let wanted = pods::container(&plan.pod, &plan.container).and_then(|container| container.image.clone());
    let message = exit.message.clone();
    let instance = Instance {
        id,
        attempt: plan.attempt,
        image: wanted.unwrap_or_default(),
        image_id,
        state: State::Exited(exit),
        lost: false,
        reset: false,
    };
    Failure {
        reason: "RunContainerError",
        message,
        instance: Some(Box::new(instance)),
        lost: false,
    }
}

/// Returns a start error in the exact words of containerd and runc, which users and tools search
/// for; the embedded runtime is neither.
fn start_error(scheme: &str, why: &str) -> String {
    let (containerd, runc) = if scheme == "containerd" {
        (
            "containerd ",
            "failed to create shim task: OCI runtime create failed: runc create failed",
        )
    } else {
        ("", "OCI runtime create failed")
    };
    format!("failed to create {containerd}task: {runc}: unable to start container process: {why}: unknown")
}

pub(in crate::pod::worker) fn refused(plan: &Plan, error: &runtime::Error) -> Failure {
    let message = image::chain(error);
    if matches!(
        error,
        runtime::Error::RunsAsRoot | runtime::Error::Refused(Refusal::RunsAsRoot)
    ) {
        Failure::configuration(named(&message, &plan.pod, &plan.container))
    } else {
        Failure {
            lost: error.is_loss(),
            ..Failure::creation(message)
        }
    }
}

/// Formats a message with the container's name.
pub(in crate::pod::worker) fn named(what: &dyn std::fmt::Display, pod: &Pod, container: &str) -> String {
    let (name, namespace, uid) = (pods::name(pod), pods::namespace(pod), pods::uid(pod));
    format!("{what} (pod: \"{name}_{namespace}({uid})\", container: {container})")
}
