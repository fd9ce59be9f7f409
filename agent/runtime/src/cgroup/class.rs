//! Paths of pods' cgroups below our root: the pods of a class share a parent.
//!
//! ```text
//! ROOT/kubepods               limited to the node's allocatable resources
//!   POD                       Guaranteed
//!   burstable/POD             CPU shares by the sum of their requests
//!   besteffort/POD            least CPU shares
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::Cgroups;
use crate::{Class, Limits, Usage};

/// Cgroup of all pods.
const PODS: &str = "kubepods";
/// Least `cpu.shares` that the kernel accepts, for pods that request no CPU.
const LEAST: u64 = 2;

impl Class {
    /// All classes.
    pub(crate) const ALL: [Self; 3] = [Self::Guaranteed, Self::Burstable, Self::BestEffort];

    /// Cgroup of the class below our root.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Guaranteed => PODS,
            Self::Burstable => "kubepods/burstable",
            Self::BestEffort => "kubepods/besteffort",
        }
    }
}

impl Cgroups {
    /// Returns the group of a sandbox of any class; if there is none, the path that it would have.
    pub(crate) fn locate(&self, root: &Path, sandbox: &str) -> PathBuf {
        let places = || Class::ALL.iter().map(|class| root.join(class.folder()).join(sandbox));
        // A complete group is in each hierarchy.
        let complete = |mount: &Path| places().find(|group| mount.join(group).exists());
        let any = || places().find(|group| self.exists(group));
        let found = self.mounts().next().and_then(complete).or_else(any);
        found.unwrap_or_else(|| root.join(PODS).join(sandbox))
    }

    /// Usage of all pods together; their supervisors are neither counted nor limited here.
    pub(crate) fn usage_of_pods(&self, root: &str) -> Usage {
        self.usage(Some(&Path::new(root).join(PODS)))
    }

    /// Groups of sandboxes and other groups below our root, except those of these names.
    pub(crate) fn strays(&self, root: &Path, kept: &BTreeSet<String>) -> Vec<PathBuf> {
        let classes: BTreeSet<PathBuf> = Class::ALL.iter().map(|class| root.join(class.folder())).collect();
        let folders = std::iter::once(root.to_owned()).chain(classes.iter().cloned());
        let children = folders.flat_map(|folder| {
            let names = self.children(&folder).into_iter().filter(|name| !kept.contains(name));
            names.map(|name| folder.join(name)).collect::<Vec<_>>()
        });
        children.filter(|group| !classes.contains(group)).collect()
    }

    /// Limits all pods together, and sets the CPU shares of class Burstable as a whole.
    pub(crate) fn arrange(&self, root: &Path, all: &Limits, burstable: u64) -> io::Result<()> {
        let shares = |shares: u64| Limits {
            cpu_shares: Some(shares.max(LEAST)),
            ..Limits::default()
        };
        for (class, limits) in [
            (Class::Guaranteed, all.clone()),
            (Class::Burstable, shares(burstable)),
            (Class::BestEffort, shares(LEAST)),
        ] {
            let group = root.join(class.folder());
            self.create(&group)?;
            self.limit(&group, &limits)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(at: &Path, files: &[&str]) {
        fs::create_dir_all(at).unwrap();
        for file in files {
            fs::write(at.join(file), "").unwrap();
        }
    }

    #[test]
    fn sandboxes_are_found_wherever_they_were_made() {
        let mount = tempfile::tempdir().unwrap();
        let line = format!("30 24 0:26 / {} rw - cgroup2 cgroup2 rw\n", mount.path().display());
        let (cgroups, root) = (Cgroups::parse(&line), Path::new("skiff/node"));
        for made in [
            "kubepods/one",
            "kubepods/burstable/two",
            "kubepods/besteffort/three",
            "old",
            "supervisors",
        ] {
            write(&mount.path().join(root).join(made), &[]);
        }
        for (name, place) in [
            ("one", "kubepods/one"),
            ("two", "kubepods/burstable/two"),
            ("three", "kubepods/besteffort/three"),
            ("new", "kubepods/new"),
        ] {
            assert_eq!(cgroups.locate(root, name), root.join(place));
        }
        let kept = BTreeSet::from(["one", "supervisors"].map(str::to_owned));
        let mut strays = cgroups.strays(root, &kept);
        strays.sort();
        let expected = ["kubepods/besteffort/three", "kubepods/burstable/two", "old"];
        assert_eq!(strays, expected.map(|place| root.join(place)));
    }

    #[test]
    fn classes_get_their_shares_on_v2() {
        let mount = tempfile::tempdir().unwrap();
        let line = format!("30 24 0:26 / {} rw - cgroup2 cgroup2 rw\n", mount.path().display());
        let (cgroups, root) = (Cgroups::parse(&line), Path::new("skiff"));
        let files = ["cgroup.subtree_control", "cpu.weight", "memory.max", "pids.max"];
        for made in ["", "kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            write(&mount.path().join(root).join(made), &files);
        }
        let all = Limits {
            cpu_shares: Some(2048),
            memory: Some(1 << 30),
            ..Limits::default()
        };
        cgroups.arrange(root, &all, 1024).unwrap();
        let read = |file: &str| fs::read_to_string(mount.path().join(root).join(file)).unwrap();
        let seen = [
            "kubepods/cpu.weight",
            "kubepods/memory.max",
            "kubepods/burstable/cpu.weight",
        ]
        .map(read);
        assert_eq!(seen, ["79", "1073741824", "39"]);
        assert_eq!(read("kubepods/besteffort/cpu.weight"), "1");
        assert_eq!(
            read("kubepods/burstable/memory.max"),
            "",
            "no memory is kept for a class"
        );
    }
}
