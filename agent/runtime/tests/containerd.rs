//! Tests of containerd's restarts and failures, and of other clients in its namespace.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use common::holders::parent;
use common::{Daemon, Kind, Machine, connected, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime::{Event, SandboxSpec, State};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

async fn machine(name: &str) -> Machine {
    Machine::of(Kind::Containerd, name).await
}

/// True if all threads of a process are stopped, which they are a while after the signal.
fn is_stopped(process: Pid) -> bool {
    let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.all(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        status.is_ok_and(|status| status.contains("State:\tT"))
    })
}

#[tokio::test]
async fn attack_37_ends_while_containerd_is_away_are_told_when_it_is_back_and_no_log_is_lost() {
    let mut machine = machine("away").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("stays", &SLEEP)).await;
    let script = "trap 'echo after; exit 4' TERM; echo before; while :; do sleep 0.01; done";
    let pid = machine.run("s", machine.shell("ends", script)).await;
    eventually("the script runs", || machine.output("ends").contains("before")).await;
    machine.runtime.answers().await.unwrap();
    machine.daemon.as_mut().unwrap().kill();
    machine.runtime.answers().await.unwrap_err();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    eventually("the log goes on", || machine.output("ends").contains("after")).await;
    machine.runtime.signal("s", "stays", 9).await.unwrap_err();
    machine.daemon.as_mut().unwrap().resume().await;
    machine.runtime.answers().await.unwrap();
    let exit = machine.exit().await;
    assert_eq!((exit.code, exit.signal), (4, None));
    machine.runtime.signal("s", "stays", 9).await.unwrap();
    assert_eq!(machine.exit().await.code, 137);
    machine.run("s", machine.shell("new", "exit 5")).await;
    assert_eq!(machine.exit().await.code, 5);
    machine.finish().await;
}

/// The container for which the shim was started is gone, as after restarts.
#[tokio::test]
async fn attack_25_an_end_that_only_its_shim_knows_is_told_to_the_next_agent() {
    let mut machine = machine("unread").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("first", &SLEEP)).await;
    let script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done";
    let pid = machine.run("s", machine.shell("second", script)).await;
    eventually("the script runs", || machine.output("second").contains("up")).await;
    machine.runtime.remove_container("s", "first").await.unwrap();
    machine.crash().await;
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    eventually("it is gone", || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
    machine.reopen().await;
    let sandbox = machine.runtime.sandboxes().await.unwrap().remove(0);
    let told = match &sandbox.containers[0].state {
        State::Exited { exit, .. } => exit.code,
        State::Created | State::Running { .. } => machine.exit().await.code,
    };
    assert_eq!(told, 7);
    machine.finish().await;
}

#[tokio::test]
async fn attack_37_a_containerd_that_hangs_fails_calls_in_time_and_others_go_on() {
    let mut machine = machine("hangs").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &SLEEP)).await;
    let daemon = Pid::from_raw(machine.daemon.as_ref().unwrap().pid());
    kill(daemon, Signal::SIGSTOP).unwrap();
    eventually("each of its threads stops", || is_stopped(daemon)).await;
    let signalled = tokio::time::timeout(Duration::from_mins(1), machine.runtime.signal("s", "c", 9)).await;
    let error = signalled.expect("an answer in time").unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "containerd did not answer within 10s");
    assert_eq!(machine.runtime.sandboxes().await.unwrap().len(), 1);
    kill(daemon, Signal::SIGCONT).unwrap();
    machine.runtime.signal("s", "c", 9).await.unwrap();
    assert_eq!(machine.exit().await.code, 137);
    machine.finish().await;
}

#[tokio::test]
async fn a_killed_shim_is_the_end_of_its_containers_and_not_of_the_pod() {
    let mut machine = machine("shim").await;
    machine.sandbox("s").await;
    let pid = machine.run("s", machine.container("a", &SLEEP)).await;
    let other = machine.run("s", machine.container("b", &SLEEP)).await;
    let shim = parent(pid);
    assert_eq!(shim, parent(other), "one shim for the pod");
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    for _ in 0..2 {
        let exit = machine.exit().await;
        assert_eq!((exit.code, exit.signal), (137, Some(9)));
    }
    machine.run("s", machine.shell("c", "exit 6")).await;
    assert_eq!(machine.exit().await.code, 6);
    machine.finish().await;
}

