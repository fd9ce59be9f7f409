//! Performs a plan's steps.

use controlplane_plan::step::{Note, PODS, Plan, Propagation, Resource, Step, Target};
use controlplane_plan::workloads::rollout::Failure;
use futures::{StreamExt, stream};
use http::Method;
use k8s_openapi::api::autoscaling::v1::Scale;
use tracing::{debug, info, warn};

use super::{Awaited, Context, Done, Next, StepCounts};
use crate::machinery::cache::Key;
use crate::machinery::request::{self, Error, Reply};

/// Steps of a stage that are sent concurrently.
const TOGETHER: usize = 128;

/// Performs stage after stage; after a stage with a failed step, at most the last stage follows.
pub(crate) async fn perform(context: &Context, component: &'static str, plan: Plan) -> Done {
    let mut done = idle();
    let (last, tolerant) = (plan.stages.len().saturating_sub(1), plan.tolerant);
    let mut failed = None;
    for (number, stage) in plan.stages.into_iter().enumerate() {
        if failed.is_some_and(|failed| number < last || tolerant.is_none_or(|tolerant| failed < tolerant)) {
            continue;
        }
        let requests = stage.into_iter().map(|step| perform_step(context, component, step));
        let results: Vec<Done> = stream::iter(requests).buffer_unordered(TOGETHER).collect().await;
        for result in results {
            done.awaited.extend(result.awaited);
            done.looked.extend(result.looked);
            done.measured.extend(result.measured);
            done.failure = done.failure.or(result.failure);
            done.retry |= result.retry;
            done.next = done.next.max(result.next);
            done.counts += result.counts;
        }
        if done.retry && failed.is_none() {
            failed = Some(number);
        }
    }
    done
}

async fn perform_step(context: &Context, component: &'static str, step: Step) -> Done {
    let note = |note: Option<Note>, name: &str| {
        context.recorder.note(component, note.map(|note| filled(note, name)));
    };
    match step {
        Step::Create {
            resource,
            namespace,
            body,
            outcome,
        } if !is_going(context, &namespace) => {
            match request::create(&context.client, &resource, &namespace, &body).await {
                Ok(reply) => {
                    info!(
                        component,
                        kind = resource.kind,
                        namespace,
                        name = reply.metadata.name,
                        "created"
                    );
                    note(outcome.done, &reply.metadata.name);
                    created(resource, &reply)
                }
                Err(error) => create_failed(context, component, resource, outcome.failed, &error),
            }
        }
        Step::Create { .. } => later(),
        Step::Patch {
            target,
            subresource,
            kind,
            body,
            outcome,
        } => match request::patch(&context.client, &target, subresource, kind, &body).await {
            Ok(reply) => {
                note(outcome.done, &target.name);
                seen(target.resource, &reply)
            }
            Err(error) => change_failed(context, component, &target, outcome.failed, &error),
        },
        Step::Delete {
            target,
            resource_version,
            propagation,
            grace_seconds,
            outcome,
        } => {
            let version = resource_version.as_deref();
            let propagation = propagation.map(Propagation::text);
            match request::delete(&context.client, &target, version, propagation, grace_seconds).await {
                Ok(_) => {
                    note(outcome.done, &target.name);
                    deleted(component, &target)
                }
                Err(error) => Done {
                    failure: refused_deletion(&target, outcome.failed.first(), &error),
                    ..change_failed(context, component, &target, outcome.failed, &error)
                },
            }
        }
        Step::Look(target) => look(context, target).await,
        Step::Measure(target) => measure(context, target).await,
        Step::Event(event) => {
            note(Some(event), "");
            idle()
        }
    }
}

/// Nothing changed, so the same state would lead to the same plan.
fn idle() -> Done {
    Done {
        next: Next::Idle,
        ..Done::default()
    }
}

/// The steps cannot be done in the current state, and no event may tell when they can.
fn later() -> Done {
    Done {
        next: Next::Later,
        ..Done::default()
    }
}

/// True if a namespace is known to be terminating: nothing can be created in it, and its content
/// will be deleted.
fn is_going(context: &Context, namespace: &str) -> bool {
    let found = context.caches.namespaces.get(&Key::new("", namespace));
    found.is_some_and(|found| found.metadata.deletion_timestamp.is_some())
}

fn filled(mut note: Note, text: &str) -> Note {
    note.message = note.message.replace("{}", text);
    note
}

fn created(resource: Resource, reply: &Reply) -> Done {
    Done {
        counts: StepCounts {
            created: 1,
            ..StepCounts::default()
        },
        ..seen(resource, reply)
    }
}

/// The cache must reach the revision in the answer.
fn seen(resource: Resource, reply: &Reply) -> Done {
    let awaited = reply.revision().map(|revision| Awaited::Revision(resource, revision));
    Done {
        awaited: awaited.into_iter().collect(),
        ..Done::default()
    }
}

/// The cache must show that the object is gone or being deleted.
fn deleted(component: &'static str, target: &Target) -> Done {
    info!(
        component,
        kind = target.resource.kind,
        target.namespace,
        target.name,
        "deleted"
    );
    Done {
        awaited: vec![gone(target)],
        counts: StepCounts {
            deleted: 1,
            ..StepCounts::default()
        },
        ..Done::default()
    }
}

