//! Volumes of images (`VOLUME`).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use common::volumes::with;
use common::{Kind, Machine, contract};
use runtime::ContainerSpec;

const LIMIT: Duration = Duration::from_secs(20);

/// Container of an image with a directory `/data`, a link `/link` to the missing `/srv/deep`, and a
/// link out of the root.
fn container(machine: &Machine, id: &str, volumes: &[&str], closed: bool) -> ContainerSpec {
    let layer = machine.directory.path().join(format!("layer-{id}"));
    common::busybox(&layer);
    std::fs::create_dir(layer.join("data")).unwrap();
    std::fs::write(layer.join("data/kept"), "of the image").unwrap();
    std::fs::set_permissions(layer.join("data"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::os::unix::fs::chown(layer.join("data"), Some(101), Some(102)).unwrap();
    symlink("/srv/deep", layer.join("link")).unwrap();
    symlink("../../../../../../escaped", layer.join("out")).unwrap();
    let mut spec = machine.shell(id, "exec sleep 1000");
    spec.layers = vec![layer.clone()];
    spec.snapshot = machine
        .daemon
        .as_ref()
        .map(|daemon| daemon.snapshot(&format!("layer-{id}"), &layer));
    spec.volumes = volumes.iter().map(PathBuf::from).collect();
    close(spec, closed)
}

fn close(mut spec: ContainerSpec, closed: bool) -> ContainerSpec {
    let mut root = spec.spec.root().clone().unwrap();
    root.set_readonly(Some(closed));
    spec.spec.set_root(Some(root));
    spec
}

const LOOK: &str = "stat -c '%n %u:%g %a' /data /link/. /new/x /out/.; cat /data/kept; echo; \
    for at in / /data /data/in /link /new /new/x /out; do \
    (echo x > $at/file && cat $at/file >/dev/null) 2>/dev/null && echo \"$at open\" || echo \"$at closed\"; done; \
    ls /dev/none /proc/none /sys/none 2>/dev/null | wc -l";

async fn volumes_of_the_image_are_made_and_stay_open(kind: Kind) {
    let machine = Machine::of(kind, "declared").await;
    machine.sandbox("s").await;
    let declared = [
        "/data",
        "/data/in",
        "/link",
        "new/x",
        "/out",
        "/",
        "/dev/none",
        "/proc/none",
        "/sys/none",
        "/data/../data/",
    ];
    for (id, closed, whole) in [("open", false, "open"), ("closed", true, "closed")] {
        machine.run("s", container(&machine, id, &declared, closed)).await;
        let told = machine.exec("s", id, LOOK, LIMIT).await;
        let wanted = format!(
            "/data 101:102 1777\n/link/. 0:0 755\n/new/x 0:0 755\n/out/. 0:0 755\nof the image\n/ {whole}\n/data open\n\
             /data/in open\n/link open\n/new {whole}\n/new/x open\n/out open\n0\n"
        );
        assert_eq!(String::from_utf8(told.output).unwrap(), wanted, "{id}");
    }
    machine.finish().await;
}

/// The pod's volumes are mounted over the image's and over their subdirectories; no link in them
/// redirects the image's volumes.
async fn the_pods_volumes_come_over_those_of_the_image(kind: Kind) {
    let machine = Machine::of(kind, "covered").await;
    machine.sandbox("s").await;
    let volume = machine.directory.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let hidden = machine.directory.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::write(hidden.join("secret"), "of the machine").unwrap();
    symlink(&hidden, volume.join("below")).unwrap();
    for closed in [false, true] {
        let id = if closed { "closed" } else { "open" };
        let own = container(&machine, id, &["/v", "/v/below"], closed);
        let volumes = with(&machine, id, &volume, "rprivate", &["rbind", "rprivate", "rw"]);
        let mut spec = close(volumes, closed);
        (spec.layers, spec.snapshot, spec.volumes) = (own.layers, own.snapshot, own.volumes);
        machine.run("s", spec).await;
        let script = "ls /v; cat /v/below/secret 2>/dev/null; echo x > /v/written; echo $?";
        let told = machine.exec("s", id, script, LIMIT).await;
        let before = if closed { "written\n" } else { "" };
        assert_eq!(
            String::from_utf8(told.output).unwrap(),
            format!("below\n{before}0\n"),
            "{id}"
        );
    }
    assert!(volume.join("written").is_file());
    machine.finish().await;
}

async fn a_volume_of_the_image_that_is_a_file_is_refused(kind: Kind) {
    let machine = Machine::of(kind, "file").await;
    machine.sandbox("s").await;
    let spec = container(&machine, "c", &["/data/kept"], false);
    let refused = machine.runtime.create_container("s", spec).await.unwrap_err();
    let told = refused.to_string();
    assert!(
        told.contains("/data/kept") && told.contains("not a directory"),
        "{told}"
    );
    machine.finish().await;
}

contract!(
    volumes_of_the_image_are_made_and_stay_open,
    the_pods_volumes_come_over_those_of_the_image,
    a_volume_of_the_image_that_is_a_file_is_refused,
);
