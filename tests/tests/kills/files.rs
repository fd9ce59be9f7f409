//! Resources of a node with only the bystanders: files, descriptors, memory. They are the same
//! before and after the kills.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use tests::machine::TIMEOUT;
use tests::process;

use super::looks::opened;
use super::world::World;

/// Below the state directory these hold what outlives pods on purpose, each with a bound of its own.
const KEPT: [&str; 3] = ["agent/crashes", "agent/network/slots", "kubectl-cache"];
/// Directories of slots made ahead, and their maximum numbers, which vary on an idle node.
const AHEAD: [(&str, usize); 3] = [
    ("agent/spare/", 200),
    ("agent/runtime/spare/", 100),
    ("agent/containerd/spare/", 100),
];
/// Tolerances for connections and KiB that are kept for reuse.
const DESCRIPTORS: usize = 8;
const KIBIBYTES: u64 = 24 << 10;

/// Number of equal samples in a row, a tenth of a second apart: a daemon that has just started
/// opens its connections for watches one by one.
const REST: usize = 10;

/// Resources of the idle node.
pub(crate) struct Quiet {
    /// Number of files of each kind; versions of a volume have random names.
    paths: BTreeMap<String, usize>,
    /// Of the agent and the control plane.
    descriptors: [BTreeMap<String, usize>; 2],
    memory: [u64; 2],
}

impl Quiet {
    pub(crate) fn look(world: &World) -> anyhow::Result<Self> {
        let mut paths = BTreeMap::new();
        collect(world.machine.state(), world.machine.state(), &mut paths);
        let pids = [world.agent.pid(), world.control_plane.pid()];
        Ok(Self {
            paths,
            descriptors: pids.map(opened),
            memory: [process::anonymous_kib(pids[0])?, process::anonymous_kib(pids[1])?],
        })
    }

    /// Returns the state once both daemons are idle.
    pub(crate) async fn at_rest(world: &World) -> anyhow::Result<Self> {
        let mut seen = Vec::new();
        let rest = async {
            loop {
                let now = Self::look(world)?;
                let numbers = [0, 1].map(|index: usize| now.descriptors[index].values().sum::<usize>());
                if seen.last() != Some(&numbers) {
                    seen.clear();
                }
                seen.push(numbers);
                if seen.len() == REST {
                    return anyhow::Ok(now);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let rest = tokio::time::timeout(TIMEOUT, rest).await;
        rest.unwrap_or_else(|_| bail!("descriptors do not come to rest: {seen:?}"))
    }

    /// Fails when there is more of anything, also after a while.
    pub(crate) async fn compare(&self, world: &World) -> anyhow::Result<()> {
        let mut seen = String::new();
        let quiet = async {
            loop {
                let now = Self::look(world)?;
                let Err(error) = self.covers(&now) else {
                    return anyhow::Ok(now);
                };
                seen = error.to_string();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let Ok(now) = tokio::time::timeout(TIMEOUT * 2, quiet).await else {
            bail!("{seen}");
        };
        let now = now?;
        tracing::info!(
            files = now.paths.len(), before = ?(&self.descriptors, self.memory), now = ?(&now.descriptors, now.memory),
            "descriptors and KiB of agent and control plane"
        );
        Ok(())
    }

    fn covers(&self, now: &Self) -> anyhow::Result<()> {
        let ahead = |path: &str| AHEAD.iter().any(|(home, _)| path == *home);
        let before = |path: &String| self.paths.get(path).copied().unwrap_or(0);
        let more = now.paths.iter();
        let more = more.filter(|(path, count)| **count > before(path) && !ahead(path));
        let more: Vec<_> = more.collect();
        ensure!(more.is_empty(), "files: {more:#?}");
        for (home, most) in AHEAD {
            let count = now.paths.get(home).copied().unwrap_or(0);
            ensure!(count <= most, "{count} directories are made ahead in {home}");
        }
        for (index, what) in ["agent", "control plane"].into_iter().enumerate() {
            let (before, now) = (
                (&self.descriptors[index], self.memory[index]),
                (&now.descriptors[index], now.memory[index]),
            );
            let [least, most] = [before.0, now.0].map(|opened| opened.values().sum::<usize>());
            ensure!(
                most <= least + DESCRIPTORS,
                "descriptors of the {what}: {least}, then {most}: {:#?}, then {:#?}",
                before.0,
                now.0
            );
            ensure!(
                now.1 <= before.1 + KIBIBYTES,
                "KiB of the {what}: {}, then {}",
                before.1,
                now.1
            );
        }
        Ok(())
    }
}

fn collect(root: &Path, folder: &Path, into: &mut BTreeMap<String, usize>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if KEPT.iter().any(|kept| name.starts_with(kept)) {
            continue;
        }
        if let Some((home, _)) = AHEAD.iter().find(|(home, _)| name.starts_with(home)) {
            *into.entry((*home).to_owned()).or_default() += 1;
            continue;
        }
        // Containers' own files are not the agent's.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !name.ends_with("/rootfs") {
            collect(root, &path, into);
        }
        let version = |part: &&str| part.starts_with("..") && *part != "..data";
        let parts = name
            .split('/')
            .map(|part| if version(&part) { "..VERSION" } else { part });
        *into.entry(parts.collect::<Vec<_>>().join("/")).or_default() += 1;
    }
}
