//! Version and features of the kernel.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::{Finding, Level, text};

/// Minimum version: `mount_setattr(2)`, required for read-only mounts of containers.
const OLDEST: (u32, u32) = (5, 12);
/// Oldest version that the tests have run on.
const TESTED: (u32, u32) = (6, 1);

pub(super) fn version() -> Finding {
    judge(&text("/proc/sys/kernel/osrelease").unwrap_or_default())
}

fn judge(release: &str) -> Finding {
    let (name, found) = ("kernel", format!("Linux {release}"));
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u32>().ok();
    match next().zip(next()) {
        Some(version) if version >= TESTED => Finding::ok(name, found),
        Some(version) if version >= OLDEST => {
            Finding::bad(Level::Warn, name, found, "no test has run on one older than 6.1")
        }
        Some(_) => Finding::bad(Level::Fail, name, found, "pods need 5.12 or later (mount_setattr)"),
        None => Finding::bad(Level::Warn, name, found, "its version cannot be read"),
    }
}

pub(super) fn namespaces() -> Finding {
    let name = "namespaces";
    let lacks = |namespaces: &[&'static str]| -> Vec<&str> {
        let is_missing = |namespace: &&&str| !Path::new("/proc/self/ns").join(namespace).exists();
        namespaces.iter().filter(is_missing).copied().collect()
    };
    let (needed, wanted) = (lacks(&["cgroup", "ipc", "mnt", "net", "pid", "uts"]), lacks(&["user"]));
    if !needed.is_empty() {
        let found = format!("there are none of {}", needed.join(", "));
        return Finding::bad(
            Level::Fail,
            name,
            found,
            "take a kernel with CONFIG_NAMESPACES and all below it",
        );
    }
    if !wanted.is_empty() {
        let mend = "pods with `hostUsers: false` need a kernel with CONFIG_USER_NS";
        return Finding::bad(Level::Warn, name, "there are none of users", mend);
    }
    Finding::ok(name, "cgroup, ipc, mnt, net, pid, user, uts")
}

/// Requests an invalid mount: the kernel loads the required module, and reports whether it supports
/// the file system.
pub(super) fn overlay() -> Finding {
    let name = "overlayfs";
    match mount(Some("none"), "/", Some("overlay"), MsFlags::empty(), None::<&str>) {
        Err(Errno::ENODEV) => {
            let mend = "`modprobe overlay`, or take a kernel with CONFIG_OVERLAY_FS";
            Finding::bad(Level::Fail, name, "the kernel has none", mend)
        }
        Err(Errno::EPERM) => {
            let mend = "containers need CAP_SYS_ADMIN: run it outside of a container, or in a privileged one";
            Finding::bad(Level::Fail, name, "nothing may be mounted", mend)
        }
        Ok(()) | Err(_) => Finding::ok(name, "the kernel has it"),
    }
}

pub(super) fn seccomp() -> Finding {
    let name = "seccomp";
    if text("/proc/sys/kernel/seccomp/actions_avail").is_some_and(|actions| actions.contains("errno")) {
        return Finding::ok(name, "filters of system calls");
    }
    let mend = "pods that ask for a seccomp profile fail: take a kernel with CONFIG_SECCOMP_FILTER";
    Finding::bad(Level::Warn, name, "the kernel has no filters", mend)
}

#[cfg(test)]
mod tests {
    use super::{Level, judge};

    #[test]
    fn kernels_are_told_by_their_version() {
        for (release, level) in [
            ("6.18.5", Level::Ok),
            ("6.1.0-18-cloud-amd64", Level::Ok),
            ("5.14.0-427.el9.x86_64", Level::Warn),
            ("5.10.0-28-amd64", Level::Fail),
            ("4.18.0", Level::Fail),
            ("next", Level::Warn),
        ] {
            assert_eq!(judge(release).level, level, "{release}");
        }
    }
}
