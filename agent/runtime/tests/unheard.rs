//! Starts whose outcome is not reported: the shim, or everything else, dies during them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Daemon, Kind, Machine, connected, eventually, open};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime::{SandboxSpec, State};
use tokio::time::Instant;

/// Returns whether an exited container has run.
async fn has_run(machine: &Machine, id: &str) -> bool {
    let begun = Instant::now();
    loop {
        let containers = machine.runtime.sandboxes().await.unwrap().remove(0).containers;
        let found = containers.into_iter().find(|known| known.id == id).unwrap();
        if let State::Exited { started_at, .. } = found.state {
            return started_at.is_some();
        }
        assert!(begun.elapsed() < Duration::from_mins(1), "{found:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_container_that_ends_its_own_shim_has_run() {
    let machine = Machine::of(Kind::Containerd, "own-shim").await;
    let spec = SandboxSpec {
        host_pid: true,
        ..Machine::sandbox_spec("s")
    };
    machine.runtime.create_sandbox(spec, connected()).await.unwrap();
    for id in ["first", "second", "third"] {
        let wanted = machine.shell(id, "kill -9 $PPID; sleep 1000");
        machine.runtime.create_container("s", wanted).await.unwrap();
        // Its answer may be faster.
        drop(machine.runtime.start_container("s", id).await);
        assert!(has_run(&machine, id).await, "{id}");
    }
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

/// Stops a process, and waits until it has: on a busy machine its other threads run on meanwhile.
async fn stop(process: i32) {
    kill(Pid::from_raw(process), Signal::SIGSTOP).unwrap();
    let has_stopped = || {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        let mut states = threads.map(|thread| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
        states.all(|state| state.is_empty() || state.contains(") T "))
    };
    eventually("it is stopped", has_stopped).await;
}

/// Ends the agent once its record of a start is on the disk; the order does not reach containerd,
/// which ends as well.
async fn end_all_before_a_start(machine: &mut Machine, id: &str) {
    machine.sandbox("s").await;
    let wanted = machine.container(id, &["/bin/sleep", "1000"]);
    machine.runtime.create_container("s", wanted).await.unwrap();
    stop(machine.daemon.as_ref().unwrap().pid()).await;
    let record = machine.directory.path().join("state/sandboxes/s/sandbox.json");
    let noted =
        || std::fs::read_to_string(&record).is_ok_and(|record| record.contains(&format!(r#""starting":["{id}"]"#)));
    tokio::select! {
        told = machine.runtime.start_container("s", id) => panic!("{told:?}"),
        () = eventually("it is on disk", noted) => {}
    }
    machine.crash().await;
    let daemon = machine.daemon.as_mut().unwrap();
    daemon.kill();
    daemon.resume().await;
}

async fn next_agent(machine: &mut Machine) {
    machine.runtime = open(Kind::Containerd, machine.directory.path(), &machine.cgroup_root).await;
}

#[tokio::test]
async fn a_container_whose_start_comes_through_when_its_agent_and_containerd_have_ended_has_run() {
    let mut machine = Machine::of(Kind::Containerd, "under-way").await;
    end_all_before_a_start(&mut machine, "c").await;
    // As its shim would, whose call from containerd was under way.
    let root = Path::new("/run/containerd/runc").join(Daemon::namespace(&machine.directory.path().join("containerd")));
    let runc = Command::new("runc")
        .arg("--root")
        .arg(root)
        .args(["start", "c"])
        .status();
    assert!(runc.unwrap().success());
    next_agent(&mut machine).await;
    assert!(has_run(&machine, "c").await);
    machine.finish().await;
}

#[tokio::test]
async fn a_container_whose_start_was_not_told_to_its_shim_has_not_run() {
    let mut machine = Machine::of(Kind::Containerd, "not-told").await;
    end_all_before_a_start(&mut machine, "c").await;
    next_agent(&mut machine).await;
    assert!(!has_run(&machine, "c").await);
    machine.finish().await;
}

/// Shims of the test's containerd.
fn shims(machine: &Machine) -> Vec<Pid> {
    let namespace = Daemon::namespace(&machine.directory.path().join("containerd"));
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of_namespace = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words
            .next()
            .is_some_and(|word| word.ends_with(b"containerd-shim-runc-v2"))
            && words.any(|word| word == namespace.as_bytes())
    });
    let pids = of_namespace.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw).collect()
}

#[tokio::test]
async fn a_container_that_ends_with_its_shim_while_its_start_is_not_told_has_not_run() {
    let mut machine = Machine::of(Kind::Containerd, "all-gone").await;
    machine.sandbox("s").await;
    let wanted = machine.container("c", &["/bin/sleep", "1000"]);
    machine.runtime.create_container("s", wanted).await.unwrap();
    let record = machine.directory.path().join("state/sandboxes/s/sandbox.json");
    let found = shims(&machine);
    assert!(!found.is_empty());
    let Machine { runtime, daemon, .. } = &mut machine;
    let daemon = daemon.as_mut().unwrap();
    stop(daemon.pid()).await;
    let noted = || std::fs::read_to_string(&record).is_ok_and(|record| record.contains(r#""starting":["c"]"#));
    let ending = async {
        eventually("it is on disk", noted).await;
        for shim in found {
            kill(shim, Signal::SIGKILL).unwrap();
        }
        daemon.kill();
        daemon.resume().await;
    };
    let (started, ()) = tokio::join!(runtime.start_container("s", "c"), ending);
    started.unwrap_err();
    assert!(!has_run(&machine, "c").await);
    machine.finish().await;
}
