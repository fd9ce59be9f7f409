//! Invariants of the settled cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tests::machine::TIMEOUT;
use tests::process;

use super::world::{BYSTANDERS, World, status, uid};

/// First processes of the containers of a pod.
pub(crate) fn first_processes(uid: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if !read("cgroup").contains(uid) {
            continue;
        }
        let status = read("status");
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let first = numbers.is_some_and(|numbers| {
            let mut numbers = numbers.split_whitespace();
            numbers.next().is_some() && numbers.next_back() == Some("1")
        });
        if first && !status.contains("State:\tZ") {
            found.push(pid);
        }
    }
    found
}

/// True if a container's script is past the line that records its start: it has a child process
/// then.
pub(crate) fn has_written(pid: i32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let shell = std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sh\0"));
    shell && children.is_ok_and(|children| !children.trim().is_empty())
}

pub(crate) fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Kinds of the open descriptors of a process, for messages: files by their paths, sockets by their family and peer.
pub(crate) fn opened(pid: i32) -> BTreeMap<String, usize> {
    let mut sockets: BTreeMap<String, String> = BTreeMap::new();
    for (family, inode) in [
        ("tcp", 9),
        ("tcp6", 9),
        ("udp", 9),
        ("udp6", 9),
        ("unix", 6),
        ("netlink", 9),
    ] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
        for fields in table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
        {
            let what = match (family, fields.get(2), fields.get(7)) {
                ("unix", _, path) => format!("unix {}", path.unwrap_or(&"")),
                ("netlink", ..) => format!("netlink {}", fields.get(1).unwrap_or(&"")),
                (_, peer, _) => format!("{family} to {}", peer.unwrap_or(&"")),
            };
            let inode = fields.get(inode).copied().unwrap_or_default();
            sockets.insert(format!("socket:[{inode}]"), what);
        }
    }
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let link = std::fs::read_link(entry.path())
            .unwrap_or_default()
            .display()
            .to_string();
        let what = sockets.get(&link).cloned().unwrap_or(link);
        let what = what.split(":[").next().unwrap_or_default().to_owned();
        *all.entry(what).or_default() += 1;
    }
    all
}

fn parent(pid: i32) -> anyhow::Result<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("a name in brackets")?;
    Ok(fields.split_whitespace().nth(1).context("a parent")?.parse()?)
}

/// Returns the supervisor or shim of the pod, if there is one already.
pub(crate) fn holder(world: &World, uid: &str) -> Option<i32> {
    let pid = if world.parts.containerd {
        parent(*first_processes(uid).first()?).ok()?
    } else {
        let sandboxes = world.machine.state().join("agent/runtime/sandboxes");
        let own = std::fs::read_dir(sandboxes).ok()?.flatten();
        let mut own = own.filter(|entry| entry.file_name().to_string_lossy().starts_with(uid));
        let record = std::fs::read(own.next()?.path().join("sandbox.json")).ok()?;
        let record: Value = serde_json::from_slice(&record).ok()?;
        i32::try_from(record["supervisor"].as_i64()?).ok()?
    };
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).into_owned();
    (line.starts_with("skiff-supervisor") || line.contains("containerd-shim")).then_some(pid)
}

