//! Sharing between the containers of a pod, and their isolation.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use common::remains::groups;
use common::{Kind, Machine, connected, contract, eventually, limit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::stat::{SFlag, major, minor};
use runtime::{ContainerSpec, Error};

const LIMIT: Duration = Duration::from_secs(20);

/// Adds a seccomp profile that refuses `mkdir`, with an error that nothing else returns.
fn filter(spec: &mut ContainerSpec, no_new_privileges: Option<bool>) {
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], "syscalls": [
        {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 55}]}"#;
    let mut linux = spec.spec.linux().clone().unwrap_or_default();
    linux.set_seccomp(Some(serde_json::from_str(profile).unwrap()));
    spec.spec.set_linux(Some(linux));
    let mut process = spec.spec.process().clone().unwrap();
    process.set_no_new_privileges(no_new_privileges);
    spec.spec.set_process(Some(process));
}

async fn a_seccomp_filter_holds_with_and_without_new_privileges_and_for_every_user(kind: Kind) {
    let machine = Machine::of(kind, "seccomp").await;
    machine.sandbox("s").await;
    let script = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; busybox mkdir /tmp/d 2>&1";
    for (index, flag) in [Some(false), None, Some(true)].into_iter().enumerate() {
        for user in ["0", "web"] {
            let id = format!("c{index}{user}");
            let mut spec = machine.shell(&id, &format!("{script}; exec sleep 1000"));
            spec.user.user = user.to_owned();
            filter(&mut spec, flag);
            machine.run("s", spec).await;
            eventually("it is refused", || machine.output(&id).contains("mkdir:")).await;
            let own = machine.output(&id);
            let exec = machine.exec("s", &id, script, LIMIT).await;
            let exec = String::from_utf8(exec.output).unwrap();
            for text in [own, exec] {
                let privileges = format!("NoNewPrivs:\t{}\n", u8::from(flag == Some(true)));
                assert!(
                    text.contains("Seccomp:\t2\n") && text.contains(&privileges),
                    "{flag:?} {user}: {text}"
                );
                assert!(
                    text.contains("mkdir: can't create directory '/tmp/d': No anode"),
                    "{text}"
                );
            }
        }
    }
    machine.finish().await;
}

/// A machine without a hugetlb controller has no huge pages.
async fn no_huge_pages_can_be_had_everywhere(kind: Kind) {
    let machine = Machine::of(kind, "pages").await;
    machine.sandbox("s").await;
    let mut spec = machine.shell("c", "exec sleep 1000");
    let mut linux = spec.spec.linux().clone().unwrap_or_default();
    let mut resources = linux.resources().clone().unwrap_or_default();
    let limit = oci_spec::runtime::LinuxHugepageLimitBuilder::default()
        .page_size("2MB")
        .limit(0_i64)
        .build()
        .unwrap();
    resources.set_hugepage_limits(Some(vec![limit]));
    linux.set_resources(Some(resources));
    spec.spec.set_linux(Some(linux));
    machine.run("s", spec).await;
    machine.finish().await;
}

async fn root_writes_nothing_where_it_sees_its_control_groups(kind: Kind) {
    let machine = Machine::of(kind, "groups").await;
    machine.sandbox("s").await;
    let mut spec = machine.shell("c", "exec sleep 1000");
    let process = spec.spec.process_mut().as_mut().unwrap();
    let mut capabilities = process.capabilities().clone().unwrap_or_default();
    let all = std::collections::HashSet::from([oci_spec::runtime::Capability::DacOverride]);
    capabilities
        .set_ambient(None)
        .set_inheritable(None)
        .set_bounding(Some(all.clone()))
        .set_permitted(Some(all.clone()))
        .set_effective(Some(all));
    process.set_capabilities(Some(capabilities));
    machine.run("s", spec).await;
    let script = "for at in /sys /sys/fs/cgroup /sys/fs/cgroup/*/; do busybox mkdir $at/made 2>/dev/null && echo $at; done; \
        busybox ls /sys/fs/cgroup | wc -l";
    let told = machine.exec("s", "c", script, LIMIT).await;
    let told = String::from_utf8(told.output).unwrap();
    assert!(told.trim().parse::<u32>().is_ok_and(|seen| seen > 0), "{told}");
    machine.finish().await;
}

