//! Containers that are announced to a runtime while their sandbox is being created.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use common::holders::{parent, supervisor};
use common::remains::{groups, processes};
use common::{Kind, Machine, contract};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci_spec::runtime::MountBuilder;
use runtime::{ContainerSpec, Error, SandboxSpec};
use tokio::sync::oneshot::{Sender, channel};

const LIMIT: Duration = Duration::from_secs(20);

/// Network namespace held by another process.
struct Network {
    process: std::process::Child,
}

impl Network {
    async fn new() -> Self {
        let process = std::process::Command::new("unshare")
            .args(["--net", "sleep", "1000"])
            .spawn()
            .unwrap();
        let network = Self { process };
        let ours = fs::read_link("/proc/self/ns/net").unwrap();
        until("another network", || {
            fs::read_link(network.path()).is_ok_and(|theirs| theirs != ours)
        })
        .await;
        network
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.process.id()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

async fn until(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !there() {
        assert!(tokio::time::Instant::now() < deadline, "not yet: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn members(machine: &Machine, group: &str) -> Vec<i32> {
    let all = groups(&format!("{}/kubepods/s/{group}", machine.cgroup_root));
    let listed = all
        .iter()
        .map(|group| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default());
    let mut pids: Vec<i32> = listed
        .flat_map(|text| text.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// True once a process is gone, or its parent can see that it has ended, which is a while after it
/// has left its group.
fn has_ended(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).map_or(true, |status| status.contains("State:\tZ"))
}

fn directory(machine: &Machine) -> PathBuf {
    machine.directory.path().join("state/sandboxes/s/containers/c")
}

/// Creates the sandbox `s` with a foreseen container, whose volume may exist already; calls `then`
/// once the creation of the container has progressed as far as it can.
async fn sandbox<F: Future<Output = ()>>(
    machine: &Machine,
    spec: SandboxSpec,
    foreseen: &ContainerSpec,
    then: impl FnOnce(Sender<()>) -> F,
) -> Result<runtime::Sandbox, Error> {
    let (told, connected) = channel();
    let placed = machine.directory.path().join("volume").exists();
    machine.runtime.foresee("s", foreseen, placed);
    let beside = async {
        let group = format!("{}/kubepods/s", machine.cgroup_root);
        until("the sandbox's group", || !groups(&group).is_empty()).await;
        if machine.kind == Kind::Embedded {
            until("a child at work", || !members(machine, "c").is_empty()).await;
        }
        then(told).await;
    };
    let (made, ()) = tokio::join!(machine.runtime.create_sandbox(spec, connected), beside);
    made
}

async fn run(machine: &Machine, spec: ContainerSpec) {
    let ran = machine.runtime.run_container("s", spec, Box::new(|| ())).await;
    ran.unwrap();
}

/// Specification of a container with a volume that does not exist yet.
fn with_volume(machine: &Machine, script: &str) -> ContainerSpec {
    let mut spec = machine.shell("c", script);
    let volume = MountBuilder::default()
        .destination("/v")
        .typ("bind")
        .source(machine.directory.path().join("volume"))
        .options(["rbind".to_owned(), "rprivate".to_owned()])
        .build()
        .unwrap();
    let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
    mounts.push(volume);
    spec.spec.set_mounts(Some(mounts));
    spec
}

async fn a_foreseen_container_has_the_network_and_the_volumes_that_came_later(kind: Kind) {
    let mut machine = Machine::of(kind, "foreseen").await;
    let network = Network::new().await;
    let place = machine.directory.path().join("netns");
    let spec = SandboxSpec {
        netns: Some(place.clone()),
        ..Machine::sandbox_spec("s")
    };
    let script = "cat /v/file; busybox readlink /proc/self/ns/net; hostname; pwd";
    let mut container = with_volume(&machine, script);
    let mut process = container.spec.process().clone().unwrap();
    process.set_cwd("/v/below".into());
    container.spec.set_process(Some(process));
    let made = sandbox(&machine, spec, &container, async |told| {
        let volume = machine.directory.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("file"), "later\n").unwrap();
        symlink(network.path(), &place).unwrap();
        told.send(()).unwrap();
    });
    made.await.unwrap();
    let own = fs::read_link(network.path()).unwrap();
    let before = fs::metadata(directory(&machine)).map(|found| found.ino()).ok();
    run(&machine, container).await;
    if kind == Kind::Embedded {
        let after = fs::metadata(directory(&machine)).unwrap().ino();
        assert_eq!(before, Some(after), "it is the one that was begun");
    }
    assert_eq!(machine.exit().await.code, 0);
    let wanted = format!("later\n{}\npod\n/v/below\n", own.display());
    assert_eq!(machine.output("c"), wanted);
    machine.finish().await;
}

async fn a_container_that_is_not_as_foreseen_is_made_as_it_is_wanted(kind: Kind) {
    let mut machine = Machine::of(kind, "otherwise").await;
    let foreseen = machine.shell("c", "echo foreseen");
    let spec = Machine::sandbox_spec("s");
    let mut waiting = Vec::new();
    let made = sandbox(&machine, spec, &foreseen, async |told| {
        waiting = members(&machine, "c");
        told.send(()).unwrap();
    });
    made.await.unwrap();
    run(&machine, machine.shell("c", "echo wanted; exec sleep 1000")).await;
    until("the output", || machine.output("c") == "wanted\n").await;
    let left: Vec<i32> = members(&machine, "c")
        .into_iter()
        .filter(|pid| waiting.contains(pid))
        .collect();
    assert_eq!(left, Vec::<i32>::new(), "nobody waits any more");
    machine.runtime.signal("s", "c", 9).await.unwrap();
    machine.exit().await;
    machine.runtime.remove_container("s", "c").await.unwrap();
    assert!(!directory(&machine).exists());
    machine.finish().await;
}

async fn what_is_foreseen_and_cannot_be_made_says_why_when_it_is_asked_for(kind: Kind) {
    let machine = Machine::of(kind, "unforeseeable").await;
    let mut broken = machine.shell("c", "echo broken");
    "nobody-of-that-name".clone_into(&mut broken.user.user);
    machine.runtime.foresee("s", &broken, false);
    // Its child may exit before it is observed.
    machine.sandbox("s").await;
    let refused = machine.runtime.create_container("s", broken).await.unwrap_err();
    assert!(refused.to_string().contains("nobody-of-that-name"), "{refused}");
    run(&machine, machine.shell("c", "exec sleep 1000")).await;
    machine.finish().await;
}

async fn nothing_is_left_of_what_was_foreseen_for_nothing(kind: Kind) {
    let machine = Machine::of(kind, "for-nothing").await;
    let foreseen = machine.shell("c", "exec sleep 1000");
    // The network fails.
    let made = sandbox(&machine, Machine::sandbox_spec("s"), &foreseen, async |told| drop(told));
    let unmade = made.await;
    assert!(matches!(unmade, Err(Error::Unconnected(_))), "{unmade:?}");
    assert_eq!(members(&machine, "c"), Vec::<i32>::new());
    assert!(!machine.directory.path().join("state/sandboxes/s").exists());
    // Removed before its request.
    let made = sandbox(&machine, Machine::sandbox_spec("s"), &foreseen, async |told| {
        told.send(()).unwrap();
    });
    made.await.unwrap();
    machine.runtime.remove_container("s", "c").await.unwrap();
    assert!(!directory(&machine).exists());
    machine.runtime.remove_sandbox("s").await.unwrap();
    assert!(!machine.directory.path().join("state/sandboxes/s").exists());
    machine.finish().await;
}

contract!(
    a_container_that_is_not_as_foreseen_is_made_as_it_is_wanted,
    a_foreseen_container_has_the_network_and_the_volumes_that_came_later,
    nothing_is_left_of_what_was_foreseen_for_nothing,
    what_is_foreseen_and_cannot_be_made_says_why_when_it_is_asked_for,
);

#[tokio::test]
async fn a_child_that_died_while_it_waited_is_not_relied_on() {
    let machine = Machine::of(Kind::Embedded, "died").await;
    let foreseen = machine.shell("c", "exec sleep 1000");
    let made = sandbox(&machine, Machine::sandbox_spec("s"), &foreseen, async |told| {
        told.send(()).unwrap();
    });
    made.await.unwrap();
    // The request reaches the supervisor before the exits of its children.
    let supervisor = Pid::from_raw(supervisor(&machine, "s"));
    kill(supervisor, Signal::SIGSTOP).unwrap();
    let waiting = members(&machine, "c");
    for pid in &waiting {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    }
    until("its end", || waiting.iter().all(|pid| has_ended(*pid))).await;
    let told = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        kill(supervisor, Signal::SIGCONT).unwrap();
    };
    tokio::join!(run(&machine, foreseen), told);
    assert!(!members(&machine, "c").is_empty());
    machine.finish().await;
}

#[tokio::test]
async fn a_container_is_begun_that_is_foreseen_when_its_supervisor_is_at_work() {
    let mut machine = Machine::of(Kind::Embedded, "late").await;
    let container = machine.shell("c", "exit 3");
    let (told, connected) = channel();
    let making = machine.runtime.create_sandbox(Machine::sandbox_spec("s"), connected);
    let beside = async {
        let begun = machine.directory.path().join("state/sandboxes/s/containers");
        until("a supervisor at work", || begun.exists()).await;
        machine.runtime.foresee("s", &container, false);
        until("a child at work", || !members(&machine, "c").is_empty()).await;
        told.send(()).unwrap();
    };
    let (made, ()) = tokio::join!(making, beside);
    made.unwrap();
    // Too late to be sent to the supervisor.
    machine.runtime.foresee("s", &machine.shell("d", "exit 4"), false);
    let before = fs::metadata(directory(&machine)).unwrap().ino();
    run(&machine, container.clone()).await;
    assert_eq!(fs::metadata(directory(&machine)).unwrap().ino(), before);
    assert_eq!(machine.exit().await.code, 3);
    machine.finish().await;
}

#[tokio::test]
async fn a_child_that_waits_ends_with_its_supervisor() {
    let machine = Machine::of(Kind::Embedded, "waiting").await;
    let foreseen = machine.shell("c", "exec sleep 1000");
    let made = sandbox(&machine, Machine::sandbox_spec("s"), &foreseen, async |told| {
        let waiting = members(&machine, "c");
        kill(Pid::from_raw(parent(waiting[0])), Signal::SIGKILL).unwrap();
        until("its end", || members(&machine, "c").is_empty()).await;
        told.send(()).unwrap();
    });
    assert!(made.await.is_err());
    let state = machine.directory.path().join("state/sandboxes");
    until("the end of all", || processes(&state).is_empty()).await;
    machine.finish().await;
}

/// Makes the sandbox `s` whose container has a volume, and waits until the container is created
/// ahead of its request.
async fn made_ahead(machine: &Machine, spec: SandboxSpec, container: &ContainerSpec) -> Vec<i32> {
    fs::create_dir(machine.directory.path().join("volume")).unwrap();
    let made = sandbox(machine, spec, container, async |told| told.send(()).unwrap());
    made.await.unwrap();
    let waits = |pid: &i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("youki:[2:INIT]")
    };
    until("a container that waits to be started", || {
        members(machine, "c").iter().any(waits)
    })
    .await;
    members(machine, "c")
}

#[tokio::test]
async fn a_container_is_made_before_it_is_asked_for_when_its_volumes_have_their_places() {
    let mut machine = Machine::of(Kind::Embedded, "placed").await;
    let network = Network::new().await;
    let spec = SandboxSpec {
        netns: Some(network.path()),
        ..Machine::sandbox_spec("s")
    };
    let script = "cat /v/file; busybox readlink /proc/self/ns/net; ls /sys/class/net; \
                  busybox grep Cpus_allowed_list /proc/self/status";
    let container = with_volume(&machine, script);
    let ahead = made_ahead(&machine, spec, &container).await;
    fs::write(machine.directory.path().join("volume/file"), "later\n").unwrap();
    let started = machine.runtime.run_container("s", container, Box::new(|| ())).await;
    let runtime::State::Running { pid, .. } = started.unwrap().state else {
        panic!("it does not run");
    };
    assert!(ahead.contains(&pid), "{pid} is none of {ahead:?}");
    assert_eq!(machine.exit().await.code, 0);
    let own = fs::read_link(network.path()).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let processors = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
    let wanted = format!("later\n{}\nlo\n{}\n", own.display(), processors.unwrap());
    assert_eq!(machine.output("c"), wanted);
    machine.finish().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_container_that_was_made_before_anybody_asked_for_it() {
    let mut machine = Machine::of(Kind::Embedded, "unasked").await;
    let foreseen = with_volume(&machine, "exec sleep 1000");
    made_ahead(&machine, Machine::sandbox_spec("s"), &foreseen).await;
    // A different container is requested in its place.
    run(&machine, machine.shell("c", "echo wanted")).await;
    assert_eq!(machine.exit().await.code, 0);
    assert_eq!(machine.output("c"), "wanted\n");
    machine.runtime.remove_sandbox("s").await.unwrap();
    fs::remove_dir(machine.directory.path().join("volume")).unwrap();
    made_ahead(&machine, Machine::sandbox_spec("s"), &foreseen).await;
    machine.runtime.remove_container("s", "c").await.unwrap();
    assert_eq!(members(&machine, "c"), Vec::<i32>::new());
    assert!(!directory(&machine).exists());
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn a_container_that_needed_the_contents_of_its_volumes_is_made_with_them() {
    let mut machine = Machine::of(Kind::Embedded, "linked").await;
    let (layer, volume) = (
        machine.directory.path().join("links"),
        machine.directory.path().join("volume"),
    );
    fs::create_dir(&layer).unwrap();
    fs::create_dir(&volume).unwrap();
    symlink("/v/run.sh", layer.join("run")).unwrap();
    let mut container = with_volume(&machine, "");
    container.layers.push(layer);
    let mut process = container.spec.process().clone().unwrap();
    process.set_args(Some(vec!["/run".to_owned()]));
    container.spec.set_process(Some(process));
    let mut child = 0;
    let made = sandbox(&machine, Machine::sandbox_spec("s"), &container, async |told| {
        until("a child at work", || !members(&machine, "c").is_empty()).await;
        child = members(&machine, "c")[0];
        kill(Pid::from_raw(child), Signal::SIGSTOP).unwrap();
        told.send(()).unwrap();
    });
    made.await.unwrap();
    let fails = async {
        // The answer shows that the announcement of the container was read, too.
        machine.runtime.signal("s", "nobody", 9).await.unwrap_err();
        let supervisor = Pid::from_raw(parent(child));
        kill(supervisor, Signal::SIGSTOP).unwrap();
        kill(Pid::from_raw(child), Signal::SIGCONT).unwrap();
        until("a child that failed", || has_ended(child)).await;
        fs::write(volume.join("run.sh"), "#!/bin/sh\nexit 7\n").unwrap();
        fs::set_permissions(volume.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        kill(supervisor, Signal::SIGCONT).unwrap();
    };
    tokio::join!(run(&machine, container), fails);
    assert_eq!(machine.exit().await.code, 7);
    machine.finish().await;
}
