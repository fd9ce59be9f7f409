//! Control groups: version, and controllers that limits need.

use std::path::Path;

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use super::{Finding, Level, text};

const ROOT: &str = "/sys/fs/cgroup";
/// Controllers required for limits of pods, by version; version 1 also needs `freezer` and
/// `devices` for containers.
const NEEDED: [&[&str]; 2] = [
    &["cpu", "devices", "freezer", "memory", "pids"],
    &["cpu", "memory", "pids"],
];
/// Controllers that few pods need.
const WANTED: [&str; 1] = ["cpuset"];

pub(super) fn look() -> [Finding; 2] {
    let is_pure = statfs(ROOT).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC);
    let mounts = text("/proc/self/mounts").unwrap_or_default();
    let controllers: Vec<String> = if is_pure {
        let all = text("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
        all.split_whitespace().map(str::to_owned).collect()
    } else {
        mounted(&mounts)
    };
    [version(is_pure, &controllers), judge(is_pure, &controllers)]
}

fn version(is_pure: bool, controllers: &[String]) -> Finding {
    let name = "cgroups";
    if !is_pure && controllers.is_empty() {
        let mend = "mount them: systemd does, or `mount -t cgroup2 none /sys/fs/cgroup`";
        return Finding::bad(Level::Fail, name, format!("none are mounted at {ROOT}"), mend);
    }
    let tree = if is_pure {
        ROOT.to_owned()
    } else {
        format!("{ROOT}/memory")
    };
    if access(Path::new(&tree), AccessFlags::W_OK).is_err() {
        let mend = "run it outside of a container, or in one whose control groups are its own";
        return Finding::bad(Level::Fail, name, format!("{tree} is read-only"), mend);
    }
    Finding::ok(name, if is_pure { "version 2" } else { "version 1, or hybrid" })
}

/// Returns the controllers of version 1 in `/proc/self/mounts`.
fn mounted(mounts: &str) -> Vec<String> {
    let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let options = lines.filter_map(|words| match words.as_slice() {
        [_, _, "cgroup", options, ..] => Some((*options).to_owned()),
        _ => None,
    });
    options
        .flat_map(|options| options.split(',').map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

fn judge(is_pure: bool, controllers: &[String]) -> Finding {
    let name = "controllers";
    let lacks = |names: &[&'static str]| -> Vec<&str> {
        let is_missing = |name: &&&str| !controllers.iter().any(|controller| controller == **name);
        names.iter().filter(is_missing).copied().collect()
    };
    let [first, second] = NEEDED;
    let needed = if is_pure { second } else { first };
    let (missing, missed) = (lacks(needed), lacks(&WANTED));
    let (level, missing) = match (missing.is_empty(), missed.is_empty()) {
        (false, _) => (Level::Fail, missing),
        (true, false) => (Level::Warn, missed),
        (true, true) => return Finding::ok(name, needed.join(", ")),
    };
    let mend = if missing.contains(&"memory") {
        "add `cgroup_enable=memory cgroup_memory=1` to the kernel's command line and start the machine again"
    } else {
        "take a kernel that has them, and look for `cgroup_disable=` on its command line"
    };
    Finding::bad(level, name, format!("there is no {}", missing.join(", ")), mend)
}

#[cfg(test)]
mod tests {
    use super::{Level, judge, mounted};

    #[test]
    fn a_controller_that_is_not_there_is_named() {
        let of = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let without = judge(true, &of("cpuset cpu io pids"));
        assert!(without.level == Level::Fail && without.line().contains("no memory: add `cgroup_enable"));
        assert_eq!(judge(true, &of("cpuset cpu io memory pids")).level, Level::Ok);
        assert_eq!(judge(true, &of("cpu io memory pids")).level, Level::Warn);
        let mounts = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        let missing = judge(false, &mounted(mounts)).line();
        assert!(missing.contains("there is no devices, freezer, pids"), "{missing}");
    }
}
