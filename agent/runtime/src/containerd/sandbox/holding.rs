//! Namespaces of a pod and its `/dev/shm`, kept alive by mounts instead of a process.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{FsType, statfs};
use oci_spec::runtime::LinuxNamespaceType;

use crate::SandboxSpec;

/// File system type of namespace files, from linux/magic.h.
const NSFS: FsType = FsType(0x6e73_6673);
const NONE: Option<&str> = None;

/// Paths in a sandbox's directory.
pub(in crate::containerd) fn ipc(directory: &Path) -> PathBuf {
    directory.join("ipc")
}

pub(in crate::containerd) fn uts(directory: &Path) -> PathBuf {
    directory.join("uts")
}

pub(in crate::containerd) fn memory(directory: &Path) -> PathBuf {
    directory.join("shm")
}

/// Creates and mounts the sandbox's own namespaces and `/dev/shm`.
pub(in crate::containerd) fn make(directory: &Path, spec: &SandboxSpec) -> io::Result<()> {
    let (own_ipc, own_uts) = (!spec.host_ipc, spec.netns.is_some());
    if own_ipc {
        let memory = memory(directory);
        fs::create_dir(&memory)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("shm"), &memory, Some("tmpfs"), flags, Some("mode=1777,size=64m"))?;
    }
    if !own_ipc && !own_uts {
        return Ok(());
    }
    let (directory, hostname) = (directory.to_owned(), spec.hostname.clone());
    // On a thread of its own: its namespaces end with it, and do not affect other threads.
    let made = std::thread::Builder::new()
        .name("namespaces".to_owned())
        .spawn(move || {
            if own_ipc {
                unshare(CloneFlags::CLONE_NEWIPC)?;
                hold("ipc", &ipc(&directory))?;
            }
            if own_uts {
                unshare(CloneFlags::CLONE_NEWUTS)?;
                nix::unistd::sethostname(&hostname)?;
                hold("uts", &uts(&directory))?;
            }
            Ok(())
        });
    made?
        .join()
        .unwrap_or_else(|_panic| Err(io::Error::other("the thread ended badly")))
}

fn hold(kind: &str, path: &Path) -> io::Result<()> {
    File::create(path)?;
    let own = format!("/proc/thread-self/ns/{kind}");
    mount(Some(own.as_str()), path, NONE, MsFlags::MS_BIND, NONE)?;
    Ok(())
}

/// True if all that [`make`] made still exists: a reboot of the machine removes it.
pub(in crate::containerd) fn is_whole(directory: &Path, spec: &SandboxSpec) -> bool {
    let held = |path: PathBuf| statfs(&path).is_ok_and(|found| found.filesystem_type() == NSFS);
    let network = spec.netns.clone().is_none_or(held);
    network && (spec.host_ipc || held(ipc(directory))) && (spec.netns.is_none() || held(uts(directory)))
}

/// Unmounts everything below a sandbox's directory; collects the failures.
pub(in crate::containerd) fn release(directory: &Path, failures: &mut Vec<String>) {
    for path in [ipc(directory), uts(directory), memory(directory)] {
        loop {
            match umount2(&path, MntFlags::MNT_DETACH) {
                // Unmount again: a crash between two attempts may have left a second mount.
                Ok(()) => {}
                Err(Errno::EINVAL | Errno::ENOENT) => break,
                Err(error) => {
                    failures.push(format!("unmount {}: {error}", path.display()));
                    break;
                }
            }
        }
    }
}

/// Namespaces of a container of this sandbox; the PID namespace is new unless there is one to join.
pub(in crate::containerd) fn namespaces(
    directory: &Path,
    spec: &SandboxSpec,
    pid: Option<PathBuf>,
) -> Vec<(LinuxNamespaceType, Option<PathBuf>)> {
    let mut all = vec![(LinuxNamespaceType::Mount, None), (LinuxNamespaceType::Cgroup, None)];
    if let Some(netns) = &spec.netns {
        all.push((LinuxNamespaceType::Network, Some(netns.clone())));
        all.push((LinuxNamespaceType::Uts, Some(uts(directory))));
    }
    if !spec.host_ipc {
        all.push((LinuxNamespaceType::Ipc, Some(ipc(directory))));
    }
    if !spec.host_pid {
        all.push((LinuxNamespaceType::Pid, pid));
    }
    all
}
