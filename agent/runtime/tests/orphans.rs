//! Leftovers of containerd: shims whose creation was cut off, each of which holds the address of
//! its pod, waits for the reader of its log, and does not answer; and snapshots prepared for
//! containers that were never created.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Daemon, Kind, Machine, eventually};
use nix::sys::stat::Mode;
use tokio::time::Instant;

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];
/// Time for which creations used to hang.
const LONG: Duration = Duration::from_mins(1);

fn is_opened(path: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut files =
        processes.flat_map(|process| fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten());
    files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == path))
}

/// Imitates a creation that containerd cancels: has the pod's shim started in a task's directory,
/// and removes that.
fn cut_off(machine: &Machine, sandbox: &str) {
    let directory = machine.directory.path().join("containerd");
    let (address, namespace) = (Daemon::address(&directory), Daemon::namespace(&directory));
    let tasks = directory.join("state/io.containerd.runtime.v2.task").join(&namespace);
    let task = tasks.join("cut-off");
    fs::create_dir_all(&task).unwrap();
    let config = format!(r#"{{"annotations":{{"io.kubernetes.cri.sandbox-id":"{sandbox}"}}}}"#);
    fs::write(task.join("config.json"), config).unwrap();
    nix::unistd::mkfifo(&task.join("log"), Mode::S_IRWXU).unwrap();
    let found = [
        "/usr/bin/containerd-shim-runc-v2",
        "/usr/local/bin/containerd-shim-runc-v2",
    ];
    let shim = found.into_iter().map(PathBuf::from).find(|path| path.exists()).unwrap();
    let started = Command::new(shim)
        .args(["-namespace", &namespace, "-address"])
        .arg(address)
        .args(["-publish-binary", "containerd", "-id", "cut-off", "start"])
        .current_dir(&task)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(started.stdout.starts_with(b"unix://"), "{started:?}");
    let log = task.join("log");
    let begun = Instant::now();
    while !is_opened(&log) {
        assert!(begun.elapsed() < LONG, "nobody opens {}", log.display());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    fs::remove_dir_all(&task).unwrap();
    // containerd creates it once its namespace has no task.
    drop(fs::remove_dir(&tasks));
}

/// True while the shim of [`cut_off`] lives.
fn is_alive(machine: &Machine) -> bool {
    let namespace = Daemon::namespace(&machine.directory.path().join("containerd"));
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes.any(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let has = |wanted: &str| line.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes());
        has(&namespace) && has("cut-off")
    })
}

#[tokio::test]
async fn a_shim_that_serves_nobody_holds_up_the_next_container_of_its_pod_for_seconds() {
    let machine = Machine::of(Kind::Containerd, "held-up").await;
    machine.sandbox("s").await;
    cut_off(&machine, "s");
    let begun = Instant::now();
    machine.run("s", machine.container("c", &SLEEP)).await;
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    machine.finish().await;
}

#[tokio::test]
async fn the_next_agent_ends_shims_that_serve_nobody_and_no_others() {
    let mut machine = Machine::of(Kind::Containerd, "cut-off").await;
    for id in ["s", "other"] {
        machine.sandbox(id).await;
    }
    let other = machine.run("other", machine.container("o", &SLEEP)).await;
    cut_off(&machine, "s");
    assert!(is_alive(&machine));
    machine.crash().await;
    machine.reopen().await;
    // Before a container of its pod is held up by it.
    eventually("the shim that serves nobody ends", || !is_alive(&machine)).await;
    machine.run("s", machine.container("c", &SLEEP)).await;
    assert!(PathBuf::from(format!("/proc/{other}")).exists(), "the other pod's");
    machine.finish().await;
}

fn writable(machine: &Machine) -> Vec<String> {
    machine.daemon.as_ref().unwrap().writable()
}

