//! Single groups: the files and directories of one hierarchy.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Limits;
use crate::clock::monotonic;

/// v2 controllers that are enabled for groups.
const V2_CONTROLLERS: [&str; 6] = ["+cpuset", "+cpu", "+io", "+memory", "+hugetlb", "+pids"];

pub(super) fn write(file: &Path, value: &str) -> io::Result<()> {
    let mut open = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(file)?;
    let named = |error: io::Error| match error.raw_os_error() {
        Some(_) => io::Error::new(error.kind(), format!("write {value} to {}: {error}", file.display())),
        None => error,
    };
    open.write_all(value.as_bytes()).map_err(named)
}

/// Moves this process, which has a single thread, into a group.
///
/// A thread that moves itself by `tasks` spares the kernel a lock that waits for an RCU grace
/// period, 10 ms and more; v2 has no such file, and there a process is better forked into its
/// group.
pub(super) fn enter(dir: &Path) -> io::Result<()> {
    match write(&dir.join("tasks"), "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => write(&dir.join("cgroup.procs"), "0"),
        result => result,
    }
}

/// Copies CPUs and memory nodes of the parent: a v1 cpuset accepts no process before.
pub(super) fn inherit_cpuset(mount: &Path, group: &Path) -> io::Result<()> {
    const FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];
    let lacks = |group: &Path, file: &str| Ok::<_, io::Error>(fs::read_to_string(group.join(file))?.trim().is_empty());
    let own = mount.join(group);
    if !lacks(&own, FILES[0])? && !lacks(&own, FILES[1])? {
        return Ok(());
    }
    let mut parent = mount.to_owned();
    for part in group.components() {
        let child = parent.join(part);
        for file in FILES {
            if lacks(&child, file)? {
                write(&child.join(file), fs::read_to_string(parent.join(file))?.trim())?;
            }
        }
        // From now on the kernel does this for new children.
        write(&child.join("cgroup.clone_children"), "1")?;
        parent = child;
    }
    Ok(())
}

