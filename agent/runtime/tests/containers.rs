//! Contract of all runtimes, as root: starts, exits, logs, limits and exec.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::time::Duration;

use common::{Kind, Machine, connected, contract, eventually, holders, limit};
use runtime::{Error, Event, Refusal, State, User};

async fn a_container_runs_logs_and_tells_its_exit_code(kind: Kind) {
    let mut machine = Machine::of(kind, "runs").await;
    machine.sandbox("s").await;
    machine
        .run(
            "s",
            machine.shell("c", "echo $GREETING; echo oops >&2; printf tail; exit 7"),
        )
        .await;
    let exit = machine.exit().await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (7, None, false));
    let log = fs::read_to_string(machine.log("c")).unwrap();
    let tags: Vec<&str> = log.lines().map(|line| &line[31..]).collect();
    assert!(
        tags.contains(&"stdout F hello") && tags.contains(&"stderr F oops") && tags.contains(&"stdout P tail"),
        "{log}"
    );
    let listed = machine.runtime.sandboxes().await.unwrap();
    assert!(matches!(&listed[0].containers[0].state, State::Exited { exit, .. } if exit.code == 7));
    machine.finish().await;
}

async fn signals_end_a_container_and_are_told(kind: Kind) {
    let mut machine = Machine::of(kind, "signals").await;
    machine.sandbox("s").await;
    machine
        .run(
            "s",
            machine.shell("term", "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done"),
        )
        .await;
    eventually("the script runs", || machine.output("term").contains("up")).await;
    machine.runtime.signal("s", "term", 15).await.unwrap();
    assert_eq!(machine.exit().await.code, 3);
    machine
        .run("s", machine.container("kill", &["/bin/sleep", "1000"]))
        .await;
    machine.runtime.signal("s", "kill", 9).await.unwrap();
    let exit = machine.exit().await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (137, Some(9), false));
    machine.runtime.signal("s", "kill", 15).await.unwrap();
    // SIGRTMIN+3 tells systemd to halt; its default action terminates a program.
    let script = "trap 'exit 6' 37; echo up; while :; do sleep 0.01; done";
    machine.run("s", machine.shell("real", script)).await;
    eventually("the script runs", || machine.output("real").contains("up")).await;
    let ended = machine.exec("s", "real", "kill -37 $$", Duration::from_secs(20)).await;
    assert_eq!((ended.exit_code, ended.timed_out), (128 + 37, false));
    machine.runtime.signal("s", "real", 37).await.unwrap();
    assert_eq!(machine.exit().await.code, 6);
    machine.finish().await;
}

async fn a_container_over_its_memory_limit_is_oom_killed(kind: Kind) {
    let mut machine = Machine::of(kind, "oom").await;
    machine.sandbox("s").await;
    let mut spec = machine.shell("c", "dd if=/dev/zero of=/dev/null bs=200M count=2");
    limit(&mut spec, Some(32 << 20), None, None);
    let argv: Vec<String> = ["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=2"]
        .map(str::to_owned)
        .to_vec();
    let mut process = spec.spec.process().clone().unwrap();
    process.set_args(Some(argv));
    spec.spec.set_process(Some(process));
    machine.run("s", spec).await;
    let exit = machine.exit().await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (137, Some(9), true));
    // Also for a program that goes on when its child was killed.
    let mut spec = machine.shell("d", "dd if=/dev/zero of=/dev/null bs=200M count=2; exit 5");
    limit(&mut spec, Some(32 << 20), None, None);
    machine.run("s", spec).await;
    let exit = machine.exit().await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (5, None, true));
    machine.finish().await;
}