async fn until_writable(machine: &Machine, wanted: &[&str]) {
    let begun = Instant::now();
    while writable(machine) != wanted {
        assert!(begun.elapsed() < LONG, "{:?}, not {wanted:?}", writable(machine));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_root_file_system_that_was_made_ahead_is_its_containers_or_goes_with_the_sandbox() {
    let mut machine = Machine::of(Kind::Containerd, "ahead").await;
    let wanted = machine.container("comes", &SLEEP);
    machine.runtime.foresee("s", &wanted, false);
    machine
        .runtime
        .foresee("s", &machine.container("stays-away", &SLEEP), false);
    until_writable(&machine, &["comes", "stays-away"]).await;
    machine.sandbox("s").await;
    machine.run("s", wanted).await;
    assert_eq!(writable(&machine), ["comes", "stays-away"]);
    machine.runtime.remove_sandbox("s").await.unwrap();
    assert_eq!(writable(&machine), Vec::<String>::new());
    // Nor does it outlive an agent that dies before the request.
    machine.runtime.foresee("t", &machine.container("lost", &SLEEP), false);
    until_writable(&machine, &["lost"]).await;
    machine.crash().await;
    machine.reopen().await;
    assert_eq!(writable(&machine), Vec::<String>::new());
    machine.finish().await;
}

/// Creates directories with the numbers of the next snapshots, as a containerd leaves one when it
/// is killed before it records a snapshot.
fn leave_directories(machine: &Machine) {
    let root = machine.directory.path().join("containerd/root");
    let snapshots = root.join("io.containerd.snapshotter.v1.overlayfs/snapshots");
    let number = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
    let last = fs::read_dir(&snapshots)
        .unwrap()
        .flatten()
        .filter_map(number)
        .max()
        .unwrap();
    for next in last + 1..=last + 3 {
        fs::create_dir_all(snapshots.join(next.to_string()).join("fs")).unwrap();
    }
}

#[tokio::test]
async fn a_directory_that_containerd_left_of_a_snapshot_is_in_the_way_of_no_other() {
    let machine = Machine::of(Kind::Containerd, "left-snapshot").await;
    machine.sandbox("s").await;
    leave_directories(&machine);
    machine.run("s", machine.container("alone", &SLEEP)).await;
    // Several at once.
    leave_directories(&machine);
    let made = ["first", "second", "third", "fourth"].map(|id| {
        let wanted = machine.container(id, &SLEEP);
        machine.runtime.create_container("s", wanted)
    });
    for made in futures::future::join_all(made).await {
        made.unwrap();
    }
    machine.finish().await;
}

#[tokio::test]
async fn what_runc_has_begun_goes_with_the_node_and_what_runs_does_not() {
    let machine = Machine::of(Kind::Containerd, "begun").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &SLEEP)).await;
    let namespace = Daemon::namespace(&machine.directory.path().join("containerd"));
    let records = Path::new("/run/containerd/runc").join(namespace);
    // State that remains when containerd is killed during a creation.
    let (begun, old, other) = (records.join("begun"), records.join("old"), records.join("other"));
    for directory in [&begun, &old, &other] {
        fs::create_dir(directory).unwrap();
        nix::unistd::mkfifo(&directory.join("exec.fifo"), Mode::S_IRWXU).unwrap();
    }
    // State of another runtime, which has other files.
    fs::write(other.join("status"), "{}").unwrap();
    let long_ago = std::time::UNIX_EPOCH;
    for directory in [&old, &other] {
        fs::File::open(directory).unwrap().set_modified(long_ago).unwrap();
    }
    let next = common::open(machine.kind, machine.directory.path(), &machine.cgroup_root).await;
    assert!(!old.exists());
    // Recent state may belong to a creation in progress.
    assert!(begun.exists() && records.join("c/state.json").exists());
    assert!(other.join("status").exists());
    fs::remove_dir_all(&other).unwrap();
    drop(next);
    machine.finish().await;
    assert!(!begun.exists());
}
