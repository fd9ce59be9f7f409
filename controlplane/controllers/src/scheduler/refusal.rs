//! Unschedulable pods: events, status, and preemption.

use std::sync::Arc;

use controlplane_plan::objects::{Meta as _, seconds, target, uid};
use controlplane_plan::placement::{Claims, Displacement, Preemption, SchedulerCache, Unplaceable};
use controlplane_plan::pod::Pod;
use controlplane_plan::step::{Note, PODS, PatchKind, Severity};
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tracing::{debug, info};

use super::Bound;
use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::events::SCHEDULER;
use crate::machinery::request;

/// Nominated node to set in a pod's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nominated<'a> {
    /// Keep the current one.
    AsBefore,
    /// Clear it.
    None,
    /// Set this node.
    Node(&'a str),
}

impl<'a> Nominated<'a> {
    /// Returns the change after an attempt; the cache may not show an earlier nomination yet.
    pub(super) fn after(pod: &Pod, displacement: Option<&'a Displacement>, why: &Unplaceable, promised: bool) -> Self {
        let before = promised || pod.status.nominated.is_some();
        match displacement {
            Some(displacement) => Self::Node(&displacement.node),
            None if before && why.preemption == Preemption::Vain => Self::None,
            None => Self::AsBefore,
        }
    }
}

/// An event about a pod.
pub(super) fn note(pod: &Pod, severity: Severity, reason: &'static str, message: String) -> Note {
    let mut about = target(PODS, pod).reference();
    about.resource_version = pod.metadata.resource_version();
    Note {
        about,
        severity,
        reason,
        message,
    }
}

/// Runs preemption for an unschedulable pod and nominates the node; records the result in `why`.
pub(super) fn make_room(
    context: &Context,
    cache: &mut SchedulerCache,
    pod: &Arc<Pod>,
    claims: &Claims,
    why: &mut Unplaceable,
) -> Option<Displacement> {
    if why.is_resolvable() && cache.awaits(pod, claims) {
        why.preemption = Preemption::Awaited;
        return None;
    }
    let found = if why.is_resolvable() {
        cache.displace(pod, claims, &context.caches.budgets.all(), why)
    } else {
        None
    };
    let Some(displacement) = found else {
        // The pod no longer holds that room.
        cache.disappoint(uid(&**pod));
        return None;
    };
    cache.promise(pod, &displacement);
    why.preemption = Preemption::Begun;
    Some(displacement)
}

/// Reports why a pod is unschedulable, in an event and in its status.
pub(super) fn refuse(
    context: &Context,
    pod: &Pod,
    why: &Unplaceable,
    nominated: Nominated<'_>,
) -> Option<BoxFuture<'static, Option<Bound>>> {
    let message = why.to_string();
    info!(pod = %Key::of(&pod.metadata), message, "unschedulable");
    context.recorder.note(
        SCHEDULER,
        Some(note(pod, Severity::Warning, "FailedScheduling", message.clone())),
    );
    report(context, pod, "Unschedulable", &message, nominated)
}

/// True if the condition `PodScheduled` already has this reason and message for the pod's current
/// generation.
pub(super) fn says(pod: &Pod, reason: &str, message: &str) -> bool {
    pod.status.unscheduled.as_deref().is_some_and(|old| {
        old.reason.as_deref() == Some(reason)
            && old.message.as_deref() == Some(message)
            && old.generation == pod.metadata.generation
    })
}

/// The condition `PodScheduled` of an unschedulable pod. Its transition time changes only with its
/// status.
pub(super) fn condition(pod: &Pod, reason: &str, message: &str, now: Time) -> Value {
    let old = pod.status.unscheduled.as_deref().filter(|old| old.denied);
    let since = old.and_then(|old| old.since).map_or(now, Time);
    json!({
        "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
        "lastProbeTime": null, "lastTransitionTime": since,
        "observedGeneration": pod.metadata.observed(),
    })
}

/// Writes the condition `PodScheduled`, unless it is unchanged, and the nominated node.
pub(super) fn report(
    context: &Context,
    pod: &Pod,
    reason: &str,
    message: &str,
    nominated: Nominated<'_>,
) -> Option<BoxFuture<'static, Option<Bound>>> {
    if nominated == Nominated::AsBefore && says(pod, reason, message) {
        return None;
    }
    let condition = condition(pod, reason, message, seconds((context.clock)()));
    let mut status = json!({ "conditions": [condition] });
    let node = match nominated {
        Nominated::AsBefore => None,
        Nominated::None => Some(Value::Null),
        Nominated::Node(node) => Some(node.into()),
    };
    if let (Some(node), Some(status)) = (node, status.as_object_mut()) {
        status.insert("nominatedNodeName".to_owned(), node);
    }
    let body = json!({ "metadata": { "uid": uid(pod) }, "status": status });
    let (client, target) = (context.client.clone(), target(PODS, pod));
    Some(Box::pin(async move {
        if let Err(error) = request::patch(&client, &target, Some("status"), PatchKind::Strategic, &body).await {
            debug!(pod = target.name, %error, "condition not written");
        }
        None
    }))
}