async fn cpu_and_pids_limits_are_set_on_the_containers_cgroup(kind: Kind) {
    let mut machine = Machine::of(kind, "limits").await;
    machine.sandbox("s").await;
    let mut spec = machine.shell("c", "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo all");
    limit(&mut spec, None, Some(50_000), Some(10));
    machine.run("s", spec).await;
    let group = format!("{}/kubepods/s/c", machine.cgroup_root);
    let quota = fs::read_to_string(format!("/sys/fs/cgroup/cpu/{group}/cpu.cfs_quota_us"))
        .or_else(|_| fs::read_to_string(format!("/sys/fs/cgroup/{group}/cpu.max")));
    assert!(quota.unwrap().starts_with("50000"));
    let exit = machine.exit().await;
    assert_ne!(exit.code, 0);
    assert!(!machine.output("c").contains("all"));
    machine.finish().await;
}

async fn exec_runs_in_the_container_with_its_environment_and_user(kind: Kind) {
    let machine = Machine::of(kind, "exec").await;
    machine.sandbox("s").await;
    let mut spec = machine.container("c", &["/bin/sleep", "1000"]);
    spec.user = User {
        user: "web".to_owned(),
        group: None,
        supplementary: vec![5],
        must_not_be_root: true,
        strict_groups: false,
    };
    machine.run("s", spec).await;
    let result = machine
        .exec("s", "c", "echo $GREETING $HOME; id; exit 4", Duration::from_mins(1))
        .await;
    let output = String::from_utf8(result.output).unwrap();
    assert_eq!((result.exit_code, result.timed_out), (4, false), "{output}");
    assert!(output.starts_with("hello /srv\n"), "{output}");
    assert!(
        output.contains("uid=101(web) gid=102(web) groups=5,77(logs),102(web)"),
        "{output}"
    );
    let caps = machine
        .exec(
            "s",
            "c",
            "grep -E 'Cap|NoNew|Groups' /proc/self/status",
            Duration::from_mins(1),
        )
        .await;
    let init = machine
        .exec(
            "s",
            "c",
            "grep -E 'Cap|NoNew|Groups' /proc/1/status",
            Duration::from_mins(1),
        )
        .await;
    assert_eq!(String::from_utf8(caps.output), String::from_utf8(init.output));
    let missing = runtime::ExecSpec {
        argv: vec!["no-such-program".to_owned()],
        env: Vec::new(),
        timeout: Duration::from_secs(5),
        output_limit: 100,
    };
    let error = machine.runtime.exec("s", "c", missing).await.unwrap_err().to_string();
    let because = "exec: \"no-such-program\": executable file not found in $PATH";
    assert_eq!(error, format!("unable to start container process: {because}"));
    machine.finish().await;
}

async fn attack_15_an_exec_that_prints_for_ever_is_cut_and_killed(kind: Kind) {
    let machine = Machine::of(kind, "exec-flood").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let result = machine.exec("s", "c", "yes", Duration::from_secs(2)).await;
    assert!(result.timed_out && result.truncated);
    assert_eq!((result.output.len(), result.exit_code), (16 << 10, 137));
    machine.finish().await;
}

/// Waits for processes that are as wanted: what was killed is gone soon, not at once.
async fn processes(machine: &Machine, container: &str, wanted: impl Fn(&str) -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let left = machine.exec("s", container, "ps", Duration::from_mins(1)).await;
        let left = String::from_utf8(left.output).unwrap();
        if wanted(&left) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{left}");
    }
}

async fn attack_16_what_an_exec_leaves_behind_is_killed_and_not_waited_for(kind: Kind) {
    let machine = Machine::of(kind, "exec-orphans").await;
    machine.sandbox("s").await;
    let pid = machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let supervisor = holders::holder(&machine, "s", pid);
    let before = open_files(supervisor);
    for _ in 0..30 {
        let result = machine
            .exec("s", "c", "(sleep 1000; echo never) & echo done", Duration::from_mins(1))
            .await;
        assert_eq!((result.exit_code, result.output.as_slice()), (0, b"done\n".as_slice()));
    }
    processes(&machine, "c", |left| left.matches("sleep 1000").count() == 1).await;
    // A shim may have closed files of the container itself, too.
    eventually("no file stays open", || open_files(supervisor) <= before).await;
    machine.finish().await;
}

