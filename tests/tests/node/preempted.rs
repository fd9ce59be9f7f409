//! Pods that end so that a critical one has room.

use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{ContainerState, Node, Pod, PodStatus};
use kube::Api;
use kube::api::DeleteParams;
use runtime::Behaviour;

use super::{World, is_ready};

fn quarters(of: i64, count: i64) -> String {
    format!("{}m", of * count)
}

fn status(pod: &Pod) -> &PodStatus {
    pod.status.as_ref().unwrap()
}

fn state(pod: &Pod) -> ContainerState {
    let statuses = status(pod).container_statuses.as_ref().unwrap();
    statuses[0].state.clone().unwrap()
}

fn began(pod: &Pod) -> Timestamp {
    state(pod).running.unwrap().started_at.unwrap().0
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_gets_the_room_of_as_few_others_as_possible() {
    let world = World::start().await;
    let slow = Behaviour {
        stops_within: Some(Duration::from_secs(5)),
        ..Behaviour::default()
    };
    world.runtime.behave("slow", slow);
    let node = Api::<Node>::all(world.admin()).get("n1").await.unwrap();
    let cpu = node.status.unwrap().allocatable.unwrap()["cpu"].0.clone();
    let whole = cpu
        .strip_suffix('m')
        .map_or_else(|| cpu.parse::<i64>().unwrap() * 1000, |milli| milli.parse().unwrap());
    let quarter = whole / 4;
    let run = async |name: &str, container: &str, count: i64, more: &str| {
        let requests = format!(r#"{{"cpu":"{}"}}"#, quarters(quarter, count));
        let resources = format!(r#"{{"requests":{requests}}}"#);
        let containers = format!(r#"[{{"name":"{container}","image":"i","resources":{resources}}}]"#);
        world
            .create(name, &format!(r#"{{{more}"containers":{containers}}}"#))
            .await;
    };
    run("small", "a", 1, "").await;
    run("large", "slow", 2, "").await;
    run("other", "a", 1, "").await;
    for name in ["small", "large", "other"] {
        world.until(name, is_ready).await;
    }
    let critical = r#""priorityClassName":"system-node-critical","#;
    run("vital", "a", 2, critical).await;
    let vital = world.until("vital", is_ready).await;
    let large = world.until("large", |pod| pods::terminal_phase(pod).is_some()).await;
    let ended = state(&large).terminated.unwrap().finished_at.unwrap().0;
    assert!(began(&vital) >= ended, "{} {ended}", began(&vital));
    let told = status(&large);
    let message = "Preempted in order to admit critical pod";
    assert_eq!(
        (told.phase.as_deref(), told.reason.as_deref(), told.message.as_deref()),
        (Some("Failed"), Some("Preempting"), Some(message))
    );
    let conditions = told.conditions.iter().flatten();
    let disruption: Vec<_> = conditions.filter(|own| own.type_ == "DisruptionTarget").collect();
    assert_eq!(disruption.len(), 1);
    assert_eq!(
        (
            disruption[0].status.as_str(),
            disruption[0].reason.as_deref(),
            disruption[0].message.as_deref()
        ),
        (
            "True",
            Some("TerminationByKubelet"),
            Some("Pod was preempted by Kubelet to accommodate a critical pod.")
        )
    );
    let events = world.events("large").await;
    assert!(events.contains(&format!("Preempting: {message}")), "{events:?}");

    // No pod is preempted if that would not free enough.
    run("hungry", "a", 3, critical).await;
    let hungry = world.until("hungry", |pod| pods::terminal_phase(pod).is_some()).await;
    let told = status(&hungry);
    assert_eq!(told.reason.as_deref(), Some("UnexpectedAdmissionError"));
    let wanted = format!(
        "Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
         pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: {quarter}), ]"
    );
    assert_eq!(told.message.as_deref(), Some(wanted.as_str()));
    for name in ["small", "other", "vital"] {
        assert!(is_ready(&world.until(name, |_| true).await), "{name}");
    }
}

/// A node whose one pod takes all of it and does not end for long; what takes all of it, too, with this grace period.
async fn full(grace: i64) -> (World, impl Fn(&str, &str) -> String) {
    let world = World::start().await;
    let stuck = Behaviour {
        create_takes: Duration::from_secs(100),
        ..Behaviour::default()
    };
    world.runtime.behave("stuck", stuck);
    let node = Api::<Node>::all(world.admin()).get("n1").await.unwrap();
    let cpu = node.status.unwrap().allocatable.unwrap()["cpu"].0.clone();
    let resources = format!(r#""resources":{{"requests":{{"cpu":"{cpu}"}}}}"#);
    let spec = move |container: &str, more: &str| {
        format!(
            r#"{{"terminationGracePeriodSeconds":{grace},{more}"containers":[{{"name":"{container}","image":"i",{resources}}}]}}"#
        )
    };
    world.create("stuck", &spec("stuck", "")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    (world, spec)
}

/// An event reports a pod that exceeds its grace period, and it does not block preemption any
/// longer.
#[tokio::test(start_paused = true)]
async fn a_critical_pod_does_not_wait_for_ever() {
    let (world, spec) = full(10).await;
    let begun = tokio::time::Instant::now();
    world
        .create("vital", &spec("a", r#""priorityClassName":"system-node-critical","#))
        .await;
    world.until("vital", is_ready).await;
    assert_eq!(begun.elapsed().as_secs(), 15, "its grace period and half of it");
    let wanted =
        "ExceededGracePeriod: Container runtime did not kill the pod within specified grace period.".to_owned();
    let events = world.events("stuck").await;
    assert!(events.contains(&wanted), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_that_waits_for_room_can_be_deleted() {
    let (world, spec) = full(3600).await;
    let begun = tokio::time::Instant::now();
    world
        .create("vital", &spec("a", r#""priorityClassName":"system-node-critical","#))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.pods().delete("vital", &DeleteParams::default()).await.unwrap();
    world.gone("vital").await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
