//! The file systems of a container.

use serde_json::{Value, json};

use super::Mount;

/// The kernel's file systems first, then the node's files and directories, outer ones before inner ones.
pub(super) fn build(own: &[Mount], privileged: bool) -> Vec<Value> {
    let access = if privileged { "rw" } else { "ro" };
    let mut mounts = vec![
        kernel("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        kernel(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        kernel(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        kernel("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        kernel("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]),
        kernel(
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            &["nosuid", "noexec", "nodev", "relatime", access],
        ),
    ];
    if !own
        .iter()
        .any(|mount| mount.destination.trim_end_matches('/') == "/dev/shm")
    {
        mounts.push(kernel(
            "/dev/shm",
            "tmpfs",
            "shm",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        ));
    }
    let mut own: Vec<&Mount> = own.iter().collect();
    own.sort_by_key(|mount| mount.destination.split('/').filter(|part| !part.is_empty()).count());
    mounts.extend(own.into_iter().map(bind));
    mounts
}

fn kernel(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": source, "options": options})
}

fn bind(mount: &Mount) -> Value {
    let access = if mount.read_only { "ro" } else { "rw" };
    let propagation = if mount.follows_node { "rslave" } else { "rprivate" };
    json!({
        "destination": mount.destination,
        "type": "bind",
        "source": mount.source,
        "options": ["rbind", propagation, access],
    })
}
