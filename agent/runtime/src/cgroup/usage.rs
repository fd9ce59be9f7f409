//! Usage of a group: CPU time since its creation, and current memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Cgroups, check};
use crate::{Details, Stall, Stalls, Usage};

impl Cgroups {
    /// Reads the usage of a group, or of the whole machine. Values that the kernel does not count
    /// are `None`.
    pub(crate) fn usage(&self, group: Option<&Path>) -> Usage {
        if group.is_some_and(|group| check(group).is_err()) {
            return Usage::default();
        }
        let machine = group.is_none();
        let group = group.unwrap_or(Path::new(""));
        let cpu = match (self.controller("cpuacct"), &self.v2) {
            (Some(mount), _) => number(&mount.join(group).join("cpuacct.usage")).map(Duration::from_nanos),
            (None, Some(mount)) => {
                let stat = text(&mount.join(group).join("cpu.stat"));
                field(&stat, "usage_usec").map(Duration::from_micros)
            }
            (None, None) => None,
        };
        let counted = self.controller("pids").or(self.v2.as_deref());
        let usage = Usage {
            cpu,
            processes: counted.and_then(|mount| number(&mount.join(group).join("pids.current"))),
            details: self.processors(group),
            ..Usage::default()
        };
        let usage = match (self.controller("memory"), &self.v2) {
            (Some(mount), _) => memory_v1(&mount.join(group), &usage),
            (None, Some(mount)) => memory_v2(&mount.join(group), &usage),
            (None, None) => usage,
        };
        if machine {
            return swap_of_machine(&text(Path::new("/proc/meminfo")), &usage);
        }
        usage
    }

    /// CPU time in user and kernel mode, throttling, and stalls.
    fn processors(&self, group: &Path) -> Details {
        let counted = |stat: &str| Details {
            periods: field(stat, "nr_periods"),
            throttled_periods: field(stat, "nr_throttled"),
            ..Details::default()
        };
        if let Some(mount) = self.controller("cpuacct") {
            let spent = |name: &str| number(&mount.join(group).join(name)).map(Duration::from_nanos);
            let limited = self
                .controller("cpu")
                .map(|mount| text(&mount.join(group).join("cpu.stat")));
            let stat = limited.unwrap_or_default();
            return Details {
                cpu_user: spent("cpuacct.usage_user"),
                cpu_system: spent("cpuacct.usage_sys"),
                throttled: field(&stat, "throttled_time").map(Duration::from_nanos),
                ..counted(&stat)
            };
        }
        let unified = self.v2.as_ref().map(|mount| mount.join(group));
        let read = |name: &str| unified.as_ref().map_or_else(String::new, |dir| text(&dir.join(name)));
        let stat = read("cpu.stat");
        let spent = |name: &str| field(&stat, name).map(Duration::from_micros);
        Details {
            cpu_user: spent("user_usec"),
            cpu_system: spent("system_usec"),
            throttled: spent("throttled_usec"),
            cpu_stalls: stalls(&read("cpu.pressure")),
            memory_stalls: stalls(&read("memory.pressure")),
            io_stalls: stalls(&read("io.pressure")),
            ..counted(&stat)
        }
    }
}

/// Controllers that pods need, and how to enable each on the machine.
const NEEDED: [(&str, &str); 3] = [
    ("cpu", "use a kernel with CONFIG_CGROUP_SCHED"),
    ("memory", "boot with cgroup_enable=memory"),
    ("pids", "use a kernel with CONFIG_CGROUP_PIDS"),
];

impl Cgroups {
    /// Missing controllers, with how to enable each.
    pub(crate) fn lacking(&self) -> Vec<String> {
        let root = self.v2.as_ref().map(|mount| text(&mount.join("cgroup.controllers")));
        let on_v2 = |name: &str| {
            root.as_ref()
                .is_some_and(|all| all.split_whitespace().any(|own| own == name))
        };
        let missing = NEEDED
            .iter()
            .filter(|(name, _)| self.controller(name).is_none() && !on_v2(name));
        missing.map(|(name, remedy)| format!("{name} ({remedy})")).collect()
    }
}

/// Values from this on mean "no limit": the kernel shows its maximum rounded to pages.
const UNLIMITED: u64 = 1 << 62;

/// Returns the machine's usage with swap from `/proc/meminfo`: the root group has no swap
/// accounting.
fn swap_of_machine(memory: &str, usage: &Usage) -> Usage {
    let bytes = |name: &str| Some(field(memory, name)?.saturating_mul(1024));
    let all = bytes("SwapTotal:");
    let used = || Some(all?.saturating_sub(bytes("SwapFree:")?));
    Usage {
        details: Details {
            swap: used(),
            swap_limit: all,
            ..usage.details
        },
        ..*usage
    }
}

