//! Targets of links in the paths of volumes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::time::Duration;

use common::volumes::{names, with};
use common::{Kind, Machine};
use runtime::ContainerSpec;

const LIMIT: Duration = Duration::from_secs(20);

/// A link of the image, or of another volume, does not redirect a volume to the directory of
/// devices; and the image's `/dev` must not be a link.
#[tokio::test]
async fn attack_links_to_dev_put_devices_into_nothing_of_others() {
    let machine = Machine::of(Kind::Embedded, "dev-links").await;
    machine.sandbox("s").await;
    let (volume, other) = (
        machine.directory.path().join("volume"),
        machine.directory.path().join("other"),
    );
    for made in [&volume, &other] {
        std::fs::create_dir_all(made.join("dev")).unwrap();
    }
    std::os::unix::fs::symlink("../dev", other.join("out")).unwrap();
    let poisoned = |id: &str, name: &str, target: &str| {
        let layer = machine.directory.path().join(format!("layer-{id}"));
        common::busybox(&layer);
        std::fs::remove_dir(layer.join(name)).ok();
        std::os::unix::fs::symlink(target, layer.join(name)).unwrap();
        let mut spec = with(&machine, id, &volume, "rprivate", &["rbind", "rprivate", "rw"]);
        spec.layers = vec![layer];
        spec
    };
    let moved = |mut spec: ContainerSpec, destination: &str| {
        let mut mounts = spec.spec.mounts().clone().unwrap();
        mounts.last_mut().unwrap().set_destination(destination.into());
        spec.spec.set_mounts(Some(mounts));
        spec
    };
    let mut through = moved(poisoned("through", "l", "nowhere"), "/o/out");
    let mut mounts = through.spec.mounts().clone().unwrap();
    let mut first = mounts.last().unwrap().clone();
    first.set_destination("/o".into()).set_source(Some(other.clone()));
    mounts.insert(mounts.len() - 1, first);
    through.spec.set_mounts(Some(mounts));
    let mut cases = vec![(through, "/o/out")];
    for (id, name, target, at) in [
        ("plain", "v", "/dev", "/v"),
        ("round", "v", "l/../../dev/.", "/v"),
        ("above", "v", "/", "/v"),
        ("source", "dev", "/folders/1", "/dev"),
        ("layer", "dev", "/folders/0", "/dev"),
        ("same", "dev", "v", "/dev"),
    ] {
        cases.push((poisoned(id, name, target), at));
    }
    for (spec, at) in cases {
        let id = spec.id.clone();
        let created = machine.runtime.create_container("s", spec).await;
        let told = created.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(names(&volume), ["dev"], "{id}: {told}");
        assert_eq!(names(&volume.join("dev")), [""; 0], "{id}: {told}");
        assert!(told.contains(&format!("mount {at}: ")), "{id}: {told:?}");
        machine.runtime.remove_container("s", &id).await.unwrap();
    }
    // Below it a link is harmless: that directory is the container's own.
    let below = moved(poisoned("below", "v", "/dev"), "/v/sub");
    machine.run("s", below).await;
    let told = machine.exec("s", "below", "ls /dev/sub && : >/dev/null", LIMIT).await;
    assert_eq!(String::from_utf8(told.output).unwrap(), "dev\n");
    machine.finish().await;
}

/// Links of an image or in a pod's shared memory, at paths that are covered by another mount,
/// redirect no volume to the directory of devices.
#[tokio::test]
async fn attack_links_below_other_mounts_put_devices_into_nothing_of_others() {
    let machine = Machine::of(Kind::Embedded, "dev-hidden").await;
    machine.sandbox("s").await;
    let volume = machine.directory.path().join("volume");
    std::fs::create_dir_all(volume.join("dev")).unwrap();
    let at = |id: &str, whole: &str, destination: &str| {
        let mut spec = with(&machine, id, &volume, whole, &["rbind", whole, "rw"]);
        let mut mounts = spec.spec.mounts().clone().unwrap();
        mounts.last_mut().unwrap().set_destination(destination.into());
        spec.spec.set_mounts(Some(mounts));
        spec
    };
    machine
        .run(
            "s",
            machine.shell(
                "first",
                "ln -s / /dev/shm/root; ln -s /dev /dev/shm/dev; exec sleep 1000",
            ),
        )
        .await;
    let made = "until [ -L /dev/shm/dev ]; do sleep 0.01; done";
    assert_eq!(machine.exec("s", "first", made, LIMIT).await.exit_code, 0);
    let mut cases = Vec::new();
    for whole in ["rprivate", "rslave"] {
        for target in ["root", "dev"] {
            cases.push(at(
                &format!("memory-{target}-{whole}"),
                whole,
                &format!("/dev/shm/{target}"),
            ));
        }
        let mut spec = at(&format!("proc-{whole}"), whole, "/v");
        let layer = machine.directory.path().join(format!("layer-{whole}"));
        common::busybox(&layer);
        std::fs::create_dir_all(layer.join("proc")).unwrap();
        std::os::unix::fs::symlink("/", layer.join("proc/x")).unwrap();
        std::os::unix::fs::symlink("/proc/x", layer.join("v")).unwrap();
        spec.layers = vec![layer];
        cases.push(spec);
    }
    for spec in cases {
        let id = spec.id.clone();
        let created = machine.runtime.create_container("s", spec).await;
        let told = created.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(names(&volume), ["dev"], "{id}: {told}");
        assert_eq!(names(&volume.join("dev")), [""; 0], "{id}: {told}");
        assert_ne!(told, "", "{id}");
        machine.runtime.remove_container("s", &id).await.unwrap();
    }
    machine.finish().await;
}

/// As in other runtimes, the target of an image's link need not exist.
#[tokio::test]
async fn a_volume_comes_to_where_a_link_leads_that_leads_to_nothing() {
    let machine = Machine::of(Kind::Embedded, "dangling").await;
    machine.sandbox("s").await;
    let (volume, file) = (
        machine.directory.path().join("volume"),
        machine.directory.path().join("file"),
    );
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("seen"), "").unwrap();
    std::fs::write(&file, "here\n").unwrap();
    let layer = machine.directory.path().join("layer-dangling");
    common::busybox(&layer);
    std::os::unix::fs::symlink("run/deep", layer.join("v")).unwrap();
    std::os::unix::fs::symlink("/usr/share/zone/here", layer.join("time")).unwrap();
    for whole in ["rprivate", "rslave"] {
        let mut spec = with(&machine, whole, &volume, whole, &["rbind", whole, "rw"]);
        let mut mounts = spec.spec.mounts().clone().unwrap();
        let mut other = mounts.last().unwrap().clone();
        other.set_destination("/time".into()).set_source(Some(file.clone()));
        mounts.push(other);
        spec.spec.set_mounts(Some(mounts));
        spec.layers = vec![layer.clone()];
        machine.run("s", spec).await;
        let told = machine
            .exec("s", whole, "ls /run/deep; cat /time /usr/share/zone/here", LIMIT)
            .await;
        assert_eq!(String::from_utf8(told.output).unwrap(), "seen\nhere\nhere\n");
    }
    machine.finish().await;
}
