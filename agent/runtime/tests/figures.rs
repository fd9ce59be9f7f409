//! Benchmarks of the runtime on this machine: run by hand with `cargo test --release -p
//! agent-runtime --test figures -- --ignored --nocapture`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a measurement by hand"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use common::Machine;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn kib(pid: i32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Anonymous memory that other processes still share.
fn shared_anonymous(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let value = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let (mut total, mut shared) = (0, 0);
    for line in text.lines() {
        if line.starts_with("Shared_Dirty") {
            shared = value(line);
        } else if line.starts_with("Anonymous") {
            total += shared.min(value(line));
        }
    }
    total
}

#[tokio::test]
#[ignore = "a measurement, not a check"]
async fn figures() {
    let mut machine = Machine::new("figures").await;
    let (mut sandbox, mut create, mut start, mut told, mut exec, mut remove) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    let mut private = vec![];
    for round in 0..30 {
        let id = format!("s{round}");
        let at = Instant::now();
        machine.sandbox(&id).await;
        sandbox.push(at.elapsed());
        let at = Instant::now();
        machine
            .runtime
            .create_container(&id, machine.container("c", &["/bin/sleep", "1000"]))
            .await
            .unwrap();
        create.push(at.elapsed());
        let at = Instant::now();
        let container = machine.runtime.start_container(&id, "c").await.unwrap();
        start.push(at.elapsed());
        let runtime::State::Running { pid, .. } = container.state else {
            panic!()
        };
        let at = Instant::now();
        machine.exec(&id, "c", "exit 0", Duration::from_secs(10)).await;
        exec.push(at.elapsed());
        let supervisor = common::holders::supervisor(&machine, &id);
        private.push((
            kib(supervisor, "Anonymous"),
            shared_anonymous(supervisor),
            kib(supervisor, "Pss:"),
            kib(supervisor, "Rss"),
        ));
        let at = Instant::now();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        let exit = machine.exit().await;
        told.push(at.elapsed());
        assert!(exit.finished_at <= SystemTime::now());
        let at = Instant::now();
        machine.runtime.remove_sandbox(&id).await.unwrap();
        remove.push(at.elapsed());
    }
    println!(
        "sandbox {:?} create {:?} start {:?} exec {:?} kill->event {:?} remove sandbox {:?}",
        median(sandbox),
        median(create),
        median(start),
        median(exec),
        median(told),
        median(remove)
    );
    println!(
        "supervisor KiB (anonymous, of it still shared with the zygote, pss, rss): {:?}",
        private[private.len() / 2]
    );
    machine.finish().await;
}
