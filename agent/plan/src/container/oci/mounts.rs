//! The file systems of a container.

use k8s_openapi::api::core::v1::VolumeMount;
use serde_json::{Value, json};

use super::{Access, Mount, Propagation};

impl Access {
    /// Access through this mount, to a volume that may be read-only.
    pub fn of(mount: &VolumeMount, read_only: bool) -> Self {
        match mount.recursive_read_only.as_deref() {
            Some("Enabled" | "IfPossible") => Self::ReadOnlyBelow,
            Some(_) | None if read_only => Self::ReadOnly,
            Some(_) | None => Self::ReadWrite,
        }
    }
}

impl Propagation {
    /// Propagation of the mount, by its `mountPropagation`.
    pub fn of(mount: &VolumeMount) -> Self {
        match mount.mount_propagation.as_deref() {
            Some("Bidirectional") => Self::BothWays,
            Some("HostToContainer") => Self::FromNode,
            Some(_) | None => Self::Private,
        }
    }
}

/// Kernel file systems first, then the node's files and directories, outer ones before inner ones.
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
    let at = |mount: &Mount, place: &str| mount.destination.trim_end_matches('/') == place;
    let (devices, memory) = (
        own.iter().any(|mount| at(mount, "/dev")),
        own.iter().any(|mount| at(mount, "/dev/shm")),
    );
    if devices {
        // Default mounts below `/dev` would lie under the pod's volume.
        mounts.retain(|mount| {
            let destination = mount.get("destination").and_then(Value::as_str);
            !destination.is_some_and(|destination| destination.starts_with("/dev/"))
        });
    }
    let mut own: Vec<&Mount> = own.iter().collect();
    own.sort_by_key(|mount| mount.destination.split('/').filter(|part| !part.is_empty()).count());
    let shared = (!memory).then(|| {
        let options = ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"];
        kernel("/dev/shm", "tmpfs", "shm", &options)
    });
    let (above, below) = own.split_at(
        own.iter()
            .position(|mount| at(mount, "/dev"))
            .map_or(0, |index| index + 1),
    );
    mounts.extend(above.iter().map(|mount| bind(mount)));
    mounts.extend(shared);
    mounts.extend(below.iter().map(|mount| bind(mount)));
    mounts
}

fn kernel(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": source, "options": options})
}

fn bind(mount: &Mount) -> Value {
    let access = match mount.access {
        Access::ReadWrite => "rw",
        Access::ReadOnly => "ro",
        Access::ReadOnlyBelow => "rro",
    };
    let propagation = match mount.propagation {
        Propagation::Private => "rprivate",
        Propagation::FromNode => "rslave",
        Propagation::BothWays => "rshared",
    };
    // The agent's own mounts are files: a plain bind tells them from volumes.
    let bind = if mount.own { "bind" } else { "rbind" };
    json!({
        "destination": mount.destination,
        "type": "bind",
        "source": mount.source,
        "options": [bind, propagation, access],
    })
}

/// Propagation of the root file system (`rootfsPropagation`): the widest that a mount of the
/// container asks for.
pub(super) fn propagation(own: &[Mount]) -> &'static str {
    let any = |wanted: Propagation| own.iter().any(|mount| mount.propagation == wanted);
    if any(Propagation::BothWays) {
        "rshared"
    } else if any(Propagation::FromNode) {
        "rslave"
    } else {
        "rprivate"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(own: &[&str]) -> Vec<String> {
        let mount = |destination: &&str| Mount {
            source: "/x".into(),
            destination: (*destination).to_owned(),
            access: Access::ReadWrite,
            propagation: Propagation::Private,
            own: false,
            labelled: false,
        };
        let own: Vec<Mount> = own.iter().map(mount).collect();
        let all = build(&own, false);
        all.iter()
            .map(|mount| {
                format!(
                    "{} {}",
                    mount["destination"].as_str().unwrap(),
                    mount["type"].as_str().unwrap()
                )
            })
            .collect()
    }

    #[test]
    fn a_volume_at_dev_takes_the_place_of_what_is_there() {
        assert_eq!(
            listed(&["/v", "/dev/termination-log"])[..7],
            [
                "/proc proc",
                "/dev tmpfs",
                "/dev/pts devpts",
                "/dev/mqueue mqueue",
                "/sys sysfs",
                "/sys/fs/cgroup cgroup",
                "/dev/shm tmpfs"
            ]
        );
        assert_eq!(
            listed(&["/dev/termination-log", "/dev/", "/v"]),
            [
                "/proc proc",
                "/dev tmpfs",
                "/sys sysfs",
                "/sys/fs/cgroup cgroup",
                "/dev/ bind",
                "/dev/shm tmpfs",
                "/v bind",
                "/dev/termination-log bind"
            ]
        );
    }
}
