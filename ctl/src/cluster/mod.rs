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

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

/// Where the API server finds the agent by any of the node's addresses: who listens for IPv6 hears IPv4, too, but machines
/// without IPv6 have nothing to listen on.
fn listen(node_addresses: &[IpAddr], port: u16) -> String {
    let any = if node_addresses.iter().any(IpAddr::is_ipv6) {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    };
    SocketAddr::new(any, port).to_string()
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
        ("--listen", listen(&settings.node_addresses, settings.agent_port)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_listens_where_its_node_is() {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(listen(&addresses(&["192.0.2.7"]), 10250), "0.0.0.0:10250");
        assert_eq!(listen(&addresses(&["2001:db8::7"]), 10250), "[::]:10250");
        assert_eq!(listen(&addresses(&["192.0.2.7", "2001:db8::7"]), 10251), "[::]:10251");
        assert_eq!(listen(&[], 10250), "0.0.0.0:10250");
    }
}
