//! Mount points of a container, and its root directory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::volumes::{names, with};
use common::{Kind, Machine};
use runtime::ContainerSpec;

const LIMIT: Duration = Duration::from_secs(20);

fn moved(mut spec: ContainerSpec, destination: &str) -> ContainerSpec {
    let mut mounts = spec.spec.mounts().clone().unwrap();
    mounts.last_mut().unwrap().set_destination(destination.into());
    spec.spec.set_mounts(Some(mounts));
    spec
}

/// Mounts another volume at `/s`, and the one of [`with`] at `/s/sub`.
fn below(spec: ContainerSpec, shared: &Path) -> ContainerSpec {
    let mut spec = moved(spec, "/s/sub");
    let mut mounts = spec.spec.mounts().clone().unwrap();
    let mut around = mounts.last().unwrap().clone();
    around.set_destination("/s".into()).set_source(Some(shared.to_owned()));
    mounts.insert(mounts.len() - 1, around);
    spec.spec.set_mounts(Some(mounts));
    spec
}

/// Switches a link between two targets, as fast as possible, until told to stop.
fn flip(link: &Path, targets: [&str; 2], over: &AtomicBool) {
    let next = link.with_extension("next");
    while !over.load(Ordering::Relaxed) {
        for target in targets {
            symlink(target, &next).unwrap();
            std::fs::rename(&next, link).unwrap();
        }
    }
}

/// Another user of a container's volume changes a link in it during the creation: a volume to be
/// mounted there never covers the container's root or its devices, because no mount point is
/// created in it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_02_a_link_that_changes_meanwhile_brings_no_volume_to_the_root() {
    let machine = Machine::of(Kind::Embedded, "flip").await;
    machine.sandbox("s").await;
    let (shared, volume) = (
        machine.directory.path().join("shared"),
        machine.directory.path().join("volume"),
    );
    for made in [&shared, &volume] {
        std::fs::create_dir(made).unwrap();
    }
    for targets in [["/", "/proc/zz"], ["/", "/etc"], ["/dev", "/proc"]] {
        let (over, link) = (AtomicBool::new(false), shared.join("sub"));
        symlink(targets[0], &link).unwrap();
        let mut made = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| flip(&link, targets, &over));
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    for number in 0..24 {
                        let whole = ["rprivate", "rslave"][number % 2];
                        let id = format!("c{number}");
                        let spec = with(&machine, &id, &volume, whole, &["rbind", whole, "rw"]);
                        let spec = below(spec, &shared);
                        if machine.runtime.create_container("s", spec).await.is_ok() {
                            made.push(id.clone());
                        }
                        machine.runtime.remove_container("s", &id).await.unwrap();
                    }
                });
            });
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(names(&volume), [""; 0], "{targets:?}, made: {made:?}");
        std::fs::remove_file(&link).unwrap();
    }
    machine.finish().await;
}

/// As in other runtimes: only procfs itself, and over some of its files those that show a container
/// its limits.
#[tokio::test]
async fn no_volume_hides_what_the_kernel_tells_of_processes() {
    let machine = Machine::of(Kind::Embedded, "proc").await;
    machine.sandbox("s").await;
    let (volume, file, shared) = (
        machine.directory.path().join("volume"),
        machine.directory.path().join("file"),
        machine.directory.path().join("shared"),
    );
    std::fs::create_dir(&volume).unwrap();
    std::fs::create_dir(&shared).unwrap();
    std::fs::write(&file, "mine\n").unwrap();
    symlink("/proc", shared.join("sub")).unwrap();
    for (id, place, why) in [
        (
            "whole",
            "/proc",
            "\"/proc\" cannot be mounted because it is not of type proc",
        ),
        (
            "below",
            "/proc/sys/kernel",
            "cannot be mounted because it is inside /proc",
        ),
        ("strange", "/proc/mine", "cannot be mounted because it is inside /proc"),
    ] {
        let spec = moved(
            with(&machine, id, &volume, "rprivate", &["rbind", "rprivate", "rw"]),
            place,
        );
        let refused = machine
            .runtime
            .create_container("s", spec)
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains(why), "{refused}");
        machine.runtime.remove_container("s", id).await.unwrap();
    }
    let linked = with(&machine, "linked", &volume, "rprivate", &["rbind", "rprivate", "rw"]);
    let spec = below(linked, &shared);
    let refused = machine
        .runtime
        .create_container("s", spec)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("it is not of type proc"), "{refused}");
    machine.runtime.remove_container("s", "linked").await.unwrap();

    let spec = moved(
        with(&machine, "uptime", &file, "rprivate", &["rbind", "rprivate", "ro"]),
        "/proc/uptime",
    );
    machine.run("s", spec).await;
    let told = machine.exec("s", "uptime", "cat /proc/uptime", LIMIT).await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "mine\n");
    machine.finish().await;
}

/// runc also keeps an existing file.
#[tokio::test]
async fn a_volume_over_a_device_is_there_instead_of_it() {
    let machine = Machine::of(Kind::Embedded, "device").await;
    machine.sandbox("s").await;
    for (id, source, place, script, wanted) in [
        (
            "random",
            "/dev/urandom",
            "/dev/random",
            "head -c 4 /dev/random | wc -c",
            "4\n",
        ),
        ("null", "/dev/zero", "/dev/null", "head -c 3 /dev/null | wc -c", "3\n"),
    ] {
        let spec = moved(
            with(
                &machine,
                id,
                Path::new(source),
                "rprivate",
                &["rbind", "rprivate", "rw"],
            ),
            place,
        );
        machine.run("s", spec).await;
        let told = machine.exec("s", id, script, LIMIT).await;
        assert_eq!(String::from_utf8(told.output).unwrap(), wanted, "{id}");
    }
    machine.finish().await;
}

#[tokio::test]
async fn the_root_directory_has_the_owner_that_the_image_says() {
    let machine = Machine::of(Kind::Embedded, "owner").await;
    machine.sandbox("s").await;
    let layer = machine.directory.path().join("layer-owner");
    common::busybox(&layer);
    std::os::unix::fs::chown(&layer, Some(1000), Some(1001)).unwrap();
    let mut spec = machine.shell("c", "exec sleep 1000");
    spec.layers = vec![layer];
    machine.run("s", spec).await;
    let told = machine.exec("s", "c", "stat -c %u:%g /", LIMIT).await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "1000:1001\n");
    machine.finish().await;
}

#[tokio::test]
async fn a_working_directory_is_made_where_a_link_of_the_image_leads_though_nothing_is_there() {
    let machine = Machine::of(Kind::Embedded, "workplace").await;
    machine.sandbox("s").await;
    let layer = machine.directory.path().join("layer-workplace");
    common::busybox(&layer);
    std::fs::create_dir_all(layer.join("var")).unwrap();
    symlink("../run", layer.join("var/run")).unwrap();
    let mut spec = machine.shell("c", "exec sleep 1000");
    spec.layers = vec![layer];
    let process = spec.spec.process_mut().as_mut().unwrap();
    process.set_cwd("/var/run/made/here".into());
    machine.run("s", spec).await;
    let told = machine.exec("s", "c", "pwd -P; stat -c %u:%a /run/made", LIMIT).await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "/run/made/here\n0:755\n");
    machine.finish().await;
}
