//! A cluster of one node on this machine: two daemons and one state directory.
//!
//! ```text
//! DIR/cluster.json       what was chosen for this cluster: ports, ranges, names
//! DIR/admin.kubeconfig   made by the control plane
//! DIR/controlplane/      the control plane's state      DIR/controlplane.log  DIR/controlplane.pid
//! DIR/agent/             the node agent's state         DIR/agent.log         DIR/agent.pid
//! ```

pub(crate) mod copy;
pub(crate) mod down;
mod process;
mod settings;
pub(crate) mod status;
pub(crate) mod up;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use process::Daemon;
use settings::Settings;

/// A program that was installed beside this one.
fn sibling(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the own executable")?;
    let path = own.with_file_name(name);
    anyhow::ensure!(path.is_file(), "{} is missing beside {}", path.display(), own.display());
    Ok(path)
}

fn control_plane(state_dir: &Path) -> Daemon {
    Daemon::new(state_dir, "controlplane").locking(state_dir.join("controlplane/skiff.db.lock"))
}

fn agent(state_dir: &Path) -> Daemon {
    Daemon::new(state_dir, "agent").locking(state_dir.join("agent/agent.lock"))
}

/// The agent's flags, the same for running it and for cleaning up after it.
fn agent_arguments(state_dir: &Path, settings: &Settings) -> Vec<String> {
    let directory = state_dir.join("agent");
    let pki = directory.join("pki");
    let path = |path: PathBuf| path.display().to_string();
    let pairs = [
        ("--state-dir", path(directory)),
        ("--node-name", settings.node_name.clone()),
        ("--kubeconfig", path(pki.join("agent.kubeconfig"))),
        ("--serving-cert", path(pki.join("serving.crt"))),
        ("--serving-key", path(pki.join("serving.key"))),
        ("--client-ca", path(pki.join("ca.crt"))),
        (
            "--listen",
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, settings.agent_port)).to_string(),
        ),
        ("--pod-cidr", settings.pod_cidr.clone()),
        ("--cgroup-root", settings.cgroup_root.clone()),
        ("--bridge", settings.bridge.clone()),
    ];
    pairs
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .chain(settings.backends.flags())
        .collect()
}
