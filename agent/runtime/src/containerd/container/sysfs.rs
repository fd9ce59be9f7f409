//! Mount of `/sys` in a container.

use std::path::Path;

use oci_spec::runtime::{Mount, Spec};

const PLACE: &str = "/sys";
/// On v1 runc leaves the directory of the hierarchies writable.
const GROUPS: &str = "/sys/fs/cgroup";

/// Makes `/sys` read-only for one container alone. Mounted read-only, as runc does it, the file
/// system would be read-only for all who mount it later in the pod's network namespace, even
/// privileged containers: so it is mounted read-write, and then the mount is made read-only.
pub(super) fn close_alone(config: &mut Spec) {
    let mut mounts = config.mounts().clone().unwrap_or_default();
    let at = |mount: &&Mount| mount.destination() == Path::new(PLACE);
    if mounts.iter().filter(at).count() != 1 {
        // A volume covers it, and stays as it is.
        return;
    }
    let mut closed = false;
    for mount in mounts
        .iter_mut()
        .filter(|mount| mount.typ().as_deref() == Some("sysfs"))
    {
        let mut options = mount.options().clone().unwrap_or_default();
        for option in options.iter_mut().filter(|option| *option == "ro") {
            "rw".clone_into(option);
            closed = true;
        }
        mount.set_options(Some(options));
    }
    if closed {
        let mut linux = config.linux().clone().unwrap_or_default();
        let mut paths = linux.readonly_paths().clone().unwrap_or_default();
        paths.push(PLACE.to_owned());
        if mounts
            .iter()
            .filter(|mount| mount.destination() == Path::new(GROUPS))
            .count()
            == 1
        {
            paths.push(GROUPS.to_owned());
        }
        linux.set_readonly_paths(Some(paths));
        config.set_mounts(Some(mounts)).set_linux(Some(linux));
    }
}