fn memory_v1(dir: &Path, usage: &Usage) -> Usage {
    let stat = text(&dir.join("memory.stat"));
    let used = number(&dir.join("memory.usage_in_bytes"));
    let counted = |name: &str| field(&stat, name);
    Usage {
        memory: used,
        memory_peak: number(&dir.join("memory.max_usage_in_bytes")),
        working_set: used.map(|used| used.saturating_sub(counted("total_inactive_file").unwrap_or(0))),
        rss: counted("total_rss"),
        page_faults: counted("total_pgfault"),
        major_page_faults: counted("total_pgmajfault"),
        details: Details {
            cache: counted("total_cache"),
            mapped: counted("total_mapped_file"),
            swap: counted("total_swap"),
            swap_limit: number(&dir.join("memory.memsw.limit_in_bytes")).filter(|limit| *limit < UNLIMITED),
            memory_limit: number(&dir.join("memory.limit_in_bytes")).filter(|limit| *limit < UNLIMITED),
            limit_hits: number(&dir.join("memory.failcnt")),
            oom_kills: field(&text(&dir.join("memory.oom_control")), "oom_kill"),
            ..usage.details
        },
        ..*usage
    }
}

fn memory_v2(dir: &Path, usage: &Usage) -> Usage {
    let stat = text(&dir.join("memory.stat"));
    // The root group has no such file: all memory that is not free is in use there.
    let used = number(&dir.join("memory.current")).or_else(|| {
        let all = fs::read_to_string("/proc/meminfo").ok()?;
        let kibibytes = |name: &str| field(&all, name);
        Some((kibibytes("MemTotal:")?.saturating_sub(kibibytes("MemFree:")?)).saturating_mul(1024))
    });
    let used = used.filter(|_| !stat.is_empty());
    let counted = |name: &str| field(&stat, name);
    let events = text(&dir.join("memory.events"));
    Usage {
        memory: used,
        memory_peak: number(&dir.join("memory.peak")),
        working_set: used.map(|used| used.saturating_sub(counted("inactive_file").unwrap_or(0))),
        rss: counted("anon"),
        page_faults: counted("pgfault"),
        major_page_faults: counted("pgmajfault"),
        details: Details {
            cache: counted("file"),
            mapped: counted("file_mapped"),
            swap: number(&dir.join("memory.swap.current")),
            swap_limit: number(&dir.join("memory.swap.max")),
            memory_limit: number(&dir.join("memory.max")),
            limit_hits: field(&events, "max"),
            oom_kills: field(&events, "oom_kill"),
            ..usage.details
        },
        ..*usage
    }
}

/// Parses pressure stall information. Before Linux 5.13 the CPU's has no line `full`.
fn stalls(text: &str) -> Option<Stalls> {
    let of = |name: &str| text.lines().find_map(|line| stall(line.strip_prefix(name)?));
    Some(Stalls {
        some: of("some ")?,
        full: of("full ").unwrap_or_default(),
    })
}

/// Parses `avg10=0.12 avg60=3.45 avg300=6.78 total=9`, in percent and microseconds.
fn stall(line: &str) -> Option<Stall> {
    let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    let share = |key: &str| value(key)?.replace('.', "").parse().ok();
    Some(Stall {
        shares: [share("avg10=")?, share("avg60=")?, share("avg300=")?],
        total: Duration::from_micros(value("total=")?.parse().ok()?),
    })
}

/// Group of a sandbox, or of a container in it.
pub(crate) fn part(sandbox: PathBuf, container: Option<&str>) -> PathBuf {
    match container {
        Some(container) => sandbox.join(container),
        None => sandbox,
    }
}