/// Open files, without those for processes that are gone: newer shims keep them until a garbage
/// collection.
fn open_files(pid: i32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let of_gone = |text: String| text.lines().any(|line| line == "Pid:\t-1");
    files
        .filter(|file| !fs::read_to_string(file.path()).is_ok_and(of_gone))
        .count()
}

async fn containers_outlive_the_agent_and_are_adopted_by_the_next(kind: Kind) {
    let mut machine = Machine::of(kind, "adopt").await;
    machine.sandbox("s").await;
    let pid = machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    machine
        .run(
            "s",
            machine.shell("short", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"),
        )
        .await;
    eventually("the script runs", || machine.output("short").contains("up")).await;
    let before = machine.runtime.sandboxes().await.unwrap();
    machine.crash().await;
    // This one exits while no agent runs.
    let short = before[0]
        .containers
        .iter()
        .find(|container| container.id == "short")
        .unwrap();
    let State::Running { pid: short, .. } = short.state else {
        panic!("{short:?}")
    };
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(short), nix::sys::signal::Signal::SIGTERM).unwrap();
    machine.reopen().await;
    loop {
        let after = machine.runtime.sandboxes().await.unwrap();
        assert_eq!(after[0].created_at, before[0].created_at);
        assert!(!after[0].lost);
        assert_eq!(after[0].containers[0], before[0].containers[0]);
        assert!(matches!(after[0].containers[0].state, State::Running { pid: adopted, .. } if adopted == pid));
        match &after[0].containers[1].state {
            State::Exited { exit, .. } => break assert_eq!(exit.code, 9),
            State::Running { .. } | State::Created => tokio::task::yield_now().await,
        }
    }
    machine.runtime.signal("s", "c", 9).await.unwrap();
    loop {
        if let Event::ContainerExited { container_id, exit, .. } = machine.event().await
            && container_id == "c"
        {
            break assert_eq!(exit.code, 137);
        }
    }
    machine.finish().await;
}

#[tokio::test]
async fn a_killed_supervisor_is_noticed_and_its_containers_die() {
    let mut machine = Machine::new("lost").await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(holders::supervisor(&machine, "s")),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    assert_eq!(
        machine.event().await,
        Event::SandboxLost {
            sandbox_id: "s".to_owned()
        }
    );
    let sandbox = machine.runtime.sandboxes().await.unwrap().remove(0);
    assert!(sandbox.lost);
    assert!(matches!(&sandbox.containers[0].state, State::Exited { exit, .. } if exit.code == 137));
    assert!(matches!(
        machine.runtime.start_container("s", "c").await,
        Err(Error::SandboxLost(_))
    ));
    machine.runtime.remove_container("s", "c").await.unwrap();
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.runtime.remove_sandbox("s").await.unwrap();
    machine.finish().await;
}

async fn removal_works_in_any_state_and_twice(kind: Kind) {
    let machine = Machine::of(kind, "remove").await;
    machine.runtime.remove_sandbox("never").await.unwrap();
    machine.runtime.remove_container("never", "c").await.unwrap();
    machine.sandbox("s").await;
    machine
        .runtime
        .create_container("s", machine.container("created", &["/bin/sleep", "1000"]))
        .await
        .unwrap();
    machine
        .run("s", machine.container("running", &["/bin/sleep", "1000"]))
        .await;
    for id in ["created", "running", "running", "unknown"] {
        machine.runtime.remove_container("s", id).await.unwrap();
    }
    assert!(machine.runtime.sandboxes().await.unwrap()[0].containers.is_empty());
    machine
        .run("s", machine.container("running", &["/bin/sleep", "1000"]))
        .await;
    let (first, second) = tokio::join!(machine.runtime.remove_sandbox("s"), machine.runtime.remove_sandbox("s"));
    first.unwrap();
    second.unwrap();
    assert!(machine.runtime.sandboxes().await.unwrap().is_empty());
    machine.finish().await;
}

