//! Images and programs that attack the machine: each must fail clearly or change nothing outside
//! its container.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use common::{Kind, Machine, contract, eventually};
use runtime::{ContainerSpec, Event, Limits};

/// Adds a second layer that replaces one directory of the first.
fn poisoned(machine: &Machine, name: &str, make: impl FnOnce(&Path)) -> ContainerSpec {
    let layer = machine.directory.path().join(format!("poison-{name}"));
    common::busybox(&layer);
    make(&layer);
    let mut spec = machine.shell(name, "exit 0");
    let daemon = machine.daemon.as_ref();
    spec.snapshot = daemon.map(|daemon| daemon.snapshot(&format!("poison-{name}"), &layer));
    spec.layers = vec![layer];
    spec
}

fn replace_by_link(layer: &Path, name: &str, target: &str) {
    fs::remove_dir(layer.join(name)).unwrap();
    symlink(target, layer.join(name)).unwrap();
}

/// State of the machine that must not change.
fn machine_state() -> (Vec<String>, String, String) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts
        .lines()
        // Mounts of tests running in parallel, and of containerd for a running container.
        .filter(|line| !line.contains("/sys/fs/cgroup") && !line.contains("/tmp/") && !line.contains("/run/netns"))
        .map(str::to_owned)
        .collect();
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    (mounts, pattern, fs::read_to_string("/etc/passwd").unwrap())
}

