//! Contract of the simulated runtime, in virtual time.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use runtime::{
    Behaviour, Class, Connected, ContainerSpec, Error, Event, Limits, PodId, Refusal, Runtime, SandboxSpec, Sim, State,
    User,
};

/// Receiver that reports an existing network.
fn connected() -> Connected {
    let (told, connected) = tokio::sync::oneshot::channel();
    told.send(()).unwrap();
    connected
}

fn sandbox() -> SandboxSpec {
    SandboxSpec {
        id: "s".to_owned(),
        pod: PodId {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
        },
        attempt: 0,
        hostname: "p".to_owned(),
        netns: None,
        share_process_namespace: false,
        host_pid: false,
        host_ipc: false,
        user_ids: None,
        se_linux_level: None,
        handler: String::new(),
        class: Class::default(),
        sysctls: Vec::new(),
        limits: Limits::default(),
    }
}

fn container(id: &str, image: &str) -> ContainerSpec {
    ContainerSpec {
        id: id.to_owned(),
        name: id.to_owned(),
        attempt: 0,
        image: image.to_owned(),
        image_id: "sha256:0".to_owned(),
        layers: Vec::new(),
        snapshot: None,
        spec: oci_spec::runtime::Spec::default(),
        stdin: runtime::Stdin::Closed,
        volumes: Vec::new(),
        user: User::default(),
        pid_of: None,
        log_path: "/sim/0.log".into(),
        annotations: BTreeMap::new(),
    }
}

async fn exit_code(events: &mut tokio::sync::broadcast::Receiver<Event>) -> i32 {
    match events.recv().await.unwrap() {
        Event::ContainerExited { exit, .. } => exit.code,
        other @ Event::SandboxLost { .. } => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn containers_live_and_end_as_scripted() {
    let sim = Sim::new();
    let mut events = sim.events();
    let day = Duration::from_hours(24);
    sim.behave(
        "job",
        Behaviour {
            runs_for: Some(day),
            exit_code: 3,
            ..Behaviour::default()
        },
    );
    sim.create_sandbox(sandbox(), connected()).await.unwrap();
    assert!(matches!(
        sim.create_sandbox(sandbox(), connected()).await,
        Err(Error::SandboxExists(_))
    ));
    sim.create_container("s", container("a", "job")).await.unwrap();
    let again = sim.create_container("s", container("a", "job")).await;
    assert!(matches!(again, Err(Error::Refused(Refusal::ContainerExists(_)))));
    let State::Running { started_at, .. } = sim.start_container("s", "a").await.unwrap().state else {
        panic!()
    };
    assert!(sim.start_container("s", "a").await.is_err());
    assert_eq!(exit_code(&mut events).await, 3);
    let State::Exited { exit, .. } = sim.sandboxes().await.unwrap()[0].containers[0].state.clone() else {
        panic!()
    };
    assert!(exit.finished_at.duration_since(started_at).unwrap() >= day);
    sim.create_container("s", container("b", "server")).await.unwrap();
    sim.start_container("s", "b").await.unwrap();
    let other_agent = sim.clone();
    other_agent.signal("s", "b", 15).await.unwrap();
    assert_eq!(exit_code(&mut events).await, 143);
    other_agent.remove_sandbox("s").await.unwrap();
    other_agent.remove_sandbox("s").await.unwrap();
    assert!(sim.sandboxes().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ignores_the_signal_is_killed() {
    let sim = Sim::new();
    let mut events = sim.events();
    sim.behave(
        "stubborn",
        Behaviour {
            stops_within: None,
            ..Behaviour::default()
        },
    );
    sim.create_sandbox(sandbox(), connected()).await.unwrap();
    sim.create_container("s", container("stubborn", "x")).await.unwrap();
    sim.start_container("s", "stubborn").await.unwrap();
    sim.signal("s", "stubborn", 15).await.unwrap();
    assert!(events.try_recv().is_err());
    sim.signal("s", "stubborn", 9).await.unwrap();
    assert_eq!(exit_code(&mut events).await, 137);
}
