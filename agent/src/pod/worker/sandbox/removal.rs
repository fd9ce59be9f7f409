//! Removal of a pod's sandbox and all of its resources.

use crate::context::Context;
use crate::drivers::teardown;

/// Removes a sandbox and its network; continues after failures.
pub(in crate::pod::worker) async fn remove_sandbox(context: &Context, id: &str) -> Result<(), String> {
    remove_lost(context, id, std::future::ready(())).await
}

/// Removes a lost sandbox and its network, but keeps its record until `heard` resolves: another
/// agent would have no other source.
pub(super) async fn remove_lost(context: &Context, id: &str, heard: impl Future<Output = ()>) -> Result<(), String> {
    let ended = end_sandbox(context, id).await;
    let clear = async {
        heard.await;
        clear_sandbox(context, id).await
    };
    let (removed, detached) = tokio::join!(clear, detach(context, id));
    release(context, id, [ended, removed, detached])
}

/// Removes a sandbox, its network and its pod's files; continues after failures.
pub(crate) async fn remove(context: &Context, id: &str, uid: &str) -> Result<(), String> {
    let ended = end_sandbox(context, id).await;
    // All processes of the pod have ended, so the steps need no order.
    let (removed, detached, torn_down) =
        tokio::join!(clear_sandbox(context, id), detach(context, id), tear_down(context, uid));
    match (release(context, id, [ended, removed, detached]), torn_down) {
        (Ok(()), torn_down) => torn_down,
        (Err(failures), Ok(())) => Err(failures),
        (Err(failures), Err(failure)) => Err(format!("{failures}; {failure}")),
    }
}

async fn end_sandbox(context: &Context, id: &str) -> Result<(), String> {
    failpoint::reach("removing");
    let ended = context.parts.runtime.end_sandbox(id);
    let ended = context.operations.of_runtime("stop_podsandbox", ended).await;
    ended.map_err(|error| image::chain(&error))
}

async fn clear_sandbox(context: &Context, id: &str) -> Result<(), String> {
    let removed = context.parts.runtime.remove_sandbox(id);
    let removed = context.operations.of_runtime("remove_podsandbox", removed).await;
    failpoint::reach("sandbox removed");
    removed.map_err(|error| image::chain(&error))
}

async fn detach(context: &Context, id: &str) -> Result<(), String> {
    let detached = context.parts.network.detach(id).await;
    failpoint::reach("detached");
    detached.map_err(|error| image::chain(&error))
}

async fn tear_down(context: &Context, uid: &str) -> Result<(), String> {
    let (volumes, own) = (context.volumes.clone(), uid.to_owned());
    match common::task::spawn_blocking(move || volumes.tear_down(&own)).await {
        Ok(Ok(())) => {
            failpoint::reach("volumes removed");
            teardown::pod(context, uid).await
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Releases the sandbox's user namespace range and level if all of it is removed.
fn release(context: &Context, id: &str, steps: [Result<(), String>; 3]) -> Result<(), String> {
    let failures: Vec<String> = steps.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        context.users.release(id);
        context.se_linux.release(id);
        Ok(())
    } else {
        Err(failures.join("; "))
    }
}