pub(super) fn create_v2(mount: &Path, group: &Path, delegate: bool) -> io::Result<()> {
    let mut path = mount.to_owned();
    for part in group.components() {
        if delegate && enable_controllers(&path) && path == mount {
            vacate(mount)?;
            enable_controllers(&path);
        }
        path.push(part);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Enables the controllers for the groups below. A controller that is missing or already enabled is
/// ignored: its users fail. True if the group's own processes prevent it.
fn enable_controllers(group: &Path) -> bool {
    let file = group.join("cgroup.subtree_control");
    let enabled = V2_CONTROLLERS.map(|controller| write(&file, controller));
    enabled
        .iter()
        .any(|done| matches!(done, Err(error) if error.kind() == io::ErrorKind::ResourceBusy))
}

/// Moves the processes of the root into a group of their own. The root of a machine may have both
/// processes and groups with controllers, but not that of a container whose init leaves them there
/// (`EvacuateCgroup2` of rootlesskit, `pkg/parent/cgrouputil`, which k3s calls).
fn vacate(mount: &Path) -> io::Result<()> {
    let init = mount.join("init");
    fs::create_dir_all(&init)?;
    for pid in fs::read_to_string(mount.join("cgroup.procs"))?.split_whitespace() {
        // It may have ended meanwhile.
        drop(write(&init.join("cgroup.procs"), pid));
    }
    Ok(())
}

/// File of v2 by which the OOM killer kills all processes of a group, or none.
pub(crate) const TOGETHER: &str = "memory.oom.group";
/// File of v2 with the limit of swap.
pub(crate) const SWAP: &str = "memory.swap.max";

/// Maximum of `cpu.shares`.
const SHARES: u64 = 262_144;
/// Maximum of `cpu.weight`.
const WEIGHT: u32 = 10_000;

/// Converts `cpu.shares` as the kubelet does (`getCPUWeight`, `pkg/kubelet/cm`).
pub(super) fn weight_of_pod(shares: u64) -> u64 {
    1 + (shares.clamp(2, SHARES) - 2) * 9999 / 262_142
}

/// Converts `cpu.shares` as runc has done since 1.3.2, and crun: with the default of one is the
/// default of the other. Programs derive their share of the processors from it.
pub(super) fn weight_of_container(shares: u64) -> u64 {
    let shares = f64::from(u32::try_from(shares.clamp(2, SHARES)).unwrap_or(u32::MAX)).log2();
    let exact = 10_f64.powf((shares * shares + 125.0 * shares) / 612.0 - 7.0 / 34.0);
    // A little less, as the result for the default need not be exact.
    let weight = (1..WEIGHT).find(|weight| f64::from(*weight) >= exact - 1e-9);
    weight.unwrap_or(WEIGHT).into()
}

pub(super) fn limit_v2(dir: &Path, limits: &Limits, weight: fn(u64) -> u64) -> io::Result<()> {
    let set = |file: &str, value: Option<String>| match value {
        Some(value) => write(&dir.join(file), &value),
        None => Ok(()),
    };
    set("cpu.weight", limits.cpu_shares.map(|shares| weight(shares).to_string()))?;
    let quota = limits
        .cpu_quota
        .map(|quota| match (quota, limits.cpu_period.unwrap_or(100_000)) {
            (..=0, period) => format!("max {period}"),
            (quota, period) => format!("{quota} {period}"),
        });
    let or_max = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
    set("cpu.max", quota)?;
    set("memory.max", limits.memory.map(or_max))?;
    // Limit memory and swap together; a kernel without swap accounting has no such file.
    if limits.memory.is_some_and(|bytes| bytes >= 0) && dir.join(SWAP).exists() {
        write(&dir.join(SWAP), "0")?;
    }
    for (size, bytes) in &limits.hugepages {
        let file = format!("hugetlb.{size}.max");
        if *bytes > 0 || dir.join(&file).exists() {
            set(&file, Some(bytes.to_string()))?;
        }
    }
    set("pids.max", limits.pids.map(or_max))
}

/// Limits memory, and memory and swap together to the same value if the kernel counts swap. The
/// kernel refuses a total limit below that of memory alone, so the larger one is written first.
pub(super) fn limit_memory_v1(dir: &Path, bytes: i64) -> io::Result<()> {
    let (memory, both) = (
        dir.join("memory.limit_in_bytes"),
        dir.join("memory.memsw.limit_in_bytes"),
    );
    let value = bytes.to_string();
    let present: Option<i64> = match fs::read_to_string(&both) {
        Ok(text) => text.trim().parse().ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return write(&memory, &value),
        Err(error) => return Err(error),
    };
    let grows = bytes < 0 || present.is_some_and(|present| bytes > present);
    let [first, second] = if grows { [both, memory] } else { [memory, both] };
    write(&first, &value)?;
    write(&second, &value)
}

pub(super) fn pids(dir: &Path) -> io::Result<BTreeSet<i32>> {
    match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        // ENODEV: the group was removed meanwhile; EOPNOTSUPP: it is a threaded group.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EOPNOTSUPP)) => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

pub(super) fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

impl super::Cgroups {
    /// Has the OOM killer kill all processes of a container together, as the kubelet does on v2.
    pub(crate) fn end_together(&self, group: &Path) -> io::Result<()> {
        self.set_v2(group, TOGETHER, "1")
    }

    /// Keeps a container from swap, whether it has a memory limit or not, as the kubelet does on v2
    /// (`ConfigureNoSwap`, `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
    pub(crate) fn forbid_swap(&self, group: &Path) -> io::Result<()> {
        self.set_v2(group, SWAP, "0")
    }

    /// Sets a file of a group on a v2 machine whose kernel has the file.
    fn set_v2(&self, group: &Path, file: &str, value: &str) -> io::Result<()> {
        let Some(mount) = self.v2().filter(|_| self.unified()) else {
            return Ok(());
        };
        match write(&mount.join(group).join(file), value) {
            // An old kernel, one without swap accounting, or no memory controller.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// True if a hugetlb controller is mounted; without one the kernel has no huge pages.
    pub(crate) fn has_pages(&self) -> bool {
        self.controller("hugetlb").is_some() || self.has_unified("hugetlb")
    }

    /// True on a v2 machine whose memory controller can kill a group's processes together.
    pub(crate) fn ends_together(&self) -> bool {
        self.has_unified("memory")
    }

    fn has_unified(&self, name: &str) -> bool {
        let unified = self.v2().filter(|_| self.unified());
        let all = unified.and_then(|mount| fs::read_to_string(mount.join("cgroup.controllers")).ok());
        all.is_some_and(|all| all.split_whitespace().any(|own| own == name))
    }

    /// True if there are processes in this group or below it.
    pub(crate) fn holds_any(&self, group: &Path) -> bool {
        self.mounts().any(|mount| holds_any(&mount.join(group)))
    }
}

fn holds_any(dir: &Path) -> bool {
    pids(dir).is_ok_and(|held| !held.is_empty()) || children(dir).iter().any(|child| holds_any(child))
}

/// Kills the processes of a group in one hierarchy; returns whether there were any.
pub(super) fn kill_tree(dir: &Path) -> io::Result<bool> {
    match kill_all(dir) {
        // Another process has removed it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV) => Ok(true),
        result => result,
    }
}

fn kill_all(dir: &Path) -> io::Result<bool> {
    let mut populated = false;
    for child in children(dir) {
        populated |= kill_tree(&child)?;
    }
    let held = pids(dir)?;
    if held.is_empty() {
        return Ok(populated);
    }
    if write(&dir.join("cgroup.kill"), "1").is_ok() {
        return Ok(true);
    }
    // v1: a frozen group cannot fork while it is being killed. A PID read from a frozen group, or
    // our own, cannot be reused.
    let frozen = write(&dir.join("freezer.state"), "FROZEN").is_ok();
    for pid in pids(dir)? {
        // ESRCH: it has exited.
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
    if frozen {
        write(&dir.join("freezer.state"), "THAWED")?;
    }
    Ok(true)
}

pub(super) fn remove_tree(dir: &Path, failures: &mut Vec<String>) {
    for child in children(dir) {
        remove_tree(&child, failures);
    }
    let deadline = monotonic() + Duration::from_millis(500);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            // The kernel has not released the last process yet, or a creation that was cut off has
            // added another one since (runc writes `cgroup.procs` of one hierarchy after the
            // other).
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && monotonic() < deadline => {
                if let Err(error) = kill_tree(dir) {
                    failures.push(format!("kill {}: {error}", dir.display()));
                    return;
                }
                pause();
            }
            Err(error) => {
                failures.push(format!("rmdir {}: {error}", dir.display()));
                return;
            }
        }
    }
}

/// Lets dying processes run: on v1 the kernel has no event for an empty group.
pub(crate) fn pause() {
    let fds: &mut [nix::poll::PollFd<'_>] = &mut [];
    nix::poll::poll(fds, nix::poll::PollTimeout::from(1_u8)).ok();
}

#[cfg(test)]
mod tests {
    //! The v2 path over plain directories: which values are written to which files. Only a real v2
    //! machine shows that the kernel accepts them.

    use std::fs;
    use std::path::Path;

    use super::super::Cgroups;
    use super::{vacate, weight_of_container, weight_of_pod};
    use crate::Limits;

    const ROOT: &str = "31 24 0:26 / MOUNT rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Imitates a v2 hierarchy with these groups, and the files that the kernel would create in
    /// them.
    fn unified(groups: &[&str]) -> (tempfile::TempDir, Cgroups) {
        let mount = tempfile::tempdir().unwrap();
        for group in ["", "skiff", "skiff/node"].iter().chain(groups) {
            let dir = mount.path().join(group);
            fs::create_dir_all(&dir).unwrap();
            let files = [
                "cgroup.subtree_control",
                "cgroup.procs",
                "cpu.weight",
                "cpu.max",
                "memory.max",
                "pids.max",
                "hugetlb.2MB.max",
                "memory.oom.group",
                "memory.swap.max",
            ];
            for file in files {
                fs::write(dir.join(file), "").unwrap();
            }
        }
        let cgroups = Cgroups::parse(&ROOT.replace("MOUNT", mount.path().to_str().unwrap()));
        assert!(cgroups.unified());
        (mount, cgroups)
    }

    #[test]
    fn on_v2_parents_delegate_controllers_and_leaves_do_not() {
        let (mount, cgroups) = unified(&["skiff/node/pod"]);
        cgroups.create(Path::new("skiff/node/pod/container")).unwrap();
        assert!(mount.path().join("skiff/node/pod/container").is_dir());
        for parent in ["", "skiff", "skiff/node", "skiff/node/pod"] {
            let written = fs::read_to_string(mount.path().join(parent).join("cgroup.subtree_control")).unwrap();
            assert!(!written.is_empty(), "{parent:?}");
        }
        let leaf = mount.path().join("skiff/node/pod/container/cgroup.subtree_control");
        assert!(!leaf.exists());
        assert_eq!(cgroups.children(Path::new("skiff/node/pod")).len(), 1);
    }

    #[test]
    fn on_v2_a_containers_own_processes_leave_the_root() {
        let (mount, _cgroups) = unified(&["init"]);
        fs::write(mount.path().join("cgroup.procs"), "1\n").unwrap();
        vacate(mount.path()).unwrap();
        assert_eq!(fs::read_to_string(mount.path().join("init/cgroup.procs")).unwrap(), "1");
    }

    #[test]
    fn on_v2_limits_are_converted() {
        let (mount, cgroups) = unified(&["skiff/node/pod"]);
        let read = |file: &str| fs::read_to_string(mount.path().join("skiff/node/pod").join(file)).unwrap();
        let group = Path::new("skiff/node/pod");
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: None,
            memory: Some(64 << 20),
            pids: Some(-1),
            // Larger page sizes have no files.
            hugepages: vec![("2MB".to_owned(), 4 << 20), ("1GB".to_owned(), 0)],
        };
        cgroups.limit(group, &limits).unwrap();
        assert_eq!(read("memory.oom.group"), "");
        cgroups.end_together(group).unwrap();
        assert_eq!(read("memory.oom.group"), "1");
        cgroups.end_together(Path::new("skiff/node/none")).unwrap();
        let all = ["cpu.weight", "cpu.max", "memory.max", "pids.max", "hugetlb.2MB.max"].map(read);
        assert_eq!(all, ["39", "50000 100000", "67108864", "max", "4194304"]);
        cgroups.limit_container(group, &limits).unwrap();
        assert_eq!(read("cpu.weight"), "100");
    }

    #[test]
    fn containers_have_the_weights_of_runc_and_pods_those_of_the_kubelet() {
        for (shares, container, pod) in [
            (0, 1, 1),
            (2, 1, 1),
            (3, 2, 1),
            (102, 17, 4),
            (1024, 100, 39),
            (2000, 170, 77),
            (22_000, 1204, 840),
            (262_143, 10_000, 9999),
            (u64::MAX, 10_000, 10_000),
        ] {
            assert_eq!(weight_of_container(shares), container, "{shares}");
            assert_eq!(weight_of_pod(shares), pod, "{shares}");
        }
    }

    #[test]
    fn on_v2_a_container_has_no_swap() {
        let (mount, cgroups) = unified(&["skiff/node/pod"]);
        let group = Path::new("skiff/node/pod");
        let read = || fs::read_to_string(mount.path().join(group).join("memory.swap.max")).unwrap();
        cgroups.limit(group, &Limits::default()).unwrap();
        assert_eq!(read(), "");
        cgroups.forbid_swap(group).unwrap();
        assert_eq!(read(), "0");
        cgroups.forbid_swap(Path::new("skiff/node/none")).unwrap();
    }

    #[test]
    fn on_v2_kills_for_memory_are_counted_and_processes_found() {
        let (mount, cgroups) = unified(&["skiff/node/pod"]);
        let (group, dir) = (Path::new("skiff/node/pod"), mount.path().join("skiff/node/pod"));
        assert_eq!(cgroups.oom_kills(group), 0);
        fs::write(
            dir.join("memory.events"),
            "low 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 9\n",
        )
        .unwrap();
        assert_eq!(cgroups.oom_kills(group), 3);
        fs::write(dir.join("cgroup.procs"), "12\n34\n").unwrap();
        assert_eq!(
            cgroups.members(group).unwrap().into_iter().collect::<Vec<_>>(),
            [12, 34]
        );
        assert!(cgroups.members(Path::new("skiff/node/gone")).unwrap().is_empty());
    }
}
