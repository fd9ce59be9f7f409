//! A container's control groups: what it is in, what it sees of them, and what libcontainer is told.
//!
//! libcontainer reads the machine's whole table of mounts once for each hierarchy when it enters a group, and again when it
//! mounts one: most of a creation's system calls, and more with every pod of the node. So groups, limits and devices are settled
//! before it starts, and it finds one hierarchy where it has nothing to do.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc;
use oci_spec::runtime::{Mount as Wanted, Spec};

use crate::Refusal;
use crate::cgroup::Cgroups;
use crate::sys::{FileSystem, Mount};

/// Where programs look for control groups, libcontainer too.
const PLACE: &str = "/sys/fs/cgroup";
/// The container's view of its groups, below its directory.
const VIEW: &str = "cgroup";
/// Mounts of what lies around or below [`PLACE`], likewise.
const ASIDE: &str = "aside";

/// Whether a configuration allows every device.
pub(super) fn every_device(spec: &Spec) -> bool {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let rules = resources.and_then(|resources| resources.devices().as_ref());
    let all = |rule: &oci_spec::runtime::LinuxDeviceCgroup| rule.allow() && rule.major().is_none();
    rules.is_some_and(|rules| rules.iter().any(all))
}

/// Puts mounts of the container's own groups in the place of what a configuration mounts as `cgroup`.
pub(super) fn show(cgroups: &Cgroups, leaf: &Path, directory: &Path, spec: &mut Spec) -> io::Result<()> {
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for mount in mounts
        .iter_mut()
        .filter(|mount| mount.typ().as_deref() == Some("cgroup"))
    {
        let writable = mount.options().iter().flatten().any(|option| option == "rw");
        let view = directory.join(VIEW);
        fs::create_dir(&view)?;
        let protection = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        let protection = protection | if writable { 0 } else { libc::MOUNT_ATTR_RDONLY };
        arrange(cgroups, leaf, &view, protection)?;
        bind(mount, view);
    }
    spec.set_mounts(Some(mounts));
    Ok(())
}

fn bind(mount: &mut Wanted, source: PathBuf) {
    let options = ["rbind", "rprivate", "nosuid", "noexec", "nodev"];
    let access = mount.options().iter().flatten().find(|option| *option == "ro").cloned();
    let options = options.map(str::to_owned).into_iter().chain(access).collect();
    mount
        .set_typ(Some("bind".to_owned()))
        .set_source(Some(source))
        .set_options(Some(options));
}

/// The groups as the machine itself has them: one directory on v2, one for each hierarchy on v1.
fn arrange(cgroups: &Cgroups, leaf: &Path, view: &Path, protection: u64) -> io::Result<()> {
    let copy = |group: &Path| {
        let copy = Mount::copy(group)?;
        copy.protect(protection)?;
        Ok::<_, io::Error>(copy)
    };
    if let Some(mount) = cgroups.v2().filter(|_| cgroups.unified()) {
        return copy(&mount.join(leaf))?.attach(view);
    }
    let folder = FileSystem::open("tmpfs")?;
    folder.set("source", b"cgroup")?;
    folder.set("mode", b"755")?;
    let folder = folder.mount(0)?;
    folder.attach(view)?;
    for mount in cgroups.v1() {
        let Some(name) = mount.file_name() else { continue };
        let place = view.join(name);
        fs::create_dir(&place)?;
        copy(&mount.join(leaf))?.attach(&place)?;
        // `cpu,cpuacct` by each of its names.
        let parts = name.to_str().unwrap_or_default().split(',');
        for part in parts.filter(|part| Path::new(part) != Path::new(name)) {
            std::os::unix::fs::symlink(name, view.join(part))?;
        }
    }
    folder.protect(protection)
}

/// Keeps what a configuration mounts of the machine's hierarchies: after [`hide`], those paths lead elsewhere.
pub(super) fn keep(directory: &Path, spec: &mut Spec) -> Result<(), Refusal> {
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    for (number, mount) in mounts.iter_mut().enumerate() {
        let Some(source) = mount
            .source()
            .clone()
            .filter(|_| mount.typ().as_deref() == Some("bind"))
        else {
            continue;
        };
        let failed = |error: io::Error| Refusal::failed(format!("mount {}", source.display()), &error);
        let real = fs::canonicalize(&source).map_err(failed)?;
        if !real.starts_with(PLACE) && !Path::new(PLACE).starts_with(&real) {
            continue;
        }
        let target = directory.join(format!("{ASIDE}-{number}"));
        set_aside(&real, &target).map_err(failed)?;
        mount.set_source(Some(target));
    }
    spec.set_mounts(Some(mounts));
    Ok(())
}

fn set_aside(source: &Path, target: &Path) -> io::Result<()> {
    if source.is_dir() {
        fs::create_dir(target)?;
    } else {
        fs::File::create(target)?;
    }
    Mount::copy_tree(source)?.attach(target)
}

/// Has libcontainer find the v2 hierarchy alone, in this mount namespace only, where its container belongs into the root: it
/// moves its process there by writing a pid, into a file of ours. That would wait for an RCU grace period.
///
/// The file's text is not UTF-8, and neither can it be written by who would kill all of a group: so libcontainer's clean-up
/// gives up at once. The supervisor removes the groups.
pub(super) fn hide(cgroups: &Cgroups, directory: &Path) -> io::Result<()> {
    let place = Path::new(PLACE);
    match cgroups.v2() {
        Some(mount) if mount == place => {}
        Some(mount) => Mount::copy(mount)?.attach(place)?,
        // Nobody has mounted it, so no options of its are changed by this.
        None => FileSystem::open("cgroup2")?.mount(0)?.attach(place)?,
    }
    let decoy = directory.join("procs");
    fs::write(&decoy, [0xff; 64])?;
    Mount::copy(&decoy)?.attach(&place.join("cgroup.procs"))?;
    // Groups have it, and the root of the hierarchy is a group where this machine is itself a container.
    let killer = place.join("cgroup.kill");
    if killer.exists() {
        let decoy = Mount::copy(&decoy)?;
        decoy.protect(libc::MOUNT_ATTR_RDONLY)?;
        decoy.attach(&killer)?;
    }
    Ok(())
}
