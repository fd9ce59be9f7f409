//! Control groups on v1, hybrid and v2 machines: only groups below our own root are created,
//! changed or removed.
//!
//! A *group* is identified by one path relative to every hierarchy
//! (`skiff/node-1/SANDBOX/CONTAINER`). On v2 a container's processes live in `…/CONTAINER/main`,
//! because a group with limits for its children may not hold processes itself.

mod class;
pub(crate) mod devices;
mod disks;
mod files;
mod owner;
mod usage;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

pub(crate) use files::pause;
pub(crate) use files::{SWAP, TOGETHER};
use files::{
    create_v2, enter, inherit_cpuset, kill_tree, limit_memory_v1, limit_v2, remove_tree, weight_of_container,
    weight_of_pod, write,
};
pub(crate) use usage::part;

use crate::Limits;
use crate::clock::monotonic;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// Names of the v1 controllers; empty for v2.
    controllers: Vec<String>,
}

/// Cgroup hierarchies of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cgroups {
    v1: Vec<Hierarchy>,
    v2: Option<PathBuf>,
    /// Mounts of v1 hierarchies without controllers: runc creates groups there, too.
    named: Vec<PathBuf>,
}

impl Cgroups {
    /// Reads the layout from this process's mounts.
    pub(crate) fn detect() -> io::Result<Self> {
        Ok(Self::parse(&trees::mounts::read()?))
    }

    fn parse(mountinfo: &str) -> Self {
        let mut found = Self {
            v1: Vec::new(),
            v2: None,
            named: Vec::new(),
        };
        for mount in trees::mounts::parse(mountinfo) {
            if mount.root != Path::new("/") {
                continue;
            }
            let (kind, options, target) = (mount.kind, mount.options, mount.point.into_owned());
            if kind == "cgroup2" {
                found.v2.get_or_insert(target);
            } else if kind == "cgroup" && options.contains("name=") {
                found.named.push(target);
            } else if kind == "cgroup" {
                let known = [
                    "cpu",
                    "cpuacct",
                    "cpuset",
                    "memory",
                    "devices",
                    "freezer",
                    "blkio",
                    "pids",
                    "hugetlb",
                    "perf_event",
                ];
                let all = options
                    .split(',')
                    .filter(|option| known.contains(option) || option.starts_with("net_"));
                let hierarchy = Hierarchy {
                    mount: target,
                    controllers: all.map(str::to_owned).collect(),
                };
                if !found.v1.iter().any(|other| other.controllers == hierarchy.controllers) {
                    found.v1.push(hierarchy);
                }
            }
        }
        found
    }

    /// True if all controllers are on v2.
    pub(crate) fn unified(&self) -> bool {
        self.v1.is_empty()
    }