async fn attack_09_a_root_whose_proc_sys_or_dev_is_a_link_does_not_start(kind: Kind) {
    let machine = Machine::of(kind, "attack-09").await;
    machine.sandbox("s").await;
    let before = machine_state();
    let outside = machine.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let outside = outside.to_str().unwrap().to_owned();
    for (index, name) in ["proc", "sys", "dev"].into_iter().enumerate() {
        for (kind, target) in ["/tmp", "../../../../tmp", outside.as_str()].into_iter().enumerate() {
            let id = format!("c{index}{kind}");
            let spec = poisoned(&machine, &id, |layer| replace_by_link(layer, name, target));
            match machine.runtime.create_container("s", spec).await {
                // A link at /dev or /sys may be followed inside the root: then the mount is at its
                // target.
                Ok(_) => assert_ne!(name, "proc", "proc -> {target}"),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            machine.runtime.remove_container("s", &id).await.unwrap();
        }
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(machine_state(), before);
    machine.finish().await;
}

async fn attack_07_a_pipe_in_place_of_the_groups_holds_nobody_up(kind: Kind) {
    let machine = Machine::of(kind, "attack-07-pipe").await;
    machine.sandbox("s").await;
    let spec = poisoned(&machine, "c", |layer| {
        fs::create_dir_all(layer.join("etc")).unwrap();
        fs::remove_file(layer.join("etc/group")).ok();
        nix::unistd::mkfifo(
            &layer.join("etc/group"),
            nix::sys::stat::Mode::from_bits_truncate(0o644),
        )
        .unwrap();
    });
    let created = machine.runtime.create_container("s", spec);
    let created = tokio::time::timeout(Duration::from_secs(20), created).await.unwrap();
    if let Err(error) = created {
        assert!(
            error.to_string().contains("read /etc/group: it is no regular file"),
            "{error}"
        );
    }
    machine.finish().await;
}

async fn attack_10_a_dev_null_of_the_image_is_not_what_paths_are_masked_with(kind: Kind) {
    let mut machine = Machine::of(kind, "attack-10").await;
    machine.sandbox("s").await;
    let before = machine_state();
    let spec = poisoned(&machine, "c", |layer| {
        symlink("/proc/sys/kernel/core_pattern", layer.join("dev/null")).unwrap();
        symlink("/proc/sysrq-trigger", layer.join("dev/console")).unwrap();
    });
    match machine.runtime.create_container("s", spec).await {
        Ok(_) => {
            machine.runtime.start_container("s", "c").await.unwrap();
            machine.exit().await;
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let script = "echo x >/proc/sys/kernel/core_pattern; echo 1 >/proc/sysrq-trigger; cat /proc/kcore; cat /proc/keys; ls -l /dev/null";
    let mut masked = machine.shell("masked", script);
    "0".clone_into(&mut masked.user.user);
    machine.run("s", masked).await;
    machine.exit().await;
    let output = machine.output("masked");
    assert!(output.contains("core_pattern: Read-only file system"), "{output}");
    assert_eq!(machine_state(), before);
    machine.finish().await;
}

async fn attack_11_no_descriptor_or_directory_of_the_machine_is_open_in_a_container(kind: Kind) {
    let mut machine = Machine::of(kind, "attack-11").await;
    machine.sandbox("s").await;
    for (index, cwd) in ["/proc/self/fd/7", "/proc/self/fd/3/../../..", "/escape"]
        .into_iter()
        .enumerate()
    {
        let id = format!("c{index}");
        let mut spec = poisoned(&machine, &id, |layer| {
            symlink("/proc/self/fd/7", layer.join("escape")).unwrap();
        });
        let mut process = spec.spec.process().clone().unwrap();
        process.set_cwd(cwd.into());
        spec.spec.set_process(Some(process));
        assert!(machine.runtime.create_container("s", spec).await.is_err(), "{cwd}");
    }
    machine
        .run("s", machine.shell("fds", "ls -l /proc/self/fd /proc/1/fd; sleep 1000"))
        .await;
    // Until then, the runtime's own process may be there.
    eventually("the program runs", || !machine.output("fds").is_empty()).await;
    let open = machine
        .exec(
            "s",
            "fds",
            "ls -l /proc/self/fd; echo; ls -l /proc/1/fd",
            Duration::from_mins(1),
        )
        .await;
    let open = String::from_utf8(open.output).unwrap();
    let links: Vec<&str> = open.lines().filter_map(|line| line.split(" -> ").nth(1)).collect();
    assert!(links.len() >= 6, "three each: {open}");
    let listed = |target: &str| {
        let process = target.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/fd"));
        process.is_some_and(|process| process.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let harmless = |target: &&str| target.starts_with("pipe:") || *target == "/dev/null" || listed(target);
    assert!(links.iter().all(harmless), "{open}");
    machine.runtime.signal("s", "fds", 9).await.unwrap();
    machine.exit().await;
    machine.finish().await;
}

#[tokio::test]
async fn attack_12_the_runtimes_program_cannot_be_written_from_a_container() {
    let mut machine = Machine::new("attack-12").await;
    machine.sandbox("s").await;
    // A container is entered by the supervisor's program.
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    let supervisor = common::holders::supervisor(&machine, "s");
    let error = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{supervisor}/exe"))
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS), "{error}");
    // An image whose entry point is the runtime itself.
    let spec = poisoned(&machine, "self", |layer| {
        fs::remove_file(layer.join("bin/sh")).unwrap();
        symlink("/proc/self/exe", layer.join("bin/sh")).unwrap();
    });
    if machine.runtime.create_container("s", spec).await.is_ok() {
        machine.runtime.start_container("s", "self").await.unwrap();
        assert_ne!(machine.exit().await.code, 0);
    }
    machine.finish().await;
}

async fn attack_13_a_log_that_is_a_link_fails_the_creation(kind: Kind) {
    let machine = Machine::of(kind, "attack-13").await;
    machine.sandbox("s").await;
    let victim = machine.directory.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    symlink(&victim, machine.log("c")).unwrap();
    assert!(
        machine
            .runtime
            .create_container("s", machine.shell("c", "echo overwritten"))
            .await
            .is_err()
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    machine.finish().await;
}

async fn attack_39_limits_hold_against_bombs_and_hogs(kind: Kind) {
    let mut machine = Machine::of(kind, "attack-39").await;
    machine.sandbox("good").await;
    machine.run("good", machine.shell("well", "sleep 1000")).await;
    machine.sandbox("s").await;
    let mut bomb = machine.shell("bomb", "b() { b | b & }; b; sleep 1000");
    common::limit(&mut bomb, Some(64 << 20), Some(50_000), Some(50));
    machine.run("s", bomb).await;
    let files = "i=3; while eval \"exec $i</etc/passwd\"; do i=$((i+1)); done";
    let pid = machine
        .run(
            "s",
            machine.shell("files", &format!("ulimit -n 100; sh -c '{files}'; sleep 1000")),
        )
        .await;
    let mut hog = machine.shell("memory", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done");
    common::limit(&mut hog, Some(16 << 20), None, None);
    machine.run("s", hog).await;
    let killed = loop {
        match machine.event().await {
            Event::ContainerExited { container_id, exit, .. } if container_id == "memory" => break exit,
            Event::ContainerExited { container_id, exit, .. } => assert_eq!(container_id, "bomb", "{exit:?}"),
            other @ Event::SandboxLost { .. } => panic!("{other:?}"),
        }
    };
    assert!(killed.oom_killed, "{killed:?}");
    let group = format!("{}/kubepods/s/bomb", machine.cgroup_root);
    let count = |file: &str| {
        let at = [
            format!("/sys/fs/cgroup/pids/{group}/{file}"),
            format!("/sys/fs/cgroup/{group}/{file}"),
        ];
        at.iter()
            .find_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok())
    };
    assert_eq!(count("pids.max"), Some(50));
    assert!(count("pids.current").unwrap() <= 50);
    eventually("the files are limited", || {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let mut lines = limits.lines();
        lines.any(|line| line.starts_with("Max open files") && line.contains(" 100 "))
    })
    .await;
    // The attack affects its own pod at most, and no others.
    let said = machine.exec("good", "well", "echo well", Duration::from_secs(20)).await;
    assert_eq!((said.exit_code, said.output.as_slice()), (0, b"well\n".as_slice()));
    for container in ["bomb", "files", "memory"] {
        machine.runtime.remove_container("s", container).await.unwrap();
    }
    machine.finish().await;
}

/// The pod's quota is lifted while a container of it dies, and holds again afterwards.
#[tokio::test]
async fn attack_39_thousands_that_are_killed_are_not_held_up_by_a_quota() {
    let mut machine = Machine::new("attack-39-quota").await;
    machine.sandbox("s").await;
    machine.run("s", machine.shell("well", "sleep 1000")).await;
    let many = "i=0; while [ $i -lt 3000 ]; do sleep 1000 & i=$((i+1)); done; echo all; wait";
    machine.run("s", machine.shell("many", many)).await;
    let deadline = tokio::time::Instant::now() + Duration::from_mins(3);
    while !machine.output("many").contains("all") {
        assert!(tokio::time::Instant::now() < deadline, "{}", machine.output("many"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let narrow = Limits {
        cpu_quota: Some(1000),
        cpu_period: Some(100_000),
        ..Limits::default()
    };
    machine.runtime.limit("s", None, narrow).await.unwrap();
    machine.runtime.signal("s", "many", 9).await.unwrap();
    assert_eq!(machine.exit().await.signal, Some(9));
    let group = format!("{}/kubepods/s", machine.cgroup_root);
    let quota = fs::read_to_string(format!("/sys/fs/cgroup/cpu/{group}/cpu.cfs_quota_us"))
        .or_else(|_| fs::read_to_string(format!("/sys/fs/cgroup/{group}/cpu.max")));
    assert!(quota.as_ref().unwrap().starts_with("1000"), "{quota:?}");
    machine.finish().await;
}

/// Process that writes a container's log: its supervisor, or containerd's logger.
fn log_writer(machine: &Machine) -> String {
    if machine.kind == Kind::Containerd {
        let file = "state/sandboxes/s/containers/c/logger.pid";
        return fs::read_to_string(machine.directory.path().join(file))
            .unwrap()
            .trim()
            .to_owned();
    }
    common::holders::supervisor(machine, "s").to_string()
}

async fn attack_14_a_flood_of_output_leaves_its_writer_small_and_the_disk_bounded(kind: Kind) {
    let mut machine = Machine::of(kind, "attack-14").await;
    machine.sandbox("s").await;
    machine
        .run(
            "s",
            machine.shell(
                "c",
                "head -c 100000000 /dev/zero; yes | head -c 4000000; echo >/tmp/done; sleep 1000",
            ),
        )
        .await;
    let writer = log_writer(&machine);
    let mut worst = 0;
    loop {
        let rollup = fs::read_to_string(format!("/proc/{writer}/smaps_rollup")).unwrap();
        let anonymous = rollup.lines().find(|line| line.starts_with("Anonymous")).unwrap();
        worst = worst.max(anonymous.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
        let done = machine.exec("s", "c", "cat /tmp/done", Duration::from_secs(20)).await;
        if done.exit_code == 0 {
            break;
        }
    }
    assert!(worst < 2048, "{worst} KiB");
    let logs = fs::read_dir(machine.directory.path().join("logs")).unwrap();
    let sizes: Vec<u64> = logs.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.len() <= 5 && sizes.iter().sum::<u64>() < 55 << 20, "{sizes:?}");
    machine.runtime.signal("s", "c", 9).await.unwrap();
    machine.exit().await;
    machine.finish().await;
}

contract!(
    attack_07_a_pipe_in_place_of_the_groups_holds_nobody_up,
    attack_09_a_root_whose_proc_sys_or_dev_is_a_link_does_not_start,
    attack_10_a_dev_null_of_the_image_is_not_what_paths_are_masked_with,
    attack_11_no_descriptor_or_directory_of_the_machine_is_open_in_a_container,
    attack_13_a_log_that_is_a_link_fails_the_creation,
    attack_39_limits_hold_against_bombs_and_hogs,
    attack_14_a_flood_of_output_leaves_its_writer_small_and_the_disk_bounded,
);

/// The removal must not use a stack frame or an open file per level: that would crash this process,
/// and each later one that finds the leftovers.
#[tokio::test]
async fn attack_5_a_root_of_any_depth_goes_with_its_container() {
    let mut machine = Machine::new("attack-5-deep").await;
    // The longest path has a thousand levels: the existing tree is moved below the next ones.
    let deep = "cd /tmp; p=d; i=1; while [ $i -lt 1000 ]; do p=$p/d; i=$((i+1)); done; \
        i=0; while [ $i -lt 25 ]; do busybox mkdir -p n/$p; busybox mv o n/$p/ 2>/dev/null; busybox mv n o || exit 1; i=$((i+1)); done";
    machine.sandbox("s").await;
    machine.sandbox("t").await;
    for (sandbox, container) in [("s", "removed"), ("t", "left")] {
        machine.run(sandbox, machine.shell(container, deep)).await;
        let exit = machine.exit().await;
        assert_eq!(exit.code, 0, "{}", machine.output(container));
    }
    machine.runtime.remove_container("s", "removed").await.unwrap();
    machine.runtime.remove_sandbox("t").await.unwrap();
    machine.finish().await;
}
