//! Mount of `/sys` in a container.

use std::path::Path;

use oci_spec::runtime::{Mount, Spec};

const PLACE: &str = "/sys";
/// On v1 runc leaves the directory that holds the hierarchies open.
const GROUPS: &str = "/sys/fs/cgroup";

/// Closes `/sys` for one container alone. Mounted for reading only, as runc does it, the file system would be so for all who mount it
/// later in the pod's network, though one of them be privileged: it is mounted for writing, and closed where it is mounted.
pub(super) fn close_alone(config: &mut Spec) {
    let mut mounts = config.mounts().clone().unwrap_or_default();
    let at = |mount: &&Mount| mount.destination() == Path::new(PLACE);
    if mounts.iter().filter(at).count() != 1 {
        // A volume comes over it, which is not to be closed.
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
