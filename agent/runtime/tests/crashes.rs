//! After a crash of the agent at any moment, the next one can adopt or remove all that is left.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::time::Duration;

use common::{Kind, Machine, connected, contract, holders};
use runtime::Event;

/// Drops the runtime, as a crash would, after a delay, and opens it again on the same state.
async fn crash_within(machine: &mut Machine, sandbox: &str, container: &str, after: Duration) {
    let work = async {
        machine.sandbox(sandbox).await;
        machine
            .run(sandbox, machine.container(container, &["/bin/sleep", "1000"]))
            .await;
        machine
            .exec(sandbox, container, "sleep 1000", Duration::from_secs(100))
            .await;
    };
    tokio::time::timeout(after, work).await.unwrap_err();
    machine.crash().await;
    machine.reopen().await;
}

async fn attack_25_an_agent_that_dies_at_any_moment_leaks_nothing(kind: Kind) {
    let mut machine = Machine::of(kind, "attack-25").await;
    for step in 0..24_u64 {
        // IDs are not reused: containerd may still be undoing interrupted creations.
        let sandbox = format!("s{step}");
        crash_within(
            &mut machine,
            &sandbox,
            &format!("c{step}"),
            Duration::from_micros(300 * step * step),
        )
        .await;
        for known in machine.runtime.sandboxes().await.unwrap() {
            assert_eq!(known.id, sandbox);
        }
        machine.runtime.remove_sandbox(&sandbox).await.unwrap();
        assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
    }
    // containerd undoes interrupted creations asynchronously.
    let undone = async {
        while machine.daemon.as_ref().is_some_and(common::Daemon::has_shims) {
            machine.runtime.cleanup().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Leftovers are reported by the end of the test.
    tokio::time::timeout(Duration::from_mins(1), undone).await.ok();
    machine.finish().await;
}

#[tokio::test]
async fn attack_38_a_stopped_supervisor_is_killed_and_its_pod_removed() {
    let machine = Machine::new("attack-38").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(holders::supervisor(&machine, "s")),
        nix::sys::signal::Signal::SIGSTOP,
    )
    .unwrap();
    machine.runtime.remove_sandbox("s").await.unwrap();
    assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
    machine.finish().await;
}

/// Waits until these processes are gone.
async fn ended(pids: &[i32]) {
    let wait = async {
        while pids
            .iter()
            .any(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")))
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .expect("processes live on");
}

/// The supervisors, the zygote that forks them, and the one that it forked ahead.
async fn idle(machine: &Machine, count: usize) -> Vec<i32> {
    let members = || holders::supervisors(&machine.cgroup_root);
    let wait = async {
        while members().len() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
    waited.unwrap_or_else(|_| panic!("not {count} processes: {:?}", members()));
    members()
}

#[tokio::test]
async fn a_supervisor_that_waits_for_a_pod_serves_it_and_is_not_missed_when_it_is_gone() {
    let machine = Machine::new("ahead").await;
    machine.sandbox("first").await;
    let ahead = idle(&machine, 3).await;
    machine.sandbox("s").await;
    assert!(ahead.contains(&holders::supervisor(&machine, "s")), "{ahead:?}");
    let again = idle(&machine, 4).await;
    let waiting = again.iter().find(|pid| !ahead.contains(pid)).copied().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(waiting), nix::sys::signal::Signal::SIGKILL).unwrap();
    ended(&[waiting]).await;
    machine.sandbox("t").await;
    for sandbox in ["s", "t"] {
        machine
            .run(
                sandbox,
                machine.container(&format!("{sandbox}-c"), &["/bin/sleep", "1000"]),
            )
            .await;
    }
    machine.finish().await;
}

#[tokio::test]
async fn a_supervisor_whose_directory_is_gone_ends_by_itself() {
    let mut machine = Machine::new("orphans").await;
    let state = machine.directory.path().join("state/sandboxes");
    let mut pids = Vec::new();
    for (id, before) in [("s", true), ("t", false)] {
        machine.sandbox(id).await;
        let pid = machine.run(id, machine.container("c", &["/bin/sleep", "1000"])).await;
        pids.extend([pid, holders::supervisor(&machine, id)]);
        if before {
            std::fs::remove_dir_all(state.join(id)).unwrap();
        }
    }
    machine.crash().await;
    std::fs::remove_dir_all(state).unwrap();
    ended(&pids).await;
    let left: Vec<String> = machine.leaks();
    assert!(!left.iter().any(|leak| leak.contains("process")), "{left:?}");
    for id in ["s", "t"] {
        let group = format!("/sys/fs/cgroup/unified/{}/kubepods/{id}", machine.cgroup_root);
        assert!(!std::path::Path::new(&group).exists());
    }
    machine.reopen().await;
    machine.finish().await;
}

#[tokio::test]
async fn what_no_sandbox_names_is_removed_by_the_next_agent() {
    let mut machine = Machine::new("leftovers").await;
    let state = machine.directory.path().join("state/sandboxes");
    machine.sandbox("kept").await;
    let kept = machine
        .run("kept", machine.container("k", &["/bin/sleep", "1000"]))
        .await;
    machine.sandbox("s").await;
    let pid = machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    // A stopped supervisor cannot notice that its sandbox is no longer known.
    let stopped = nix::unistd::Pid::from_raw(holders::supervisor(&machine, "s"));
    nix::sys::signal::kill(stopped, nix::sys::signal::Signal::SIGSTOP).unwrap();
    machine.crash().await;
    std::fs::remove_dir_all(state.join("s")).unwrap();
    let hierarchies: Vec<_> = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().collect();
    let group = |id: &str| {
        let name = format!("{}/kubepods/{id}", machine.cgroup_root);
        hierarchies
            .iter()
            .map(|entry| entry.path().join(&name))
            .filter(|path| path.parent().is_some_and(std::path::Path::exists))
            .collect::<Vec<_>>()
    };
    // As left by a supervisor that was killed before it wrote its record.
    for path in group("half-made") {
        std::fs::create_dir(path).unwrap();
    }
    let unknown = [group("half-made"), group("s")].concat();
    assert!(
        !unknown.is_empty() && unknown.iter().all(|path| path.exists()),
        "{unknown:?}"
    );
    machine.reopen().await;
    ended(&[pid, stopped.as_raw()]).await;
    assert!(!unknown.iter().any(|path| path.exists()));
    let sandboxes = machine.runtime.sandboxes().await.unwrap();
    assert!(sandboxes.len() == 1 && !sandboxes[0].lost, "{sandboxes:?}");
    assert_eq!(
        machine
            .exec("kept", "k", "exit 3", Duration::from_mins(1))
            .await
            .exit_code,
        3
    );
    assert!(std::path::Path::new(&format!("/proc/{kept}")).exists());
    // The same while an agent runs: the cleanup finds it.
    let supervisor = holders::supervisor(&machine, "kept");
    std::fs::remove_dir_all(state.join("kept")).unwrap();
    machine.runtime.cleanup().await.unwrap();
    ended(&[kept, supervisor]).await;
    machine.finish().await;
}

#[tokio::test]
async fn a_killed_supervisor_is_noticed_where_containers_share_their_processes() {
    let mut machine = Machine::new("lost-shared").await;
    let mut spec = Machine::sandbox_spec("s");
    spec.share_process_namespace = true;
    machine.runtime.create_sandbox(spec, connected()).await.unwrap();
    let pid = machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let supervisor = nix::unistd::Pid::from_raw(holders::supervisor(&machine, "s"));
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(matches!(machine.event().await, Event::SandboxLost { .. }));
    ended(&[pid]).await;
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn the_end_of_a_shared_pid_namespace_is_the_end_of_its_sandbox() {
    let mut machine = Machine::new("lost-pids").await;
    let mut spec = Machine::sandbox_spec("s");
    spec.share_process_namespace = true;
    machine.runtime.create_sandbox(spec, connected()).await.unwrap();
    let pid = machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let supervisor = holders::supervisor(&machine, "s");
    let first = || {
        let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        let children = children.split_whitespace().map(|child| child.parse::<i32>().unwrap());
        children.filter(|child| *child != pid).collect::<Vec<_>>()
    };
    // The child that created the container may still be exiting.
    let alone = async {
        while first().len() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), alone)
        .await
        .unwrap_or_else(|_| panic!("{:?}", first()));
    let first = first();
    assert_eq!(first.len(), 1, "{first:?}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first[0]), nix::sys::signal::Signal::SIGKILL).unwrap();
    while !matches!(machine.event().await, Event::SandboxLost { .. }) {}
    ended(&[pid, supervisor]).await;
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn a_killed_supervisor_is_noticed_before_its_container_is_started() {
    let mut machine = Machine::new("lost-created").await;
    machine.sandbox("s").await;
    let spec = machine.container("c", &["/bin/sleep", "1000"]);
    machine.runtime.create_container("s", spec).await.unwrap();
    let supervisor = nix::unistd::Pid::from_raw(holders::supervisor(&machine, "s"));
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(matches!(machine.event().await, Event::SandboxLost { .. }));
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

#[tokio::test]
async fn a_record_that_a_power_cut_emptied_takes_only_its_own_sandbox() {
    let mut machine = Machine::new("damaged").await;
    for sandbox in ["whole", "damaged"] {
        machine.sandbox(sandbox).await;
        let pid = machine
            .run(sandbox, machine.container(sandbox, &["/bin/sleep", "1000"]))
            .await;
        let supervisor = nix::unistd::Pid::from_raw(holders::supervisor(&machine, sandbox));
        nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
        assert!(matches!(machine.event().await, Event::SandboxLost { .. }));
        ended(&[pid]).await;
    }
    let directory = machine.directory.path().join("state/sandboxes/damaged");
    std::fs::write(directory.join("sandbox.json"), "").unwrap();
    machine.crash().await;
    machine.reopen().await;
    let known = machine.runtime.sandboxes().await.unwrap();
    assert_eq!(known.iter().map(|known| &*known.id).collect::<Vec<_>>(), ["whole"]);
    assert!(!directory.exists());
    machine.runtime.remove_sandbox("whole").await.unwrap();
    machine.finish().await;
}

contract!(attack_25_an_agent_that_dies_at_any_moment_leaks_nothing,);
