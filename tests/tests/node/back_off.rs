//! Containers that end again and again.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use runtime::Behaviour;

use super::{World, restarts};

#[tokio::test(start_paused = true)]
async fn a_crashing_container_backs_off() {
    let world = World::start().await;
    let crash = Behaviour {
        runs_for: Some(Duration::ZERO),
        exit_code: 3,
        ..Behaviour::default()
    };
    world.runtime.behave("crash", crash);
    world
        .create("web", r#"{"containers":[{"name":"crash","image":"i"}]}"#)
        .await;
    let pod = world.until("web", |pod| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        let mut reasons = statuses.filter_map(|status| status.state.as_ref()?.waiting.as_ref()?.reason.clone());
        reasons.any(|reason| reason == "CrashLoopBackOff")
    });
    let pod = pod.await;
    assert_eq!(restarts(&pod), 1, "the first restart is at once, the second waits");
    tokio::time::sleep(Duration::from_secs(100)).await;
    let pod = world.until("web", |_| true).await;
    assert_eq!(restarts(&pod), 4, "after 10, 30 and 70 seconds");
}

#[tokio::test(start_paused = true)]
async fn another_image_begins_anew() {
    let world = World::start().await;
    let fails = Behaviour {
        runs_for: Some(Duration::from_secs(1)),
        exit_code: 1,
        ..Behaviour::default()
    };
    world.runtime.behave("a", fails);
    world.create("p", super::PLAIN).await;
    // Restarts at once, then after 10, 20 and 40 seconds; the next one would be after 80.
    tokio::time::sleep(Duration::from_secs(90)).await;
    world.until("p", |pod| restarts(pod) == 4).await;
    let change = serde_json::json!({"spec": {"containers": [{"name": "a", "image": "nginx:2"}]}});
    let pods = world.pods();
    let (how, change) = (PatchParams::default(), Patch::Strategic(change));
    let changed: Pod = pods.patch("p", &how, &change).await.unwrap();
    assert_eq!(changed.metadata.generation, Some(2));
    world.until("p", |pod| restarts(pod) == 5).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(restarts(&pods.get("p").await.unwrap()), 5, "it backs off");
    world.until("p", |pod| restarts(pod) == 6).await;
}