async fn a_failed_creation_leaves_nothing_and_blocks_nothing(kind: Kind) {
    let mut machine = Machine::of(kind, "failed").await;
    machine.sandbox("s").await;
    let missing = machine.container("c", &["/no/such/program"]);
    let error = machine.runtime.create_container("s", missing).await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::Program(_))), "{error}");
    assert!(
        error.to_string().contains("/no/such/program") && !error.to_string().contains("cleanup"),
        "{error}"
    );
    for (program, why) in [
        ("absent", "exec: \"absent\": executable file not found in $PATH"),
        (
            "/bin/absent",
            "exec: \"/bin/absent\": stat /bin/absent: no such file or directory",
        ),
        ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
    ] {
        let missing = machine.container("c", &[program]);
        let error = machine.runtime.create_container("s", missing).await.unwrap_err();
        assert!(error.to_string().ends_with(why), "{error}");
    }
    for id in ["", "..", "a/b", ".hidden", "supervisors"] {
        let mut spec = Machine::sandbox_spec(id);
        assert!(
            matches!(
                machine.runtime.create_sandbox(spec.clone(), connected()).await,
                Err(Error::Invalid { .. })
            ),
            "{id}"
        );
        assert!(machine.runtime.remove_container("s", id).await.is_err(), "{id}");
        spec.id = "x".repeat(65);
        assert!(machine.runtime.create_sandbox(spec, connected()).await.is_err());
    }
    let mut root = machine.container("c", &["/bin/sleep", "1"]);
    root.user.must_not_be_root = true;
    assert!(matches!(
        machine.runtime.create_container("s", root).await,
        Err(Error::RunsAsRoot)
    ));
    let state = machine.directory.path().join("state/sandboxes/s/containers");
    assert_eq!(fs::read_dir(state).unwrap().count(), 0);
    machine.run("s", machine.shell("c", "exit 0")).await;
    assert_eq!(machine.exit().await.code, 0);
    assert!(matches!(
        machine
            .runtime
            .create_sandbox(Machine::sandbox_spec("s"), connected())
            .await,
        Err(Error::SandboxExists(_))
    ));
    let mut broken = Machine::sandbox_spec("other");
    broken.netns = Some("/no/such/netns".into());
    assert!(machine.runtime.create_sandbox(broken, connected()).await.is_err());
    assert_eq!(machine.runtime.sandboxes().await.unwrap().len(), 1);
    machine.finish().await;
}

async fn containers_of_a_pod_can_share_their_processes(kind: Kind) {
    let mut machine = Machine::of(kind, "shared").await;
    let mut spec = Machine::sandbox_spec("s");
    spec.share_process_namespace = true;
    machine.runtime.create_sandbox(spec, connected()).await.unwrap();
    machine
        .run("s", machine.container("one", &["/bin/sleep", "1234"]))
        .await;
    // Until then, the runtime's own process may be there.
    processes(&machine, "one", |seen| seen.contains("sleep 1234")).await;
    machine.run("s", machine.shell("two", "sleep 4321 & ps; exit 0")).await;
    assert_eq!(machine.exit().await.code, 0);
    assert!(machine.output("two").contains("sleep 1234"));
    processes(&machine, "one", |left| !left.contains("sleep 4321")).await;
    machine.finish().await;
}

contract!(
    a_container_runs_logs_and_tells_its_exit_code,
    signals_end_a_container_and_are_told,
    a_container_over_its_memory_limit_is_oom_killed,
    cpu_and_pids_limits_are_set_on_the_containers_cgroup,
    exec_runs_in_the_container_with_its_environment_and_user,
    attack_15_an_exec_that_prints_for_ever_is_cut_and_killed,
    attack_16_what_an_exec_leaves_behind_is_killed_and_not_waited_for,
    containers_outlive_the_agent_and_are_adopted_by_the_next,
    removal_works_in_any_state_and_twice,
    a_failed_creation_leaves_nothing_and_blocks_nothing,
    containers_of_a_pod_can_share_their_processes,
);
