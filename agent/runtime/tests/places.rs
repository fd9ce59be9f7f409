//! Where a container's program begins, how it sees the kernel's `/sys`, and what is said of a mount that fails.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use common::{Kind, Machine, connected, contract};
use oci_spec::runtime::MountBuilder;
use runtime::ContainerSpec;

const LIMIT: Duration = Duration::from_secs(20);

/// A network namespace, held by a process.
struct Network(Child);

impl Network {
    async fn new() -> Self {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "1000"])
            .spawn()
            .unwrap();
        let network = Self(child);
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let made = async {
            while fs::read_link(network.path()).is_ok_and(|found| found == own) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, made).await.expect("a network namespace");
        network
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.0.id()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Gives a container what the machine has at `source`.
fn bind(spec: &mut ContainerSpec, source: &Path, destination: &str) {
    let options = ["rbind", "rprivate", "rw"].map(str::to_owned).to_vec();
    let volume = MountBuilder::default()
        .destination(destination)
        .typ("bind")
        .source(source)
        .options(options)
        .build()
        .unwrap();
    let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
    mounts.push(volume);
    spec.spec.set_mounts(Some(mounts));
}

/// Whichever comes first.
async fn sys_is_closed_for_each_container_alone(kind: Kind) {
    let machine = Machine::of(kind, "sys").await;
    let network = Network::new().await;
    let mut sandbox = Machine::sandbox_spec("s");
    sandbox.netns = Some(network.path());
    machine.runtime.create_sandbox(sandbox, connected()).await.unwrap();
    for (id, open) in [("closed", false), ("open", true), ("again", false)] {
        let mut spec = machine.shell(id, "exec sleep 1000");
        let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
        for mount in mounts
            .iter_mut()
            .filter(|mount| mount.typ().as_deref() == Some("sysfs"))
        {
            let access = if open { "rw" } else { "ro" };
            let options = ["nosuid", "noexec", "nodev", access].map(str::to_owned);
            mount.set_options(Some(options.into()));
        }
        spec.spec.set_mounts(Some(mounts));
        machine.run("s", spec).await;
    }
    for (id, open) in [("closed", false), ("open", true), ("again", false)] {
        let said = machine.exec("s", id, "(echo x >/sys/new) 2>&1", LIMIT).await;
        let said = String::from_utf8(said.output).unwrap();
        assert_eq!(!said.contains("Read-only file system"), open, "{id}: {said}");
    }
    machine.finish().await;
}

/// A volume at `/sys` is nobody else's, and stays as its mount says.
async fn a_volume_at_sys_can_be_written_to(kind: Kind) {
    let machine = Machine::of(kind, "sys-volume").await;
    machine.sandbox("s").await;
    let volume = machine.directory.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let mut spec = machine.shell("c", "exec sleep 1000");
    let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
    mounts.retain(|mount| !mount.destination().starts_with("/sys/"));
    spec.spec.set_mounts(Some(mounts));
    bind(&mut spec, &volume, "/sys");
    machine.run("s", spec).await;
    let said = machine.exec("s", "c", "(echo x >/sys/new) 2>&1", LIMIT).await;
    assert_eq!(String::from_utf8(said.output).unwrap(), "");
    assert_eq!(fs::read_to_string(volume.join("new")).unwrap(), "x\n");
    machine.finish().await;
}

/// As runc has it: root enters, and then becomes the user.
async fn a_program_begins_where_only_root_may_enter(kind: Kind) {
    let machine = Machine::of(kind, "begins").await;
    machine.sandbox("s").await;
    let volume = machine.directory.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o700)).unwrap();
    let mut spec = machine.shell("c", "id -u; exec sleep 1000");
    "101".clone_into(&mut spec.user.user);
    bind(&mut spec, &volume, "/closed");
    let mut process = spec.spec.process().clone().unwrap();
    process.set_cwd("/closed".into());
    spec.spec.set_process(Some(process));
    machine.run("s", spec).await;
    let script = "id -u; ls /closed 2>&1; cat /proc/self/cwd/x 2>&1";
    let said = machine.exec("s", "c", &format!("{script}; exit 3"), LIMIT).await;
    let output = String::from_utf8(said.output).unwrap();
    assert_eq!(said.exit_code, 3, "{output}");
    assert!(output.starts_with("101\n"), "{output}");
    assert!(output.contains("Permission denied"), "{output}");
    let link = machine.exec("s", "c", "ls -l /proc/self/cwd", LIMIT).await;
    let link = String::from_utf8(link.output).unwrap();
    assert!(link.contains("-> /closed"), "{link}");
    machine.finish().await;
}

/// In runc's words, with what the machine has there.
async fn a_mount_that_fails_names_itself_and_its_cause(kind: Kind) {
    let machine = Machine::of(kind, "fails").await;
    machine.sandbox("s").await;
    let (folder, file) = (
        machine.directory.path().join("folder"),
        machine.directory.path().join("file"),
    );
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "").unwrap();
    for (id, source, destination) in [
        ("folder", &folder, "/etc/passwd"),
        ("file", &file, "/bin"),
        ("below", &folder, "/etc/passwd/below"),
    ] {
        let mut spec = machine.shell(id, "exec sleep 1000");
        bind(&mut spec, source, destination);
        let error = machine.runtime.create_container("s", spec).await.unwrap_err();
        let mut text = error.to_string();
        let mut next = std::error::Error::source(&error);
        while let Some(cause) = next {
            text = format!("{text}: {cause}");
            next = cause.source();
        }
        let begin = "unable to start container process: error during container init: error mounting";
        let begin = format!("{begin} \"{}\" to rootfs at \"{destination}\": ", source.display());
        assert!(text.contains(&begin), "{text}");
        assert!(text.contains(": not a directory"), "{text}");
    }
    machine.finish().await;
}

contract!(
    sys_is_closed_for_each_container_alone,
    a_volume_at_sys_can_be_written_to,
    a_program_begins_where_only_root_may_enter,
    a_mount_that_fails_names_itself_and_its_cause
);