impl World {
    /// Waits until the cluster is in its desired state, and reports what is not.
    pub(crate) async fn settle(&mut self) -> anyhow::Result<BTreeMap<String, Value>> {
        let mut wrong = String::new();
        let settling = async {
            loop {
                let pods = self.api.pods().await?;
                match self.look(&pods) {
                    Ok(()) => return anyhow::Ok(pods),
                    Err(seen) => wrong = seen.to_string(),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let settled = tokio::time::timeout(TIMEOUT * 2, settling).await;
        match settled {
            Ok(pods) => {
                self.leaving.clear();
                pods
            }
            Err(_) => bail!("it does not settle: {wrong}"),
        }
    }

    pub(crate) fn look(&self, pods: &BTreeMap<String, Value>) -> anyhow::Result<()> {
        let names: BTreeSet<String> = pods.keys().cloned().collect();
        ensure!(names == self.wanted, "pods {names:?} instead of {:?}", self.wanted);
        for (name, pod) in pods {
            let state = status(pod);
            ensure!(
                state["ready"] == true && state["state"]["running"].is_object(),
                "{name}: {}",
                pod["status"]
            );
            let alive = first_processes(uid(pod));
            ensure!(alive.len() == 1, "{name} has {alive:?}");
            if name.starts_with("busy") {
                let starts = self.started(name);
                ensure!(
                    state["restartCount"] == starts.saturating_sub(1),
                    "{name} was started {starts} times: {}",
                    pod["status"]
                );
            }
        }
        self.leftovers(pods)
    }

    /// The node's resources must be exactly those that its pods need.
    pub(crate) fn leftovers(&self, pods: &BTreeMap<String, Value>) -> anyhow::Result<()> {
        let uids: BTreeSet<&str> = pods.values().map(uid).collect();
        let agent = self.machine.state().join("agent");
        let names = |folder: &str| -> BTreeSet<String> {
            let entries = std::fs::read_dir(agent.join(folder)).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let (runtime, network) = self.parts.folders();
        let sandboxes = format!("{runtime}/sandboxes");
        let (held, attached) = (format!("{network}/netns"), format!("{network}/attachments"));
        for folder in ["pods", &sandboxes, &held, &attached] {
            let found = names(folder);
            let known = |name: &String| uids.iter().any(|uid| name.starts_with(uid));
            ensure!(
                found.len() == uids.len() && found.iter().all(known),
                "{folder}: {found:?} for {uids:?}"
            );
        }
        ensure!(
            names("logs").len() == uids.len(),
            "logs: {:?} for {uids:?}",
            names("logs")
        );
        for sandbox in names(&sandboxes) {
            let containers = names(&format!("{sandboxes}/{sandbox}/containers"));
            // The one that runs, and the one before it for its logs.
            ensure!(
                (1..=2).contains(&containers.len()),
                "containers of {sandbox}: {containers:?}"
            );
        }
        let links = process::run(
            self.machine
                .namespace()
                .command("ip")
                .args(["-o", "link", "show", "type", "veth"]),
        )?;
        let links = links.lines().filter(|line| !line.contains(": up")).count();
        // Network namespaces that no pod has yet.
        let ahead = names(&format!("{network}/slots")).len();
        ensure!(
            links == uids.len() + ahead,
            "{links} veths for {} pods and {ahead} slots",
            uids.len()
        );
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let state = agent.display().to_string();
        let ahead = format!("{state}/{network}/slots/");
        for line in mounts
            .lines()
            .filter(|line| line.contains(&state) && !line.contains(&ahead))
        {
            ensure!(uids.iter().any(|uid| line.contains(uid)), "mount {line}");
        }
        if self.parts.cni {
            let held = tests::parts::addresses_held(self.folder.path())?;
            ensure!(held.len() == uids.len(), "{held:?}");
        }
        self.groups(&uids)
    }

    pub(crate) fn groups(&self, uids: &BTreeSet<&str>) -> anyhow::Result<()> {
        let settings: Value = serde_json::from_slice(&std::fs::read(self.machine.state().join("cluster.json"))?)?;
        let root = settings["cgroup_root"].as_str().context("a root")?;
        for group in tests::leaks::cgroups(&format!("/{root}/"))? {
            let shared = ["/supervisors", "/kubepods", "/burstable", "/besteffort"];
            let shared = shared.iter().any(|name| group.ends_with(name));
            let known = shared || uids.iter().any(|uid| group.contains(uid));
            ensure!(known, "group {group}");
        }
        Ok(())
    }
}

/// Supervisors or shims of the bystander pods, with the number of their open descriptors.
pub(crate) fn holders(pods: &BTreeMap<String, Value>) -> anyhow::Result<Vec<(i32, usize)>> {
    let mut all = Vec::new();
    for name in BYSTANDERS {
        let first = first_processes(uid(&pods[name]));
        let holder = parent(*first.first().context("a process")?)?;
        all.push((holder, descriptors(holder)));
    }
    Ok(all)
}
