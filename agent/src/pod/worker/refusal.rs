//! Pods that the node rejects.

use std::sync::Arc;

use agent_plan::pod::pods;
use agent_plan::pod::termination::Rejection;
use k8s_openapi::api::core::v1::Pod;
use tracing::warn;

use crate::client::events::Kind;
use crate::context::Context;
use crate::pod::crashes::End;

/// Reports why a pod is rejected, and records it for the time after the pod.
pub(super) fn tell(context: &Arc<Context>, pod: &Arc<Pod>, rejection: &Rejection) {
    warn!(
        pod = pods::name(pod),
        reason = %rejection.reason,
        message = rejection.message,
        "refused"
    );
    let message = rejection.message.trim_start_matches("Pod was rejected: ");
    let (reason, recorder) = (rejection.reason.clone(), &context.recorder);
    recorder.pod(pod, None, Kind::Warning, reason, message.to_owned());
    context.started.rejected(rejection);
    context.discount(pods::uid(pod));
    let end = End::refused(&rejection.reason, message, context.now());
    let (context, pod) = (Arc::clone(context), Arc::clone(pod));
    // Not awaited, and failures are logged here.
    drop(common::task::spawn_blocking(move || {
        if let Err(error) = context.crashes.add(&pod, "", end) {
            warn!(%error, "a refusal could not be remembered");
        }
    }));
}
