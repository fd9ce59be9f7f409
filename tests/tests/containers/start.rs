//! A machine with the given parts, with its own containerd where it needs one.

use anyhow::ensure;
use tests::machine::{Machine, Namespace, Setup};
use tests::parts::{self, Parts};

use super::daemon::Daemon;

/// After a failure its parts end in this order.
pub(crate) struct Started {
    pub(crate) machine: Machine,
    pub(crate) containerd: Option<Daemon>,
    /// CNI's configuration and addresses, containerd's directory, and the machine's files that pods
    /// mount.
    pub(crate) folder: tempfile::TempDir,
}

impl Started {
    /// Starts with additional environment variables for the daemons.
    pub(crate) async fn with(parts: Parts, test: &str, environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let namespace = Namespace::new(&parts.name(test))?;
        namespace.enter()?;
        let folder = tempfile::Builder::new().prefix(&format!("skiff-{test}-")).tempdir()?;
        let home = folder.path().join("containerd");
        let containerd = if parts.containerd {
            Some(Daemon::start(&home).await)
        } else {
            None
        };
        let (address, name) = (Daemon::address(&home), Daemon::namespace(&home));
        let options = parts.options(&namespace, folder.path(), (&address, &name))?;
        let machine = Machine::start_with(
            namespace,
            Setup {
                environment,
                words: &options,
                ..Setup::default()
            },
        )?;
        Ok(Self {
            machine,
            containerd,
            folder,
        })
    }

    /// Stops the cluster and checks that nothing is left.
    pub(crate) async fn finish(mut self) -> anyhow::Result<()> {
        if let Some(daemon) = &self.containerd {
            self.machine.keep(daemon.pid());
        }
        self.machine.finish()?;
        if let Some(daemon) = self.containerd {
            daemon.finish().await;
        }
        let held = parts::addresses_held(self.folder.path())?;
        ensure!(held.is_empty(), "addresses are left: {held:?}");
        for logs in ["log/pods", "log/containers"] {
            ensure!(!self.folder.path().join(logs).exists(), "{logs} is left");
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let folder = self.folder.path().display().to_string();
        let left: Vec<&str> = mounts.lines().filter(|line| line.contains(&folder)).collect();
        ensure!(left.is_empty(), "mounts are left: {left:?}");
        Ok(())
    }
}
