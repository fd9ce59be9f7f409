//! Propagation of later mounts between containers and the machine, and read-only mounts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::path::Path;
use std::time::Duration;

use common::volumes::{names, with};
use common::{Kind, Machine, contract};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use runtime::ContainerSpec;

const LIMIT: Duration = Duration::from_secs(20);
const NONE: Option<&str> = None;

fn tmpfs(at: &Path) {
    std::fs::create_dir_all(at).unwrap();
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
}

/// Shared mount on the machine, finally unmounted with all mounts below it.
struct Shared<'a>(&'a Path);

impl<'a> Shared<'a> {
    fn at(path: &'a Path) -> Self {
        tmpfs(path);
        mount(NONE, path, NONE, MsFlags::MS_SHARED, NONE).unwrap();
        Self(path)
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        for name in ["early", "late", "inner", ""] {
            umount2(&self.0.join(name), MntFlags::MNT_DETACH).ok();
        }
    }
}

async fn later_mounts_go_the_ways_that_are_open(kind: Kind) {
    let machine = Machine::of(kind, "propagation").await;
    machine.sandbox("s").await;
    let path = machine.directory.path().join("shared");
    let shared = Shared::at(&path);
    for (id, whole, option) in [
        ("private", "rprivate", "rprivate"),
        ("follows", "rslave", "rslave"),
        ("both", "rshared", "rshared"),
    ] {
        let spec = with(&machine, id, &path, whole, &["rbind", option, "rw"]);
        machine.run("s", spec).await;
    }
    tmpfs(&path.join("late"));
    std::fs::write(path.join("late/note"), "hello").unwrap();
    let ask = async |id: &str, script: &str| {
        let result = machine.exec("s", id, script, LIMIT).await;
        String::from_utf8(result.output).unwrap()
    };
    let read = "cat /v/late/note 2>&1";
    assert!(ask("private", read).await.contains("No such file"));
    assert_eq!(ask("follows", read).await, "hello");
    assert_eq!(ask("both", read).await, "hello");
    std::fs::create_dir(path.join("inner")).unwrap();
    let make = "mount -t tmpfs none /v/inner && echo inside >/v/inner/note";
    for (id, seen) in [("private", false), ("follows", false), ("both", true)] {
        assert_eq!(ask(id, make).await, "", "{id}");
        assert_eq!(path.join("inner/note").exists(), seen, "{id}");
    }
    drop(shared);
    machine.finish().await;
}

async fn a_mount_is_read_only_as_deep_as_it_says(kind: Kind) {
    let machine = Machine::of(kind, "depth").await;
    machine.sandbox("s").await;
    let path = machine.directory.path().join("shared");
    let shared = Shared::at(&path);
    tmpfs(&path.join("early"));
    for (id, option, below) in [("top", "ro", ""), ("deep", "rro", "Read-only file system")] {
        let spec = with(&machine, id, &path, "rprivate", &["rbind", "rprivate", option]);
        machine.run("s", spec).await;
        let write = |at: &str| format!("echo x 2>&1 >{at}/file");
        let said = machine.exec("s", id, &format!("({}) 2>&1", write("/v")), LIMIT).await;
        assert!(
            String::from_utf8_lossy(&said.output).contains("Read-only file system"),
            "{id}"
        );
        let said = machine
            .exec("s", id, &format!("({}) 2>&1", write("/v/early")), LIMIT)
            .await;
        let said = String::from_utf8_lossy(&said.output).into_owned();
        assert!(
            said.contains(below) && said.is_empty() == below.is_empty(),
            "{id}: {said}"
        );
    }
    drop(shared);
    machine.finish().await;
}

/// The runtime rearranges its own view of cgroups while it creates a container.
async fn the_machines_control_groups_are_seen_as_they_are(kind: Kind) {
    let machine = Machine::of(kind, "groups").await;
    machine.sandbox("s").await;
    let groups = Path::new("/sys/fs/cgroup");
    for (id, source, seen) in [("itself", groups, "/v"), ("above", Path::new("/sys"), "/v/fs/cgroup")] {
        let spec = with(&machine, id, source, "rprivate", &["rbind", "rprivate", "ro"]);
        machine.run("s", spec).await;
        // Other tests make and remove groups, in a unified hierarchy beside what is compared.
        let mut differing = 0;
        while differing < 20 {
            let before = names(groups);
            let listed = machine.exec("s", id, &format!("ls -a1 {seen}"), LIMIT).await;
            let listed = String::from_utf8(listed.output).unwrap();
            let mut listed: Vec<&str> = listed.lines().filter(|name| !["", ".", ".."].contains(name)).collect();
            listed.sort_unstable();
            if names(groups) == before {
                assert_eq!(listed, before, "{id}");
                break;
            }
            differing += 1;
        }
        assert!(differing < 20, "{id}: they never stay the same");
    }
    machine.finish().await;
}

/// Moves the volume of [`with`] to `/dev`, and mounts the pod's shared memory and a file over it.
fn at_dev(spec: &mut ContainerSpec, message: &Path) {
    let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
    let below = mounts
        .iter()
        .position(|mount| mount.destination() == Path::new("/dev/shm"))
        .unwrap();
    let memory = mounts.remove(below);
    for mount in mounts.iter_mut().filter(|mount| mount.destination() == Path::new("/v")) {
        mount.set_destination("/dev".into());
    }
    let mut file = mounts.last().unwrap().clone();
    file.set_destination("/dev/message".into())
        .set_source(Some(message.to_owned()));
    mounts.extend([memory, file]);
    spec.spec.set_mounts(Some(mounts));
}

