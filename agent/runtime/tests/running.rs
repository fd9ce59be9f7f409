//! Containers that are created and started in one call, as the agent does it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::holders::supervisor;
use common::remains::groups;
use common::{Kind, Machine, contract, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime::{Container, ContainerSpec, NotRun, State};
use tokio::time::Instant;

/// Name of a container's init process before it was started.
const WAITING: &str = "youki:[2:INIT]\n";

/// Runs a container; also returns whether its creation was reported.
async fn run(machine: &Machine, spec: ContainerSpec) -> (Result<Container, NotRun>, bool) {
    let told = AtomicBool::new(false);
    let created = Box::new(|| told.store(true, Ordering::SeqCst));
    let ran = machine.runtime.run_container("s", spec, created).await;
    (ran, told.load(Ordering::SeqCst))
}

async fn a_container_is_made_and_run_in_one_go(kind: Kind) {
    let mut machine = Machine::of(kind, "one-go").await;
    machine.sandbox("s").await;
    let (ran, told) = run(&machine, machine.shell("c", "echo began; exit 3")).await;
    let ran = ran.unwrap();
    assert!(matches!(ran.state, State::Running { .. }) && told, "{ran:?}");
    let exit = machine.exit().await;
    assert_eq!((exit.code, machine.output("c").as_str()), (3, "began\n"));
    let again = machine.runtime.start_container("s", "c").await.unwrap_err().to_string();
    assert!(again.contains('c'), "{again}");
    machine.finish().await;
}

async fn what_cannot_be_made_is_not_run_and_leaves_nothing(kind: Kind) {
    let machine = Machine::of(kind, "not-run").await;
    machine.sandbox("s").await;
    for program in ["/no/such/program", "absent"] {
        let (ran, told) = run(&machine, machine.container("c", &[program])).await;
        let Err(NotRun::Made(error)) = ran else {
            panic!("{ran:?}")
        };
        assert!(!told && error.to_string().contains(program), "{error}");
    }
    let (ran, _) = run(&machine, machine.container("c", &["/bin/sleep", "1000"])).await;
    assert!(ran.is_ok(), "the id is free: {ran:?}");
    let (ran, told) = run(&machine, machine.container("c", &["/bin/sleep", "1000"])).await;
    assert!(matches!(ran, Err(NotRun::Made(_))) && !told, "it is taken: {ran:?}");
    let sandboxes = machine.runtime.sandboxes().await.unwrap();
    let states: Vec<&State> = sandboxes[0].containers.iter().map(|known| &known.state).collect();
    assert!(
        matches!(states[..], [State::Running { .. }]),
        "the other one runs on: {states:?}"
    );
    machine.finish().await;
}

#[tokio::test]
async fn a_container_that_was_only_made_does_not_run_when_its_supervisor_is_gone() {
    let machine = Machine::of(Kind::Embedded, "only-made").await;
    machine.sandbox("s").await;
    let made = machine
        .runtime
        .create_container("s", machine.shell("c", ": > /ran"))
        .await;
    made.unwrap();
    let directory = machine.directory.path().join("state/sandboxes/s/containers/c");
    let entries = fs::read_dir(&directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    let ours = ["config.json", "record.json", "rootfs", "upper", "work"];
    assert_eq!(names, ours, "what libcontainer notes for itself is not on the disk");
    // The child that created it may still exist.
    let group = groups(&format!("{}/kubepods/s/c", machine.cgroup_root));
    let waits = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == WAITING);
    let first = group.iter().find_map(|group| {
        let listed = fs::read_to_string(group.join("cgroup.procs")).ok()?;
        listed.lines().find(|pid| waits(pid)).map(str::to_owned)
    });
    let first = first.unwrap();
    kill(Pid::from_raw(supervisor(&machine, "s")), Signal::SIGKILL).unwrap();
    // The runtime, which would kill it, is not polled meanwhile.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        assert!(waits(&first), "it runs");
        std::thread::yield_now();
    }
    assert!(!directory.join("upper/ran").exists());
    machine.finish().await;
}

async fn a_variables_value_may_be_any_bytes_but_for_nul(kind: Kind) {
    let mut machine = Machine::of(kind, "bytes").await;
    machine.sandbox("s").await;
    let with = |machine: &Machine, id: &str, variable: &str| {
        let mut spec = machine.shell(id, "printf %s \"$V\"; echo");
        let process = spec.spec.process_mut().as_mut().unwrap();
        process.set_env(Some(vec!["PATH=/bin".to_owned(), variable.to_owned()]));
        spec
    };
    machine.run("s", with(&machine, "c", "V=a\u{10ffff}z")).await;
    assert_eq!(machine.exit().await.code, 0);
    // runc reads its configuration as Go does.
    let expected = match kind {
        Kind::Embedded => b"a\xffz\n".as_slice(),
        Kind::Containerd => "a\u{fffd}z\n".as_bytes(),
    };
    let log = fs::read(machine.log("c")).unwrap();
    assert!(log.ends_with(expected), "{}", String::from_utf8_lossy(&log));
    for (variable, words) in [
        (
            "V=a\0z",
            ["invalid environment variable \"V\": ", "contains nul byte (\\x00)"],
        ),
        ("=x", ["invalid environment variable: ", "name cannot be empty"]),
    ] {
        let (ran, _) = run(&machine, with(&machine, "d", variable)).await;
        let Err(NotRun::Made(error)) = ran else {
            panic!("{ran:?}")
        };
        let said = error.to_string();
        // The message depends on the version of runc.
        let words = if kind == Kind::Embedded {
            words
        } else {
            ["environment variable"; 2]
        };
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    machine.finish().await;
}

#[tokio::test]
async fn a_program_that_ended_in_time_is_not_late_because_its_supervisor_was_held_up() {
    let machine = Machine::of(Kind::Embedded, "held-up").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let supervisor = Pid::from_raw(supervisor(&machine, "s"));
    let marks = machine.directory.path().join("state/sandboxes/s/containers/c/upper");
    let limit = Duration::from_secs(10);
    let begun = Instant::now();
    let exec = machine.exec("s", "c", ": > /began; sleep 0.5; echo out", limit);
    let hold_up = async {
        eventually("it does not begin", || marks.join("began").exists()).await;
        kill(supervisor, Signal::SIGSTOP).unwrap();
        tokio::time::sleep_until(begun + limit + Duration::from_millis(100)).await;
        kill(supervisor, Signal::SIGCONT).unwrap();
    };
    let (result, ()) = tokio::join!(exec, hold_up);
    assert_eq!(
        (result.exit_code, result.timed_out, result.output.as_slice()),
        (0, false, b"out\n".as_slice())
    );
    machine.finish().await;
}

contract!(
    a_container_is_made_and_run_in_one_go,
    a_variables_value_may_be_any_bytes_but_for_nul,
    what_cannot_be_made_is_not_run_and_leaves_nothing,
);