/// Reads a file; empty if it is missing: the group may have gone meanwhile.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number(path: &Path) -> Option<u64> {
    text(path).trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, content) in files {
            fs::write(dir.join(name), content).unwrap();
        }
    }

    #[test]
    fn on_v1_and_hybrid_machines() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().display();
        let mounts = format!(
            "32 31 0:29 / {at}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             36 31 0:33 / {at}/memory rw - cgroup cgroup rw,memory\n\
             37 31 0:34 / {at}/pids rw - cgroup cgroup rw,pids\n\
             41 31 0:38 / {at}/unified rw - cgroup2 cgroup2 rw\n"
        );
        write(&root.path().join("pids/skiff/pod"), &[("pids.current", "12\n")]);
        write(
            &root.path().join("cpu/skiff/pod"),
            &[
                ("cpuacct.usage", "1500000000\n"),
                ("cpuacct.usage_user", "1000000000\n"),
                ("cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 5000\n"),
            ],
        );
        write(
            &root.path().join("memory/skiff/pod"),
            &[
                ("memory.usage_in_bytes", "9000\n"),
                ("memory.max_usage_in_bytes", "9500\n"),
                (
                    "memory.stat",
                    "inactive_file 1\ntotal_inactive_file 4000\ntotal_rss 3000\ntotal_pgfault 7\ntotal_cache 4500\ntotal_swap 60\n",
                ),
                ("memory.limit_in_bytes", "9800\n"),
                ("memory.memsw.limit_in_bytes", "9900\n"),
                ("memory.failcnt", "6\n"),
                ("memory.oom_control", "oom_kill_disable 0\noom_kill 1\n"),
            ],
        );
        let used = Cgroups::parse(&mounts).usage(Some(Path::new("skiff/pod")));
        let expected = Usage {
            cpu: Some(Duration::from_millis(1500)),
            memory: Some(9000),
            memory_peak: Some(9500),
            working_set: Some(5000),
            rss: Some(3000),
            page_faults: Some(7),
            major_page_faults: None,
            processes: Some(12),
            details: Details {
                cpu_user: Some(Duration::from_secs(1)),
                periods: Some(9),
                throttled_periods: Some(2),
                throttled: Some(Duration::from_micros(5)),
                cache: Some(4500),
                swap: Some(60),
                swap_limit: Some(9900),
                memory_limit: Some(9800),
                limit_hits: Some(6),
                oom_kills: Some(1),
                ..Details::default()
            },
        };
        assert_eq!(used, expected);
        let limits =
            ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(|name| (name, "9223372036854771712\n"));
        write(&root.path().join("memory/skiff/pod"), &limits);
        let unlimited = Cgroups::parse(&mounts).usage(Some(Path::new("skiff/pod")));
        let limits = (unlimited.details.swap_limit, unlimited.details.memory_limit);
        assert_eq!(limits, (None, None));
        assert_eq!(Cgroups::parse(&mounts).lacking(), Vec::<String>::new());
        let without = mounts.replace("rw,memory", "rw,perf_event");
        assert_eq!(
            Cgroups::parse(&without).lacking(),
            ["memory (boot with cgroup_enable=memory)"]
        );
    }

    #[test]
    fn on_v2_machines() {
        let root = tempfile::tempdir().unwrap();
        let mounts = format!("30 24 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.path().display());
        write(
            &root.path().join("skiff/pod"),
            &[
                ("cpu.stat", "usage_usec 2500\nuser_usec 1\nthrottled_usec 4\n"),
                ("pids.current", "3\n"),
                ("memory.current", "5000\n"),
                ("memory.peak", "6000\n"),
                ("memory.max", "7000\n"),
                (
                    "memory.stat",
                    "anon 300\ninactive_file 6000\npgfault 2\npgmajfault 1\nfile 40\n",
                ),
                ("memory.swap.current", "50\n"),
                ("memory.swap.max", "70\n"),
                ("memory.events", "low 0\nmax 8\noom 2\noom_kill 1\n"),
                ("cpu.pressure", "some avg10=1.05 avg60=0.20 avg300=0.00 total=7\n"),
                (
                    "io.pressure",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.03 total=8\n",
                ),
            ],
        );
        let cgroups = Cgroups::parse(&mounts);
        let used = cgroups.usage(Some(Path::new("skiff/pod")));
        let stall = |shares, micros| Stall {
            shares,
            total: Duration::from_micros(micros),
        };
        let expected = Usage {
            cpu: Some(Duration::from_micros(2500)),
            memory: Some(5000),
            memory_peak: Some(6000),
            working_set: Some(0),
            rss: Some(300),
            page_faults: Some(2),
            major_page_faults: Some(1),
            processes: Some(3),
            details: Details {
                cpu_user: Some(Duration::from_micros(1)),
                throttled: Some(Duration::from_micros(4)),
                cache: Some(40),
                swap: Some(50),
                swap_limit: Some(70),
                memory_limit: Some(7000),
                limit_hits: Some(8),
                oom_kills: Some(1),
                cpu_stalls: Some(Stalls {
                    some: stall([105, 20, 0], 7),
                    full: Stall::default(),
                }),
                io_stalls: Some(Stalls {
                    some: stall([0, 0, 0], 9),
                    full: stall([0, 0, 3], 8),
                }),
                ..Details::default()
            },
        };
        assert_eq!(used, expected);
        write(&root.path().join("skiff/pod"), &[("memory.max", "max\n")]);
        let unlimited = cgroups.usage(Some(Path::new("skiff/pod")));
        assert_eq!(unlimited.details.memory_limit, None);
        assert_eq!(cgroups.usage(Some(Path::new("skiff/gone"))), Usage::default());
        assert_eq!(cgroups.usage(Some(Path::new("../etc"))), Usage::default());
    }

    #[test]
    fn swap_of_the_machine() {
        let memory = "MemTotal:  9 kB\nSwapTotal:       8 kB\nSwapFree:        5 kB\n";
        let told = swap_of_machine(memory, &Usage::default()).details;
        assert_eq!((told.swap, told.swap_limit), (Some(3072), Some(8192)));
    }
}
