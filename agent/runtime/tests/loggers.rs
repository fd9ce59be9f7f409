//! Loggers of containerd's containers, which may be killed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use common::{Kind, Machine, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime::ContainerSpec;
use tokio::io::AsyncWriteExt;

/// Output that exceeds a pipe's capacity.
const MUCH: &str = "head -c 300000 /dev/zero | tr '\\0' 'x'; echo; echo all of it; exit 3";

/// Kills the logger of `c` until it is replaced, twice.
async fn kill_the_logger(machine: &Machine) {
    let file = machine
        .directory
        .path()
        .join("state/sandboxes/s/containers/c/logger.pid");
    let logger = || std::fs::read_to_string(&file).unwrap().trim().parse::<i32>().unwrap();
    for _ in 0..2 {
        let first = logger();
        kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
        eventually("there is another logger", || logger() != first).await;
    }
}

/// Writes before and after the file `go` appears in the volume.
fn speaker(machine: &Machine, volume: &std::path::Path, terminal: bool) -> ContainerSpec {
    let mut spec = common::volumes::with(machine, "c", volume, "rprivate", &["rbind", "rprivate", "rw"]);
    // A child without a reader dies of SIGPIPE.
    let steadily = "sh -c 'until [ -e /v/go ]; do echo steadily; sleep 0.05; done' || echo nobody listened";
    let script = format!("echo begun; {steadily}; echo of errors >&2; {MUCH}");
    let process = spec.spec.process_mut().as_mut().unwrap();
    process
        .set_args(Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), script]))
        .set_terminal(Some(terminal));
    spec
}

#[tokio::test]
async fn attack_14_a_killed_logger_does_not_stop_a_container() {
    for terminal in [false, true] {
        let mut machine = Machine::of(Kind::Containerd, "logger").await;
        machine.sandbox("s").await;
        let volume = machine.directory.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        machine.run("s", speaker(&machine, &volume, terminal)).await;
        eventually("it speaks", || machine.output("c").starts_with("begun")).await;
        kill_the_logger(&machine).await;
        std::fs::write(volume.join("go"), "").unwrap();
        assert_eq!(machine.exit().await.code, 3, "terminal: {terminal}");
        // The logger may still be writing the data that it has read.
        eventually("the log is whole", || {
            let output = machine.output("c").replace('\r', "");
            assert!(!output.contains("nobody listened"), "terminal: {terminal}");
            output.len() > 300_000 && output.contains("of errors\n") && output.contains("xxxx\nall of it\n")
        })
        .await;
        machine.finish().await;
    }
}

#[tokio::test]
async fn attack_14_a_killed_logger_does_not_stop_a_container_with_an_input() {
    let mut machine = Machine::of(Kind::Containerd, "logger").await;
    machine.sandbox("s").await;
    let mut spec = machine.shell("c", &format!("read line; {MUCH}"));
    spec.stdin = runtime::Stdin::Open;
    machine.run("s", spec).await;
    kill_the_logger(&machine).await;
    let input = runtime::Streams {
        stdin: true,
        ..runtime::Streams::default()
    };
    let mut session = machine.runtime.attach("s", "c", input).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"go\n").await.unwrap();
    assert_eq!(machine.exit().await.code, 3);
    // The logger may still be writing the data that it has read.
    eventually("the log is whole", || {
        let output = machine.output("c");
        output.len() > 300_000 && output.ends_with("all of it\n")
    })
    .await;
    machine.finish().await;
}

#[tokio::test]
async fn loggers_share_what_they_do_not_write() {
    let machine = Machine::of(Kind::Containerd, "logger").await;
    machine.sandbox("s").await;
    let ids = ["one", "two", "three"];
    for id in ids {
        machine.run("s", machine.shell(id, "echo said; exec sleep 1000")).await;
        eventually("it speaks", || machine.output(id) == "said\n").await;
    }
    let own = ids.map(|id| {
        let file = format!("state/sandboxes/s/containers/{id}/logger.pid");
        let pid = std::fs::read_to_string(machine.directory.path().join(file)).unwrap();
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.trim())).unwrap();
        let private = rollup.lines().filter(|line| line.starts_with("Private_"));
        let sizes = private.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
        sizes.sum::<u64>()
    });
    assert!(own.iter().all(|kibibytes| *kibibytes < 400), "{own:?}");
    machine.finish().await;
}
