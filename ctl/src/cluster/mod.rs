//! A cluster of one node on this machine, or a node of another machine's cluster: one or two
//! daemons and one state directory.
//!
//! ```text
//! DIR/cluster.json       settings of this cluster: ports, CIDRs, names
//! DIR/admin.kubeconfig   written by the control plane
//! DIR/controlplane/      state of the control plane      DIR/controlplane.log  DIR/controlplane.pid
//! DIR/agent/             state of the node agent         DIR/agent.log         DIR/agent.pid
//! DIR/agent/pki/         its credentials: issued by the control plane here, or by a bootstrap token
//!                        (`bootstrap.kubeconfig`)
//!
//! Daemons that are systemd units have the directories of the units: see [`unit`].
//! ```

pub(crate) mod copy;
mod directory;
pub(crate) mod discovery;
pub(crate) mod down;
pub(crate) mod join;
pub(crate) mod leave;
mod left;
mod process;
mod readiness;
mod served;
mod settings;
pub(crate) mod status;
pub(crate) mod uninstall;
pub(crate) mod unit;
pub(crate) mod up;
pub(crate) mod upgrade;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::arguments::{CheckOptions, Place};
use crate::check::{Node, Port, Purpose};
use process::Daemon;
use ring::digest;
use settings::Settings;

/// Returns the path of a program that was installed beside this one.
pub(crate) fn sibling(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the own executable")?;
    let path = own.with_file_name(name);
    anyhow::ensure!(path.is_file(), "{} is missing beside {}", path.display(), own.display());
    Ok(path)
}

fn control_plane(state_dir: &Path) -> Daemon {
    Daemon::new(state_dir, "controlplane").locking(state_dir.join("controlplane/skiff.db.lock"))
}

fn agent(state_dir: &Path) -> Daemon {
    Daemon::new(state_dir, "agent").locking(agent_directory(state_dir).join("agent.lock"))
}

/// Returns the role of a machine with these settings.
fn wanted(state_dir: &Path, settings: &Settings) -> Purpose {
    let of = |number, flag| Port {
        number,
        flag,
        is_chosen: true,
    };
    let mut ports = vec![of(settings.agent_port, "--agent-port")];
    if settings.joined.is_none() {
        ports.push(of(settings.listen_port, "--listen-port"));
    }
    Purpose {
        state_dir: state_dir.to_owned(),
        ports,
        node: Some(Node {
            embedded: settings.backends.engine() == "embedded",
            bridge: settings.backends.network.as_deref() != Some("cni"),
        }),
    }
}

/// Returns the current or intended role of this machine: node, server or both.
pub(crate) fn purpose(place: &Place, options: &CheckOptions, node: bool, server: bool) -> anyhow::Result<Purpose> {
    let state_dir = place.node_dir();
    let known = Settings::read(&state_dir)?;
    let of = |number: Option<u16>, usual, flag| Port {
        number: number.filter(|port| *port != 0).unwrap_or(usual),
        flag,
        is_chosen: false,
    };
    let mut ports = Vec::new();
    let home = place.served_dir().unwrap_or_else(|| state_dir.clone());
    if server && control_plane(&home).running().is_none() {
        ports.push(of(known.as_ref().map(|known| known.listen_port), 6443, "--listen-port"));
    }
    if node && agent(&state_dir).running().is_none() {
        ports.push(of(known.as_ref().map(|known| known.agent_port), 10250, "--agent-port"));
    }
    let backends = known.map(|known| known.backends).unwrap_or_default();
    let (runtime, network) = (options.runtime.as_deref(), options.network.as_deref());
    let node = node.then(|| Node {
        embedded: runtime.unwrap_or(backends.engine()) == "embedded",
        bridge: network.or(backends.network.as_deref()) != Some("cni"),
    });
    Ok(Purpose { state_dir, ports, node })
}

/// Returns the agent's flags, the same for `run` and `cleanup`.
fn agent_arguments(state_dir: &Path, settings: &Settings) -> Vec<String> {
    let pki = pki(state_dir);
    let path = |path: PathBuf| path.display().to_string();
    let mut pairs = vec![
        ("--state-dir", path(agent_directory(state_dir))),
        ("--node-name", settings.node_name.clone()),
        ("--kubeconfig", path(pki.join("agent.kubeconfig"))),
        ("--serving-cert", path(pki.join("serving.crt"))),
        ("--serving-key", path(pki.join("serving.key"))),
        ("--client-ca", path(pki.join("ca.crt"))),
    ];
    if settings.joined.is_some() {
        pairs.push(("--bootstrap-kubeconfig", path(pki.join("bootstrap.kubeconfig"))));
    }
    let pairs = pairs.into_iter();
    let pairs = pairs.flat_map(|(flag, value)| [flag.to_owned(), value]);
    let operators = unit::operators("SKIFF_AGENT_FLAGS").filter(|_| unit::is_its(state_dir));
    let operators = operators.unwrap_or_default();
    let operators = operators.split_whitespace().map(str::to_owned);
    pairs
        .chain(chosen_arguments(state_dir, settings))
        .chain(operators)
        .collect()
}

/// Returns the agent's flags that contain no paths.
fn chosen_arguments(state_dir: &Path, settings: &Settings) -> Vec<String> {
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, settings.agent_port));
    let mut pairs = vec![
        ("--listen", listen.to_string()),
        ("--cgroup-root", settings.cgroup_root.clone()),
        ("--bridge", settings.bridge.clone()),
        ("--instance-id", instance_id(state_dir)),
    ];
    if settings.joined.is_some() {
        let addresses = settings.node_addresses.iter();
        pairs.extend(addresses.map(|address| ("--address", address.to_string())));
    } else {
        pairs.push(("--pod-cidr", settings.pod_cidr.clone()));
    }
    let pairs = pairs.into_iter();
    let pairs = pairs.flat_map(|(flag, value)| [flag.to_owned(), value]);
    pairs.chain(settings.backends.flags()).collect()
}

/// Directory of the agent's own state.
fn agent_directory(state_dir: &Path) -> PathBuf {
    if unit::is_its(state_dir) {
        return state_dir.to_owned();
    }
    state_dir.join("agent")
}

/// Directory of the agent's credentials.
fn pki(state_dir: &Path) -> PathBuf {
    if unit::is_its(state_dir) {
        return PathBuf::from(unit::CREDENTIALS);
    }
    state_dir.join("agent/pki")
}

/// Returns the kubeconfig of a node that has joined a cluster, if there is one.
pub(crate) fn nodes_kubeconfig(state_dir: &Path) -> Option<PathBuf> {
    let settings = Settings::read(state_dir).ok().flatten()?;
    let kubeconfig = pki(state_dir).join("agent.kubeconfig");
    (settings.joined.is_some() && kubeconfig.is_file()).then_some(kubeconfig)
}

/// Returns the stable identity of the node in a state directory of this machine. Copies of a
/// virtual machine share `/etc/machine-id`, but not their firmware's UUID.
fn instance_id(state_dir: &Path) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    for file in ["/etc/machine-id", "/sys/class/dmi/id/product_uuid"] {
        hash.update(&std::fs::read(file).unwrap_or_default());
        hash.update(b"\n");
    }
    hash.update(state_dir.as_os_str().as_encoded_bytes());
    hex(hash.finish().as_ref().get(..16).unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}