fn gone(target: &Target) -> Awaited {
    let key = Key::new(&target.namespace, &target.name);
    Awaited::Deleted(target.resource, key, target.uid.clone())
}

/// Looks up whether exactly this object exists.
async fn look(context: &Context, target: Target) -> Done {
    match request::get::<Reply>(&context.client, &target.resource, &target.namespace, &target.name).await {
        Ok(reply) => {
            let exists = target.uid.is_empty() || reply.metadata.uid == target.uid;
            Done {
                looked: vec![(target, exists)],
                ..Done::default()
            }
        }
        Err(error) if error.is_absent(&target.name) => Done {
            looked: vec![(target, false)],
            ..Done::default()
        },
        Err(error) => {
            debug!(name = target.name, %error, "look failed");
            Done {
                retry: true,
                ..Done::default()
            }
        }
    }
}

/// Reads the size of exactly this object.
async fn measure(context: &Context, target: Target) -> Done {
    let path = request::path(&target.resource, &target.namespace, &target.name, "scale");
    let scale = request::send::<Scale>(&context.client, Method::GET, path, request::JSON, Vec::new()).await;
    let size = match scale {
        Ok(scale) if scale.metadata.uid.as_deref() == Some(&target.uid) => {
            Ok(scale.spec.and_then(|spec| spec.replicas).or(Some(0)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.code() == 404 => Ok(None),
        Err(Error::Refused(status)) => Err(status.message),
        Err(error @ Error::Unknown(_)) => {
            debug!(name = target.name, %error, "scale not read");
            return Done {
                retry: true,
                ..Done::default()
            };
        }
    };
    Done {
        measured: vec![(target, size)],
        ..Done::default()
    }
}

/// The request may have taken effect: a new list shows it.
fn unknown(context: &Context, resource: Resource) -> Done {
    let listed = context
        .caches
        .of(&resource)
        .map(|cache| Awaited::Listed(resource, cache.relist()));
    Done {
        awaited: listed.into_iter().collect(),
        retry: true,
        ..Done::default()
    }
}

fn create_failed(
    context: &Context,
    component: &'static str,
    resource: Resource,
    failed: Vec<Note>,
    error: &Error,
) -> Done {
    match error {
        Error::Unknown(_) => {
            debug!(component, kind = resource.kind, ?error, "creation went unanswered");
            unknown(context, resource)
        }
        // The server knows that the namespace is terminating before the cache does.
        Error::Refused(status) if is_terminating(status) => later(),
        Error::Refused(status) if status.reason == "AlreadyExists" => unknown(context, resource),
        Error::Refused(status) => {
            warn!(
                component,
                kind = resource.kind,
                message = status.message,
                "creation refused"
            );
            refused(context, component, failed, status);
            Done {
                failure: Some(failure(status, false)),
                retry: true,
                counts: StepCounts {
                    refused: 1,
                    ..StepCounts::default()
                },
                ..Done::default()
            }
        }
    }
}

/// Records the events of a refused step.
fn refused(context: &Context, component: &'static str, failed: Vec<Note>, status: &kube::core::Status) {
    for note in failed {
        context.recorder.note(component, Some(filled(note, &status.message)));
    }
}

fn failure(status: &kube::core::Status, deletion: bool) -> Failure {
    Failure {
        deletion,
        reason: status.reason.clone(),
        message: status.message.clone(),
    }
}

/// The failure to delete a pod, if its set reports that in a condition: other controllers go on
/// creating pods meanwhile.
fn refused_deletion(target: &Target, failed: Option<&Note>, error: &Error) -> Option<Failure> {
    let Error::Refused(status) = error else { return None };
    let owner = failed.and_then(|note| note.about.kind.as_deref());
    let reports = matches!(owner, Some("ReplicaSet" | "ReplicationController"));
    (reports && target.resource == PODS && !matches!(status.code, 404 | 409)).then(|| failure(status, true))
}

fn is_terminating(status: &kube::core::Status) -> bool {
    let causes = status
        .details
        .as_ref()
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// Handles a refused patch or deletion. A missing object counts as done, once the cache shows it; a
/// conflict needs a new plan, never the same request again.
fn change_failed(
    context: &Context,
    component: &'static str,
    target: &Target,
    failed: Vec<Note>,
    error: &Error,
) -> Done {
    match error.code() {
        404 => Done {
            awaited: vec![gone(target)],
            ..Done::default()
        },
        code if code == 409 || error.is_recreated() => Done {
            retry: true,
            ..Done::default()
        },
        0 => {
            debug!(component, name = target.name, ?error, "change went unanswered");
            unknown(context, target.resource)
        }
        _ => {
            warn!(component, kind = target.resource.kind, name = target.name, %error, "change refused");
            if let Error::Refused(status) = error {
                refused(context, component, failed, status);
            }
            Done {
                retry: true,
                ..Done::default()
            }
        }
    }
}