#[tokio::test]
async fn the_end_of_a_shared_pid_namespace_loses_the_sandbox() {
    let mut machine = machine("pause").await;
    let mut spec = Machine::sandbox_spec("s");
    spec.share_process_namespace = true;
    machine.runtime.create_sandbox(spec, connected()).await.unwrap();
    machine.run("s", machine.container("c", &SLEEP)).await;
    let group = format!(
        "/sys/fs/cgroup/unified/{}/kubepods/s/pause/cgroup.procs",
        machine.cgroup_root
    );
    let group = std::fs::read_to_string(&group)
        .or_else(|_| std::fs::read_to_string(group.replace("/unified", "")))
        .unwrap();
    kill(Pid::from_raw(group.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    let mut seen = (false, false);
    while seen != (true, true) {
        match machine.event().await {
            Event::SandboxLost { sandbox_id } => seen.0 = sandbox_id == "s",
            Event::ContainerExited { container_id, exit, .. } => {
                seen.1 = (container_id.as_str(), exit.code) == ("c", 137);
            }
        }
    }
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn a_sandbox_whose_namespaces_are_gone_is_lost() {
    let mut machine = machine("restart").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &SLEEP)).await;
    machine.crash().await;
    let path = machine.directory.path().join("state/sandboxes/s/ipc");
    nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH).unwrap();
    machine.reopen().await;
    assert!(machine.runtime.sandboxes().await.unwrap()[0].lost);
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn what_others_have_in_the_namespace_is_left_alone_and_what_no_sandbox_names_goes() {
    let mut machine = machine("others").await;
    let folder = machine.directory.path().join("containerd");
    let ctr = |words: &[&str]| {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(Daemon::address(&folder))
            .arg("--namespace");
        let output = command.arg(Daemon::namespace(&folder)).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let layer = machine.directory.path().join("layer");
    ctr(&[
        "containers",
        "create",
        "--rootfs",
        layer.to_str().unwrap(),
        "stranger",
        "/bin/sleep",
    ]);
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &SLEEP)).await;
    machine.crash().await;
    // The record has no container, but containerd does.
    let path = machine.directory.path().join("state/sandboxes/s/sandbox.json");
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["sandbox"]["containers"] = serde_json::json!([]);
    std::fs::write(&path, record.to_string()).unwrap();
    machine.reopen().await;
    assert_eq!(ctr(&["containers", "ls", "-q"]).trim(), "stranger");
    machine.runtime.cleanup().await.unwrap();
    assert_eq!(ctr(&["containers", "ls", "-q"]).trim(), "stranger");
    ctr(&["containers", "rm", "stranger"]);
    machine.finish().await;
}