    /// Mount point of the v2 hierarchy.
    pub(crate) fn v2(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// Mount points of the v1 hierarchies with controllers.
    pub(crate) fn v1(&self) -> impl Iterator<Item = &Path> {
        self.v1.iter().map(|hierarchy| hierarchy.mount.as_path())
    }

    fn controller(&self, name: &str) -> Option<&Path> {
        let holds = |hierarchy: &&Hierarchy| hierarchy.controllers.iter().any(|controller| controller == name);
        self.v1.iter().find(holds).map(|hierarchy| hierarchy.mount.as_path())
    }

    fn mounts(&self) -> impl Iterator<Item = &Path> {
        self.v1
            .iter()
            .map(|hierarchy| hierarchy.mount.as_path())
            .chain(self.v2.as_deref())
    }

    /// Hierarchy by which the processes of a group are listed and killed: v2 if there is one.
    fn tracking(&self) -> Option<&Path> {
        self.v2
            .as_deref()
            .or_else(|| self.controller("freezer"))
            .or_else(|| self.controller("pids"))
    }

    /// Creates a group and its missing parents.
    pub(crate) fn create(&self, group: &Path) -> io::Result<()> {
        check(group)?;
        if let Some(mount) = &self.v2 {
            create_v2(mount, group, self.unified())?;
        } else if self.v1.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no cgroup hierarchy is mounted",
            ));
        }
        for hierarchy in &self.v1 {
            fs::create_dir_all(hierarchy.mount.join(group))?;
        }
        match self.controller("cpuset") {
            Some(mount) => inherit_cpuset(mount, group),
            None => Ok(()),
        }
    }

    /// Sets the limits of a pod's group, or of a group of pods.
    pub(crate) fn limit(&self, group: &Path, limits: &Limits) -> io::Result<()> {
        self.limit_by(group, limits, weight_of_pod)
    }

    /// Sets the limits of a container's group.
    pub(crate) fn limit_container(&self, group: &Path, limits: &Limits) -> io::Result<()> {
        self.limit_by(group, limits, weight_of_container)
    }

    fn limit_by(&self, group: &Path, limits: &Limits, weight: fn(u64) -> u64) -> io::Result<()> {
        check(group)?;
        match &self.v2 {
            Some(mount) if self.unified() => limit_v2(&mount.join(group), limits, weight),
            Some(_) | None => self.limit_v1(group, limits),
        }
    }

    /// Changes the limits of the existing group of a pod, or of one of its containers, and on v2 of
    /// the group of the container's own processes. Absent limits are lifted.
    pub(crate) fn change_limits(&self, pod: &Path, container: Option<&str>, limits: &Limits) -> io::Result<()> {
        let group = pod.join(container.unwrap_or_default());
        check(&group)?;
        if !self.exists(&group) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let limits = Limits {
            cpu_quota: limits.cpu_quota.or(Some(-1)),
            memory: limits.memory.or(Some(-1)),
            ..limits.clone()
        };
        if container.is_none() {
            return self.limit(&group, &limits);
        }
        self.limit_container(&group, &limits)?;
        let leaf = group.join("main");
        if self.unified() && self.exists(&leaf) {
            self.limit_container(&leaf, &limits)?;
        }
        Ok(())
    }

    fn limit_v1(&self, group: &Path, limits: &Limits) -> io::Result<()> {
        let set = |controller: &str, file: &str, value: Option<String>| match (value, self.controller(controller)) {
            (Some(value), Some(mount)) => write(&mount.join(group).join(file), &value),
            (Some(_), None) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("no {controller} cgroup"),
            )),
            (None, _) => Ok(()),
        };
        set("cpu", "cpu.shares", limits.cpu_shares.map(|shares| shares.to_string()))?;
        if limits.cpu_quota.is_some() {
            set(
                "cpu",
                "cpu.cfs_period_us",
                limits.cpu_period.map(|period| period.to_string()),
            )?;
        }
        set(
            "cpu",
            "cpu.cfs_quota_us",
            limits.cpu_quota.map(|quota| quota.to_string()),
        )?;
        if let (Some(bytes), Some(mount)) = (limits.memory, self.controller("memory")) {
            limit_memory_v1(&mount.join(group), bytes)?;
        } else {
            set(
                "memory",
                "memory.limit_in_bytes",
                limits.memory.map(|bytes| bytes.to_string()),
            )?;
        }
        for (size, bytes) in &limits.hugepages {
            if *bytes == 0 && !self.has_pages() {
                continue;
            }
            let file = format!("hugetlb.{size}.limit_in_bytes");
            set("hugetlb", &file, Some(bytes.to_string()))?;
        }
        set("pids", "pids.max", limits.pids.map(|count| count.to_string()))
    }

    /// Moves this process into a group in every v1 hierarchy, and in v2 unless it is there already.
    pub(crate) fn enter(&self, group: &Path, tracked: bool) -> io::Result<()> {
        check(group)?;
        for hierarchy in &self.v1 {
            enter(&hierarchy.mount.join(group))?;
        }
        match &self.v2 {
            Some(mount) if !tracked => enter(&mount.join(group)),
            Some(_) | None => Ok(()),
        }
    }

    /// Moves another single-threaded process into a group.
    pub(crate) fn attach(&self, group: &Path, pid: i32) -> io::Result<()> {
        check(group)?;
        for mount in self.mounts() {
            write(&mount.join(group).join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Creates a group in the v2 hierarchy and opens it, to fork straight into it; `None` without
    /// that hierarchy.
    pub(crate) fn open_tracking(&self, group: &Path) -> Option<OwnedFd> {
        check(group).ok()?;
        let mount = self.v2.as_deref()?;
        create_v2(mount, group, self.unified()).ok()?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        open(&mount.join(group), flags, Mode::empty()).ok()
    }

    /// Creates a group in the tracking hierarchy only and moves this process there.
    pub(crate) fn track(&self, group: &Path) -> io::Result<()> {
        check(group)?;
        let Some(mount) = self.tracking() else { return Ok(()) };
        fs::create_dir_all(mount.join(group))?;
        enter(&mount.join(group))
    }

    /// Removes an empty group, without waiting; returns whether it is gone.
    pub(crate) fn try_remove(&self, group: &Path) -> bool {
        let gone = |mount: &Path| match fs::remove_dir(mount.join(group)) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        check(group).is_ok() && self.mounts().filter(|mount| !gone(mount)).count() == 0
    }

    /// Kills every process of a group and of the groups below it, and waits up to `wait` for their
    /// exit.
    pub(crate) fn kill(&self, group: &Path, wait: Duration) -> io::Result<()> {
        check(group)?;
        let deadline = monotonic() + wait;
        let dirs: Vec<PathBuf> = self
            .mounts()
            .map(|mount| mount.join(group))
            .filter(|dir| dir.is_dir())
            .collect();
        loop {
            let mut populated = false;
            for dir in &dirs {
                populated |= kill_tree(dir)?;
            }
            if !populated {
                return Ok(());
            }
            if monotonic() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "processes do not die"));
            }
            pause();
        }
    }

    /// Number of OOM kills in this group.
    pub(crate) fn oom_kills(&self, group: &Path) -> u64 {
        let file = match (self.unified(), &self.v2) {
            (true, Some(mount)) => Some(mount.join(group).join("memory.events")),
            (_, _) => self
                .controller("memory")
                .map(|mount| mount.join(group).join("memory.oom_control")),
        };
        let text = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes a group and its descendants in every hierarchy; returns the failures.
    pub(crate) fn remove(&self, group: &Path) -> Vec<String> {
        if let Err(error) = check(group) {
            return vec![error.to_string()];
        }
        let mut failures = Vec::new();
        for mount in self.mounts().chain(self.named.iter().map(PathBuf::as_path)) {
            remove_tree(&mount.join(group), &mut failures);
        }
        failures
    }

    /// Removes empty groups, from this one up to and including the first component of its path.
    pub(crate) fn prune(&self, group: &Path) {
        if check(group).is_err() {
            return;
        }
        for mount in self.mounts().chain(self.named.iter().map(PathBuf::as_path)) {
            for part in group.ancestors().filter(|part| !part.as_os_str().is_empty()) {
                if fs::remove_dir(mount.join(part)).is_err() {
                    break;
                }
            }
        }
    }

    /// Names of the groups directly below this one, in any hierarchy.
    pub(crate) fn children(&self, group: &Path) -> BTreeSet<String> {
        let dirs = self.mounts().flat_map(|mount| files::children(&mount.join(group)));
        dirs.filter_map(|dir| dir.file_name()?.to_str().map(str::to_owned))
            .collect()
    }

    /// Processes in this group itself, in any hierarchy.
    pub(crate) fn members(&self, group: &Path) -> io::Result<BTreeSet<i32>> {
        let mut all = BTreeSet::new();
        for mount in self.mounts() {
            all.extend(files::pids(&mount.join(group))?);
        }
        Ok(all)
    }

    /// True if any hierarchy has this group.
    pub(crate) fn exists(&self, group: &Path) -> bool {
        self.mounts().any(|mount| mount.join(group).exists())
    }
}

/// Checks that a group's path has only plain components, at least one.
pub(crate) fn check(group: &Path) -> io::Result<()> {
    let plain = group.components().all(|part| matches!(part, Component::Normal(_)));
    if plain && group.components().next().is_some() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("invalid cgroup path {}", group.display()),
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Cgroups, check};

    #[test]
    fn layouts_are_told_apart() {
        let v2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let unified = Cgroups::parse(v2);
        assert!(unified.unified());
        assert_eq!(unified.tracking(), Some(Path::new("/sys/fs/cgroup")));
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             36 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let hybrid = Cgroups::parse(hybrid);
        assert!(!hybrid.unified());
        assert_eq!(hybrid.v1.len(), 2);
        assert_eq!(hybrid.controller("cpuacct"), Some(Path::new("/sys/fs/cgroup/cpu")));
        assert_eq!(hybrid.tracking(), Some(Path::new("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn paths_that_leave_the_root_are_refused() {
        for bad in ["", "/", "/a", "..", "a/../b"] {
            assert!(check(Path::new(bad)).is_err(), "{bad}");
        }
        check(Path::new("skiff/node/pod")).unwrap();
    }
}
