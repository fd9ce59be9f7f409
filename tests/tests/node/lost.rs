//! Sandboxes that are lost.

use std::time::Duration;

use kube::api::DeleteParams;
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
    // What fails is tried again.
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
    // It is done before the pod is over.
    world.network.fail_detach(6);
    lose(&world).await;
    world.until("web", |pod| restarts(pod) == 3).await;
    world.pods().delete("web", &DeleteParams::default()).await.unwrap();
    world.gone("web").await;
    assert_eq!(attachments(&world).await, 0);
}