/// runc creates no container without a `/dev/null`.
#[tokio::test]
async fn a_volume_at_dev_stays_as_it_is() {
    let machine = Machine::of(Kind::Embedded, "dev").await;
    machine.sandbox("s").await;
    let (volume, message) = (
        machine.directory.path().join("volume"),
        machine.directory.path().join("message"),
    );
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("note"), "hello").unwrap();
    std::fs::write(&message, "").unwrap();
    let mut spec = with(&machine, "volume", &volume, "rprivate", &["rbind", "rprivate", "rw"]);
    at_dev(&mut spec, &message);
    let mut process = spec.spec.process().clone().unwrap();
    process.set_cwd("/dev/sub".into());
    process.set_args(Some(
        ["sh", "-c", "echo here >told; exec sleep 1000"]
            .map(str::to_owned)
            .into(),
    ));
    spec.spec.set_process(Some(process));
    machine.run("s", spec).await;
    let script = "pwd && until [ -s told ]; do sleep 0.01; done";
    let told = machine.exec("s", "volume", script, LIMIT).await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "/dev/sub\n");
    assert_eq!(std::fs::read_to_string(volume.join("sub/told")).unwrap(), "here\n");
    let script = "cat /dev/note && echo bye >/dev/message && echo shared >/dev/shm/file";
    let told = machine.exec("s", "volume", script, LIMIT).await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "hello");
    assert_eq!(std::fs::read_to_string(&message).unwrap(), "bye\n");
    assert_eq!(names(&volume), ["message", "note", "shm", "sub"]);
    machine.run("s", machine.shell("other", "exec sleep 1000")).await;
    let told = machine
        .exec("s", "other", "cat /dev/shm/file; : >/dev/null", LIMIT)
        .await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "shared\n", "the pod's memory");

    // Read-only: the mount points for later mounts exist by now.
    let mut spec = with(&machine, "read", &volume, "rprivate", &["rbind", "rprivate", "ro"]);
    at_dev(&mut spec, &message);
    machine.run("s", spec).await;
    let script = "(echo x >/dev/note) 2>&1; cat /dev/message";
    let told = machine.exec("s", "read", script, LIMIT).await;
    let told = String::from_utf8(told.output).unwrap();
    assert!(
        told.contains("Read-only file system") && told.ends_with("bye\n"),
        "{told}"
    );

    // The pod's own mounts are made only if the volume has mount points for them.
    let empty = machine.directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let mut spec = with(&machine, "empty", &empty, "rprivate", &["rbind", "rprivate", "ro"]);
    at_dev(&mut spec, &message);
    let mut mounts = spec.spec.mounts().clone().unwrap();
    let place = mounts.last_mut().unwrap();
    place.set_destination("/dev/termination-log".into());
    spec.spec.set_mounts(Some(mounts.clone()));
    let volume = machine.runtime.create_container("s", spec.clone()).await.unwrap_err();
    assert!(volume.to_string().contains("/dev/termination-log"), "{volume}");
    // The pod's own file is bound without the mounts below it.
    let own = ["bind", "rprivate", "rw"].map(str::to_owned);
    mounts.last_mut().unwrap().set_options(Some(own.into()));
    spec.spec.set_mounts(Some(mounts));
    machine.run("s", spec).await;
    assert_eq!(names(&empty), [""; 0]);
    machine.finish().await;
}

async fn the_machines_own_dev_is_seen_and_stays_as_it_is(kind: Kind) {
    let machine = Machine::of(kind, "host-dev").await;
    machine.sandbox("s").await;
    let before = names(Path::new("/dev"));
    let mut spec = with(&machine, "c", Path::new("/dev"), "rslave", &["rbind", "rslave", "rw"]);
    let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
    mounts.last_mut().unwrap().set_destination("/dev".into());
    spec.spec.set_mounts(Some(mounts));
    machine.run("s", spec).await;
    let told = machine.exec("s", "c", "ls -a1 /dev", LIMIT).await;
    let told = String::from_utf8(told.output).unwrap();
    let mut seen: Vec<&str> = told.lines().filter(|name| !["", ".", ".."].contains(name)).collect();
    seen.sort_unstable();
    assert_eq!(seen, before);
    assert_eq!(names(Path::new("/dev")), before);
    machine.finish().await;
}

#[tokio::test]
async fn attack_a_link_in_a_volume_at_dev_leads_nowhere() {
    let machine = Machine::of(Kind::Embedded, "dev-link").await;
    machine.sandbox("s").await;
    let (volume, message) = (
        machine.directory.path().join("volume"),
        machine.directory.path().join("message"),
    );
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(&message, "").unwrap();
    std::os::unix::fs::symlink("/bin", volume.join("shm")).unwrap();
    let mut spec = with(&machine, "c", &volume, "rprivate", &["rbind", "rprivate", "rw"]);
    at_dev(&mut spec, &message);
    let refused = machine.runtime.create_container("s", spec).await.unwrap_err();
    assert!(refused.to_string().contains("mount /dev/shm"), "{refused}");
    machine.finish().await;
}

contract!(
    later_mounts_go_the_ways_that_are_open,
    a_mount_is_read_only_as_deep_as_it_says,
    the_machines_control_groups_are_seen_as_they_are,
    the_machines_own_dev_is_seen_and_stays_as_it_is
);
