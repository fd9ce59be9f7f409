//! Removal of pods without containerd, when it is gone.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::Error;
use crate::cgroup::Cgroups;
use crate::error::{finish, io_error};
use crate::files::remove_directory;

/// Timeout for a group's processes to die.
const DEATH: Duration = Duration::from_secs(10);

/// Kills all processes in our groups, removes the groups, and unmounts the mounts in the state
/// directory; continues after failures. Keeps containerd's own records, and the sandboxes' too
/// unless it is to `forget` them.
pub async fn end_without_engine(state_dir: &Path, cgroup_root: &str, forget: bool) -> Result<(), Error> {
    let (state_dir, root) = (state_dir.to_owned(), cgroup_root.to_owned());
    let work = move || end(&state_dir, Path::new(&root), forget);
    let ended = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
    ended.map_err(io_error("end the pods of", Path::new(cgroup_root)))?
}

fn end(state_dir: &Path, root: &Path, forget: bool) -> Result<(), Error> {
    let cgroups = Cgroups::detect().map_err(io_error("read", Path::new("/proc/self/mountinfo")))?;
    let state_dir = match state_dir.canonicalize() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("find", state_dir)(error)),
    };
    let known = state_dir.join("sandboxes").exists();
    let owned = cgroups.own(root, &state_dir, known);
    let mut failures = Vec::new();
    // Another agent's group is left alone: it never held a pod of ours.
    if owned.map_err(io_error("mark the control group", root))?.is_ok() {
        if let Err(error) = cgroups.kill(root, DEATH) {
            failures.push(format!("kill processes of {}: {error}", root.display()));
        }
        failures.extend(cgroups.remove(root));
        if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            cgroups.prune(parent);
        }
    }
    let table = trees::mounts::read().map_err(io_error("read", Path::new("/proc/self/mountinfo")))?;
    let mut mounted: Vec<_> = trees::mounts::parse(&table).map(|mount| mount.point).collect();
    // Deepest first.
    mounted.sort_by(|one, other| other.cmp(one));
    for point in mounted.iter().filter(|point| point.starts_with(&state_dir)) {
        match umount2(point.as_ref(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => failures.push(format!("unmount {}: {error}", point.display())),
        }
    }
    if forget && failures.is_empty() {
        remove_directory(&state_dir.join("sandboxes"), &mut failures);
    }
    finish(failures)
}
