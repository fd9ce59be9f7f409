//! Sandboxes that are lost.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use network::Network;
use runtime::Runtime;

use super::{PLAIN, World, container_id, is_ready, restarts};

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_made_again() {
    let world = World::start().await;
    world.create("web", PLAIN).await;
    let before = world.until("web", is_ready).await;
    let sandbox = world.runtime.sandboxes().await.unwrap().remove(0);
    world.runtime.lose(&sandbox.id);
    let after = world.until("web", |pod| restarts(pod) == 1 && is_ready(pod)).await;
    assert_ne!(container_id(&before), container_id(&after));
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_lost_sandbox_stays() {
    let mut world = World::start().await;
    world.create("web", PLAIN).await;
    world.until("web", is_ready).await;
    let lose = async |world: &World| {
        let sandbox = world.runtime.sandboxes().await.unwrap().remove(0);
        world.runtime.lose(&sandbox.id);
    };
    let attachments = async |world: &World| {
        tokio::time::sleep(Duration::from_mins(5)).await;
        world.network.attachments().await.unwrap().len()
    };
    // Failures are retried.
    world.network.fail_detach(3);
    lose(&world).await;
    world.until("web", |pod| restarts(pod) == 1 && is_ready(pod)).await;
    assert_eq!(attachments(&world).await, 1);
    // The next agent does what this one could not.
    world.network.fail_detach(u32::MAX);
    lose(&world).await;
    world.until("web", |pod| restarts(pod) == 2 && is_ready(pod)).await;
    world.stop_agent().await;
    assert_eq!(attachments(&world).await, 2);
    world.network.fail_detach(0);
    world.start_agent().await;
    assert_eq!(attachments(&world).await, 1);
    world.until("web", |pod| restarts(pod) == 2 && is_ready(pod)).await;
    // The detach succeeds before the pod has ended.
    world.network.fail_detach(6);
    lose(&world).await;
    world.until("web", |pod| restarts(pod) == 3).await;
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.gone("web").await;
    assert_eq!(attachments(&world).await, 0);
}

/// The state of the container that was added.
fn added(pod: &Pod) -> ContainerState {
    let status = pod.status.as_ref().unwrap();
    let added = status.ephemeral_container_statuses.iter().flatten().next();
    added.and_then(|added| added.state.clone()).unwrap_or_default()
}

/// Number of its runs.
async fn runs(world: &World) -> usize {
    let sandboxes = world.runtime.sandboxes().await.unwrap();
    let all = sandboxes.iter().flat_map(|sandbox| &sandbox.containers);
    all.filter(|container| container.name == "dbg").count()
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_added_is_never_run_again() {
    let mut world = World::start().await;
    world.create("web", PLAIN).await;
    world.until("web", is_ready).await;
    let patch = serde_json::json!({"spec": {"ephemeralContainers": [{"name": "dbg", "image": "dbg"}]}});
    let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let pods = world.pods();
    pods.patch_subresource("ephemeralcontainers", "web", &parameters, &patch)
        .await
        .unwrap();
    world.until("web", |pod| added(pod).running.is_some()).await;
    // The node goes down under it, and again when it has ended.
    for restart in 1..3 {
        world.stop_agent().await;
        let sandbox = world.runtime.sandboxes().await.unwrap().remove(0);
        world.runtime.lose(&sandbox.id);
        world.start_agent().await;
        let pod = world
            .until("web", |pod| restarts(pod) == restart && is_ready(pod))
            .await;
        let ended = added(&pod).terminated.unwrap();
        assert_eq!(ended.reason.as_deref(), Some("ContainerStatusUnknown"));
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(runs(&world).await, 0);
    }
}
