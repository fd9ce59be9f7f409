//! An agent that dies at any moment leaves what the next one can adopt or remove.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::time::Duration;

use common::Machine;
use runtime::Runtime;

/// Drops the runtime, as a crash would, after so long, and opens it again on the same state.
async fn crash_within(machine: &mut Machine, after: Duration) {
    let work = async {
        machine.sandbox("s").await;
        machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
        machine.exec("s", "c", "sleep 1000", Duration::from_secs(100)).await;
    };
    tokio::time::timeout(after, work).await.unwrap_err();
    machine.crash().await;
    machine.reopen().await;
}

#[tokio::test]
async fn attack_25_an_agent_that_dies_at_any_moment_leaks_nothing() {
    let mut machine = Machine::new("attack-25").await;
    for step in 0..24_u64 {
        crash_within(&mut machine, Duration::from_micros(300 * step * step)).await;
        for sandbox in machine.runtime.sandboxes().await.unwrap() {
            assert_eq!(sandbox.id, "s");
        }
        machine.runtime.remove_sandbox("s").await.unwrap();
        assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
        let leaked: Vec<String> = machine.leaks().into_iter().filter(|leak| leak.contains("/s")).collect();
        assert!(!leaked.iter().any(|leak| leak.contains("process")), "{leaked:?}");
    }
    machine.finish().await;
}

#[tokio::test]
async fn attack_38_a_stopped_supervisor_is_killed_and_its_pod_removed() {
    let machine = Machine::new("attack-38").await;
    machine.sandbox("s").await;
    let pid = machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let supervisor: i32 = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(supervisor),
        nix::sys::signal::Signal::SIGSTOP,
    )
    .unwrap();
    machine.runtime.remove_sandbox("s").await.unwrap();
    assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
    machine.finish().await;
}