#[allow(unsafe_code, reason = "sigaction is unsafe for handlers; this ignores signals")]
async fn what_the_agent_was_started_to_ignore_stops_containers(kind: Kind) {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGPIPE] {
        // SAFETY: no handler is installed.
        unsafe { sigaction(signal, &ignore) }.unwrap();
    }
    let machine = Machine::of(kind, "ignored").await;
    machine.sandbox("s").await;
    machine.run("s", machine.shell("c", "echo up; exec sleep 1000")).await;
    // Until then, the runtime's own process may be there.
    eventually("the program runs", || machine.output("c") == "up\n").await;
    let script = "grep -hE 'Sig(Ign|Blk)' /proc/1/status /proc/self/status | sort -u";
    let status = machine.exec("s", "c", script, LIMIT).await;
    let status = String::from_utf8(status.output).unwrap();
    // The C library reserves two signals for itself.
    let sets: Vec<u64> = status
        .lines()
        .map(|line| u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap() & !(3 << 31))
        .collect();
    assert!(!sets.is_empty() && sets.iter().all(|set| *set == 0), "{status}");
    machine.finish().await;
}

async fn an_exec_that_was_oom_killed_is_told_at_the_end_of_its_container(kind: Kind) {
    let mut machine = Machine::of(kind, "oom-exec").await;
    machine.sandbox("s").await;
    let mut spec = machine.container("c", &["/bin/sleep", "1000"]);
    limit(&mut spec, Some(32 << 20), None, None);
    machine.run("s", spec).await;
    let killed = machine
        .exec("s", "c", "exec dd if=/dev/zero of=/dev/null bs=200M count=2", LIMIT)
        .await;
    assert_eq!(killed.exit_code, 137);
    // Later processes do not change that.
    assert_eq!(machine.exec("s", "c", "true", LIMIT).await.exit_code, 0);
    machine.runtime.signal("s", "c", 9).await.unwrap();
    let exit = machine.exit().await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (137, Some(9), true));
    let mut spec = machine.container("d", &["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=2"]);
    limit(&mut spec, Some(32 << 20), None, None);
    machine.run("s", spec).await;
    assert!(machine.exit().await.oom_killed);
    machine.finish().await;
}

async fn containers_of_a_pod_share_their_memory_and_no_other_pod_does(kind: Kind) {
    let machine = Machine::of(kind, "memory").await;
    for pod in ["s", "t"] {
        machine.sandbox(pod).await;
    }
    let mut host = Machine::sandbox_spec("h");
    host.host_ipc = true;
    machine.runtime.create_sandbox(host, connected()).await.unwrap();
    for (pod, id) in [("s", "one"), ("s", "two"), ("t", "other"), ("h", "host")] {
        let mut spec = machine.container(id, &["/bin/sleep", "1000"]);
        "web".clone_into(&mut spec.user.user);
        machine.run(pod, spec).await;
    }
    let ask = async |pod: &str, id: &str, script: &str| {
        let result = machine.exec(pod, id, script, LIMIT).await;
        String::from_utf8(result.output).unwrap()
    };
    assert_eq!(ask("s", "one", "echo hello >/dev/shm/note").await, "");
    assert_eq!(ask("s", "two", "cat /dev/shm/note").await, "hello\n");
    assert_eq!(ask("t", "other", "ls /dev/shm").await, "");
    let mounted = ask("s", "two", "grep ' /dev/shm ' /proc/mounts").await;
    assert!(
        mounted.contains("nosuid,nodev,noexec") && mounted.contains("size=65536k"),
        "{mounted}"
    );
    assert!(
        ask("s", "two", "dd if=/dev/zero of=/dev/shm/full bs=1M count=65")
            .await
            .contains("No space left")
    );
    // A container created later, such as a restarted one, finds the existing file.
    machine.runtime.remove_container("s", "two").await.unwrap();
    machine.run("s", machine.shell("two", "exec sleep 1000")).await;
    assert_eq!(ask("s", "two", "cat /dev/shm/note").await, "hello\n");
    let shared = tempfile::Builder::new()
        .prefix("skiff-")
        .tempfile_in("/dev/shm")
        .unwrap();
    let name = shared.path().file_name().unwrap().to_str().unwrap();
    assert!(ask("h", "host", "ls /dev/shm").await.contains(name));
    assert!(!ask("s", "one", "ls /dev/shm").await.contains(name));
    let ipc = "ls -l /proc/self/ns/ipc | tr ' ' '\\n' | grep ipc:";
    let (one, two, other, host) = (
        ask("s", "one", ipc).await,
        ask("s", "two", ipc).await,
        ask("t", "other", ipc).await,
        ask("h", "host", ipc).await,
    );
    assert!(one == two && one != other && one != host, "{one} {two} {other} {host}");
    assert_eq!(
        std::fs::read_link("/proc/self/ns/ipc").unwrap().to_str(),
        Some(host.trim())
    );
    // Without its own network namespace a pod has the machine's UTS namespace.
    let uts = ask("s", "one", "ls -l /proc/self/ns/uts | tr ' ' '\\n' | grep uts:").await;
    let own = std::fs::read_link("/proc/self/ns/uts").unwrap();
    assert_eq!(own.to_str(), Some(uts.trim()));
    machine.finish().await;
}