#[tokio::test]
async fn a_container_that_a_crash_left_created_is_adopted_as_such() {
    let mut machine = machine("created").await;
    machine.sandbox("s").await;
    let spec = machine.container("c", &SLEEP);
    machine.runtime.create_container("s", spec).await.unwrap();
    machine.crash().await;
    machine.reopen().await;
    let sandbox = machine.runtime.sandboxes().await.unwrap().remove(0);
    assert_eq!(sandbox.containers[0].state, State::Created);
    machine.runtime.start_container("s", "c").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn attack_25_a_start_that_nobody_wrote_down_counts_when_the_shim_is_gone_too() {
    let mut machine = machine("unwritten").await;
    machine.sandbox("s").await;
    let spec = machine.container("made", &SLEEP);
    machine.runtime.create_container("s", spec).await.unwrap();
    let pid = machine.run("s", machine.container("started", &SLEEP)).await;
    machine.crash().await;
    // The record as of the moment when the agent had containerd start the program.
    let path = machine.directory.path().join("state/sandboxes/s/sandbox.json");
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let all = record["sandbox"]["containers"].as_array_mut().unwrap();
    let made = all.iter().find(|known| known["id"] == "made").unwrap()["state"].clone();
    let started = all.iter_mut().find(|known| known["id"] == "started").unwrap();
    started["state"] = made;
    std::fs::write(&path, record.to_string()).unwrap();
    kill(Pid::from_raw(parent(pid)), Signal::SIGKILL).unwrap();
    let daemon = machine.daemon.as_ref().unwrap();
    eventually("the shim's tasks are gone", || {
        daemon.ctr(&["tasks", "ls"]).lines().count() == 1
    })
    .await;
    machine.reopen().await;
    let sandbox = machine.runtime.sandboxes().await.unwrap().remove(0);
    for container in sandbox.containers {
        match (container.id.as_str(), container.state) {
            ("made", State::Created)
            | (
                "started",
                State::Exited {
                    started_at: Some(_), ..
                },
            ) => {}
            other => panic!("{other:?}"),
        }
    }
    // containerd may not have noticed yet that the shim is gone.
    let removing = async {
        for id in ["made", "started"] {
            while machine.runtime.remove_container("s", id).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), removing).await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn attack_25_a_container_that_ends_before_it_is_started_never_ran() {
    let mut machine = machine("never-ran").await;
    machine.sandbox("s").await;
    for id in ["made", "started"] {
        let spec = machine.container(id, &SLEEP);
        machine.runtime.create_container("s", spec).await.unwrap();
    }
    machine.runtime.start_container("s", "started").await.unwrap();
    let daemon = machine.daemon.as_ref().unwrap();
    let listed = daemon.ctr(&["tasks", "ls"]);
    let pids = listed
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
    let pids: Vec<i32> = pids.collect();
    machine.crash().await;
    for pid in pids {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    let daemon = machine.daemon.as_ref().unwrap();
    eventually("both have ended", || {
        daemon.ctr(&["tasks", "ls"]).matches("STOPPED").count() == 2
    })
    .await;
    machine.reopen().await;
    let ended = async |id: &str| {
        let sandbox = machine.runtime.sandboxes().await.unwrap().remove(0);
        let found = sandbox.containers.into_iter().find(|known| known.id == id).unwrap();
        match found.state {
            State::Exited { started_at, .. } => Some(started_at),
            State::Created | State::Running { .. } => None,
        }
    };
    assert_eq!(ended("made").await, Some(None));
    // The exit is reported once the log is complete.
    let told = async {
        while ended("started").await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
    assert!(ended("started").await.flatten().is_some());
    machine.finish().await;
}

#[tokio::test]
async fn clients_stay_attached_while_containerd_is_away() {
    let mut machine = machine("attached").await;
    machine.sandbox("s").await;
    let mut spec = machine.shell("c", "while read line; do echo got $line; done; exit 3");
    spec.stdin = runtime::Stdin::Once;
    machine.run("s", spec).await;
    let all = runtime::Streams {
        stdin: true,
        stdout: true,
        stderr: true,
    };
    let mut session = machine.runtime.attach("s", "c", all).await.unwrap();
    machine.daemon.as_mut().unwrap().kill();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    let mut seen = [0; 8];
    let reading = session.stdout.as_mut().unwrap().read_exact(&mut seen);
    tokio::time::timeout(Duration::from_secs(20), reading)
        .await
        .expect("no answer")
        .unwrap();
    assert_eq!(&seen, b"got one\n");
    machine.daemon.as_mut().unwrap().resume().await;
    drop(stdin);
    assert_eq!(machine.exit().await.code, 3);
    assert_eq!(session.end.await.unwrap(), 0);
    machine.finish().await;
}

#[tokio::test]
async fn nothing_of_an_exec_goes_on_when_containerd_is_away_and_nobody_waits() {
    let mut machine = machine("exec-away").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &SLEEP)).await;
    let script = "echo $$; sleep 7531; echo on; sleep 7532";
    let spec = runtime::StreamSpec {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        streams: runtime::Streams {
            stdout: true,
            ..runtime::Streams::default()
        },
        tty: false,
    };
    let mut session = machine.runtime.exec_stream("s", "c", spec).await.unwrap();
    let mut seen = [0; 1];
    session.stdout.as_mut().unwrap().read_exact(&mut seen).await.unwrap();
    machine.daemon.as_mut().unwrap().kill();
    session.end.await.unwrap_err();
    drop(session.stdout);
    eventually("the program and what it started are gone", || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.map(|process| std::fs::read(process.path().join("cmdline")).unwrap_or_default());
        lines.all(|line| !String::from_utf8_lossy(&line).contains("sleep 7531;") && line != b"sleep\x007531\0")
    })
    .await;
    machine.daemon.as_mut().unwrap().resume().await;
    machine.finish().await;
}

#[tokio::test]
async fn a_handler_names_a_shim_or_a_program_in_place_of_runc() {
    let mut machine = machine("handler").await;
    let directory = machine.directory.path().join("runtimes");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("containerd-shim-kata-v2"), "").unwrap();
    std::fs::write(directory.join("sh"), "").unwrap();
    let known = ["", "runc", "kata", "crun", "sh", "kata-v2"].map(|handler| machine.runtime.has_handler(handler));
    assert_eq!(known, [true, true, true, false, false, false]);
    let said = directory.join("said");
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n", said.display());
    std::fs::write(directory.join("crun"), script).unwrap();
    std::fs::set_permissions(directory.join("crun"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let spec = SandboxSpec {
        handler: "crun".to_owned(),
        ..Machine::sandbox_spec("s")
    };
    machine.runtime.create_sandbox(spec, connected()).await.unwrap();
    machine.run("s", machine.shell("c", "echo out; exit 3")).await;
    assert_eq!(machine.exit().await.code, 3);
    assert_eq!(machine.output("c"), "out\n");
    assert!(std::fs::read_to_string(said).unwrap().contains(" create "));
    machine.finish().await;
}
