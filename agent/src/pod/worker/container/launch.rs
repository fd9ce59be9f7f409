//! Creation and start of a container.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use runtime::{ContainerSpec, NotRun, Refusal};
use tokio::time::Instant;
use tracing::warn;

use super::plan::{Plan, Started};
use super::spec::specification;
use super::unstarted::{Failure, ended, not_executed, refused};
use crate::client::events::Kind;
use crate::pod::milestones::Step;
use crate::pod::worker::adopt;

/// Time after which a slow start no longer blocks starts of other pods.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(in crate::pod::worker) async fn run(plan: &Arc<Plan>, draft: Option<ContainerSpec>) -> Result<Started, Failure> {
    // Lock order: the creation lock before the permit.
    let _creation = plan.creation_lock.read().await;
    let (_permit, specification) = begin(plan, draft).await?;
    let id = specification.id.clone();
    let image_id = specification.image_id.clone();
    let parts = &plan.context.parts;
    let event = |reason: &'static str, message: &str| {
        plan.context.recorder.pod(
            &plan.pod,
            Some(&plan.container),
            Kind::Normal,
            reason,
            message.to_owned(),
        );
    };
    let mut identity = None;
    let created = || {
        event("Created", "Container created");
        plan.context.reached(pods::uid(&plan.pod), Step::Created);
        failpoint::reach("created");
        // Reads a file that was just written, and so is in the page cache.
        identity = parts.runtime.identity(&plan.sandbox, &id);
    };
    let started = counted(plan, specification, created).await;
    match started {
        Ok(container) => {
            event("Started", "Container started");
            plan.context.reached(pods::uid(&plan.pod), Step::Started);
            failpoint::reach("started");
            let instance = adopt::instance(&container, plan.context.now());
            Ok(Started {
                instance,
                sandbox: plan.sandbox.clone(),
                user: identity.map(adopt::user),
            })
        }
        Err(NotRun::Made(error @ runtime::Error::Refused(Refusal::Program(_)))) => {
            event("Created", "Container created");
            Err(not_executed(plan, id, image_id, &error))
        }
        Err(NotRun::Made(error)) => {
            // Creation and start were requested together.
            let ran = if error.is_loss() {
                ran_meanwhile(plan, &id, image_id).await
            } else {
                None
            };
            Err(ran.unwrap_or_else(|| refused(plan, &error)))
        }
        Err(NotRun::Started(error)) => {
            let failure = if error.is_loss() {
                lost(plan, &id, image_id, &error).await
            } else {
                not_executed(plan, id.clone(), image_id, &error)
            };
            let removed = parts.runtime.remove_container(&plan.sandbox, &id);
            if let Err(error) = plan.context.operations.of_runtime("remove_container", removed).await {
                warn!(
                    container = id,
                    error = image::chain(&error),
                    "a container that failed could not be removed"
                );
            }
            Err(failure)
        }
    }
}

/// Creates a container and starts its program, and counts how long each takes.
async fn counted(
    plan: &Plan,
    specification: ContainerSpec,
    created: impl FnOnce() + Send,
) -> Result<runtime::Container, NotRun> {
    let (runtime, operations) = (&plan.context.parts.runtime, &plan.context.operations);
    let (begun, mut made) = (Instant::now(), None);
    let noted = || {
        made = Some(Instant::now());
        created();
    };
    let run = runtime
        .run_container(&plan.sandbox, specification, Box::new(noted))
        .await;
    let (made, unmade) = (made.unwrap_or_else(Instant::now), matches!(run, Err(NotRun::Made(_))));
    operations.note("create_container", made.duration_since(begun), unmade);
    if !unmade {
        operations.note("start_container", made.elapsed(), run.is_err());
    }
    run
}

/// Returns the permit to create a container, and its configuration.
async fn begin(
    plan: &Arc<Plan>,
    draft: Option<ContainerSpec>,
) -> Result<(impl Sized + use<'_>, ContainerSpec), Failure> {
    let permit = plan.context.starts.acquire().await;
    if let Some(draft) = draft {
        return Ok((permit, draft));
    }
    let mut specified = Box::pin(specification(plan));
    if let Ok(specification) = tokio::time::timeout(TIMEOUT, &mut specified).await {
        return Ok((permit, specification?));
    }
    drop(permit);
    let specification = specified.await?;
    Ok((plan.context.starts.acquire().await, specification))
}

/// Failure for a start whose supervisor is gone. The instance is reported if it ran nevertheless.
async fn lost(plan: &Plan, id: &str, image_id: String, error: &runtime::Error) -> Failure {
    let ran = ran_meanwhile(plan, id, image_id).await;
    ran.unwrap_or_else(|| Failure {
        reason: "RunContainerError",
        message: image::chain(error),
        instance: None,
        lost: true,
    })
}

/// Returns the instance of a container whose start was not reported, if it ran.
async fn ran_meanwhile(plan: &Plan, id: &str, image_id: String) -> Option<Failure> {
    let started_at = ran(plan, id).await?;
    let exit = adopt::unknown(plan.context.now(), Some(started_at));
    let mut failure = ended(plan, id.to_owned(), image_id, exit);
    failure.lost = true;
    Some(failure)
}

/// Returns when the container was started, according to the runtime.
async fn ran(plan: &Plan, id: &str) -> Option<Timestamp> {
    let sandboxes = plan.context.parts.runtime.sandboxes().await.ok()?;
    let sandbox = sandboxes.into_iter().find(|known| known.id == plan.sandbox)?;
    let container = sandbox.containers.into_iter().find(|known| known.id == id)?;
    let started_at = match container.state {
        runtime::State::Created => None,
        runtime::State::Running { started_at, .. } => Some(started_at),
        runtime::State::Exited { started_at, .. } => started_at,
    };
    started_at.map(|time| Timestamp::try_from(time).unwrap_or_else(|_| plan.context.now()))
}