/// Allows a container to use every device.
fn allow(spec: &mut ContainerSpec) {
    let every = r#"{"devices": [{"allow": true, "access": "rwm"}]}"#;
    let mut linux = spec.spec.linux().clone().unwrap_or_default();
    linux.set_resources(Some(serde_json::from_str(every).unwrap()));
    spec.spec.set_linux(Some(linux));
}

/// Collects the machine's devices that not every container has, with their numbers in hexadecimal
/// and their modes.
fn devices(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (name, metadata) = (entry.file_name(), entry.metadata().unwrap());
        let skipped = ["pts", "shm", "mqueue", "fd", "console", "ptmx"];
        if skipped.iter().any(|skipped| name == *skipped) {
            continue;
        }
        if metadata.is_dir() {
            devices(&entry.path(), found);
        } else if [SFlag::S_IFCHR, SFlag::S_IFBLK]
            .contains(&(SFlag::from_bits_truncate(metadata.mode()) & SFlag::S_IFMT))
        {
            let (path, number) = (entry.path(), metadata.rdev());
            let (path, mode) = (path.display(), metadata.mode());
            found.push(format!("{path} {mode:x} {:x}:{:x}", major(number), minor(number)));
        }
    }
}

async fn who_may_use_every_device_finds_those_of_the_machine(kind: Kind) {
    let machine = Machine::of(kind, "devices").await;
    machine.sandbox("s").await;
    let mut all = machine.shell("all", "exec sleep 1000");
    allow(&mut all);
    machine.run("s", all).await;
    machine.run("s", machine.shell("few", "exec sleep 1000")).await;
    let mut wanted = Vec::new();
    devices(Path::new("/dev"), &mut wanted);
    wanted.sort();
    assert!(wanted.iter().any(|line| line.starts_with("/dev/kmsg ")), "{wanted:?}");
    let script = "busybox find /dev '(' -type c -o -type b ')' ! -name ptmx ! -path '/dev/pts/*' -exec busybox stat -c '%n %f %t:%T' {} +";
    let seen = async |id: &str| {
        let told = machine.exec("s", id, script, LIMIT).await;
        let text = String::from_utf8(told.output).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(seen("all").await, wanted);
    let few = seen("few").await;
    assert!(!few.iter().any(|line| line.starts_with("/dev/kmsg ")), "{few:?}");
    // The devices can be used, and the container's own ones are still its own.
    let told = machine
        .exec("s", "all", ": >/dev/kmsg && busybox readlink /dev/ptmx", LIMIT)
        .await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "pts/ptmx\n");
    machine.finish().await;
}

fn has_group(machine: &Machine, sandbox: &str) -> bool {
    !groups(&format!("{}/kubepods/{sandbox}", machine.cgroup_root)).is_empty()
}

async fn until_group(machine: &Machine, sandbox: &str) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !has_group(machine, sandbox) {
        assert!(tokio::time::Instant::now() < deadline, "no group of {sandbox}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn a_sandbox_waits_for_its_network_and_without_one_nothing_of_it_is_left(kind: Kind) {
    let machine = Machine::of(kind, "unconnected").await;
    let making = |id: &str, connected| machine.runtime.create_sandbox(Machine::sandbox_spec(id), connected);
    let (told, connected) = tokio::sync::oneshot::channel();
    let network = async {
        // Everything that needs no network is created meanwhile.
        until_group(&machine, "s").await;
        told.send(()).unwrap();
    };
    let (made, ()) = tokio::join!(making("s", connected), network);
    assert_eq!(made.unwrap().id, "s");
    let (never, connected) = tokio::sync::oneshot::channel();
    let network = async {
        until_group(&machine, "t").await;
        drop(never);
    };
    let (failed, ()) = tokio::join!(making("t", connected), network);
    assert!(
        matches!(&failed, Err(Error::Unconnected(id)) if id == "t"),
        "{failed:?}"
    );
    assert!(!machine.directory.path().join("state/sandboxes/t").exists());
    assert!(!has_group(&machine, "t"));
    let all = machine.runtime.sandboxes().await.unwrap();
    assert_eq!(all.iter().map(|known| known.id.as_str()).collect::<Vec<_>>(), ["s"]);
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    machine.finish().await;
}

contract!(
    a_sandbox_waits_for_its_network_and_without_one_nothing_of_it_is_left,
    a_seccomp_filter_holds_with_and_without_new_privileges_and_for_every_user,
    an_exec_that_was_oom_killed_is_told_at_the_end_of_its_container,
    containers_of_a_pod_share_their_memory_and_no_other_pod_does,
    no_huge_pages_can_be_had_everywhere,
    root_writes_nothing_where_it_sees_its_control_groups,
    what_the_agent_was_started_to_ignore_stops_containers,
    who_may_use_every_device_finds_those_of_the_machine,
);
