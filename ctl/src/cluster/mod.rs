//! A cluster of one node on this machine, or a node of another machine's cluster: one or two
//! daemons and one state directory.
//!
//! ```text
//! DIR/cluster.json       settings of this cluster: ports, CIDRs, names
//! DIR/admin.kubeconfig   written by the control plane
//! DIR/controlplane/      state of the control plane      DIR/controlplane.log  DIR/controlplane.pid
//! DIR/agent/             state of the node agent         DIR/agent.log         DIR/agent.pid
//!                        (a log of 32 MiB is put aside by its daemon, as `agent.log.1`)
//! DIR/agent/pki/         its credentials: issued by the control plane here, or by a bootstrap token
//!                        (`bootstrap.kubeconfig`)
//!
//! Daemons that are systemd units have the directories of the units: see [`daemons::unit`].
//! ```

pub(crate) mod copy;
pub(crate) mod daemons;
mod directory;
pub(crate) mod down;
mod left;
pub(crate) mod membership;
mod settings;
pub(crate) mod status;
pub(crate) mod test_assets;
pub(crate) mod uninstall;
pub(crate) mod up;
pub(crate) mod upgrade;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::arguments::{CheckOptions, DEFAULT_STATE, Part, Place};
use crate::check::{self, Finding, Level, Node, Port, Purpose};
use crate::terminal;
use daemons::process::Daemon;
use daemons::unit;
use membership::discovery;
use ring::digest;
use settings::{Settings, addresses};

impl Place {
    /// The directory of this machine's node: where nobody names one, that of a cluster here, or of the agent's unit.
    pub(crate) fn node_dir(&self) -> PathBuf {
        let own = self.state_dir();
        let other = unit::joined().filter(|_| self.state_dir.is_none() && !own.join("cluster.json").exists());
        other.unwrap_or(own)
    }

    /// The directory of a node that this machine is to become.
    pub(crate) fn dir_to_join(&self) -> PathBuf {
        let other = unit::to_join().filter(|_| self.state_dir.is_none());
        other.unwrap_or_else(|| self.state_dir())
    }

    /// The state directory of the control plane's unit, where that is the cluster which is meant.
    pub(crate) fn served_dir(&self) -> Option<PathBuf> {
        Some(self.state_dir()).filter(|own| unit::serves(own))
    }

    /// Advice for making a server at the kubeconfig's address answer.
    pub(crate) fn remedy(&self) -> String {
        let kubeconfig = self.kubeconfig();
        if kubeconfig != self.state_dir().join("admin.kubeconfig") {
            return format!("see whether {} names the right server", kubeconfig.display());
        }
        self.start()
    }

    /// The kubeconfig to use.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        if let Some(given) = &self.kubeconfig {
            return given.clone();
        }
        if self.state_dir.is_none()
            && let Some(set) = std::env::var_os("KUBECONFIG").filter(|set| !set.is_empty())
        {
            return PathBuf::from(set);
        }
        let own = self.state_dir().join("admin.kubeconfig");
        let nodes = || nodes_kubeconfig(&self.node_dir()).filter(|_| !own.exists());
        nodes().unwrap_or(own)
    }
}

/// Returns the path of a program that was installed beside this one.
pub(crate) fn sibling(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the own executable")?;
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "{} is missing beside {}", path.display(), own.display());
    Ok(path)
}

fn control_plane(state_dir: &Path) -> Daemon {
    Daemon::new(state_dir, "controlplane")
        .locking(state_dir.join("controlplane/skiff.db.lock"))
        .of_unit(unit::serves(state_dir).then_some(unit::SERVER))
}

fn agent(state_dir: &Path) -> Daemon {
    Daemon::new(state_dir, "agent")
        .locking(agent_directory(state_dir).join("agent.lock"))
        .of_unit(unit::is_its(state_dir).then_some(unit::AGENT))
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
fn purpose(place: &Place, options: &CheckOptions, node: bool, server: bool) -> anyhow::Result<Purpose> {
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

/// Prints a line for each finding. Exit code 1 after a failure.
pub(crate) async fn run_checks(place: &Place, options: &CheckOptions) -> anyhow::Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "looking at a machine needs root");
    let (node, server) = match options.part {
        None => (true, options.server.is_none()),
        Some(Part::Agent) => (true, false),
        Some(Part::Controlplane) => (false, true),
    };
    let mut found = check::look(&purpose(place, options, node, server)?);
    if let Some(server) = &options.server {
        found.push(against(server).await?);
    }
    let worst = found.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    if options.output.is_some() {
        terminal::line(format!("{:#}", json!({"result": worst, "checks": found})))?;
    } else {
        for finding in &found {
            terminal::line(finding.line())?;
        }
    }
    Ok(if worst == Level::Fail {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Compares the clock with that of the server to join.
async fn against(server: &str) -> anyhow::Result<Finding> {
    let name = "server";
    let endpoint = discovery::Endpoint::parse(server)?;
    Ok(match discovery::clock_against(&endpoint).await {
        Ok(None) => Finding::ok(name, format!("{endpoint} answers; its clock goes as this one")),
        Ok(Some(difference)) => Finding::bad(
            Level::Fail,
            name,
            format!("{endpoint} answers; by this machine's clock, {difference}"),
            "certificates need the time: let chrony or systemd-timesyncd set it on both",
        ),
        Err(error) => Finding::bad(
            Level::Fail,
            name,
            format!("{error:#}"),
            "see whether the address is right, and whether a firewall drops the connection",
        ),
    })
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
    if unit::is_its(state_dir) || state_dir == Path::new(DEFAULT_STATE) {
        // The machine's own node is where others' software looks for one. As in the unit.
        pairs.push(("--pod-logs-dir", "/var/log/pods".to_owned()));
        pairs.push(("--kubelet-dir", "/var/lib/kubelet".to_owned()));
    }
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
    ];
    // The unit's agent finds it at each start: a copy of the machine has the settings, too.
    if !unit::is_its(state_dir) {
        pairs.push(("--instance-id", instance_id(state_dir)));
    }
    let own = &settings.node_addresses;
    let is_joined = settings.joined.is_some();
    if !is_joined {
        pairs.push(("--pod-cidr", settings.pod_cidr.clone()));
    }
    if is_joined || settings.fixed_addresses || addresses::are_of_another(own, &settings.pod_cidr) {
        // Those of a router in front of the machine are for the certificate alone.
        let is_own = |address: IpAddr| !address.is_loopback() && (is_joined || addresses::is_here(address));
        let own = own.iter().filter(|address| is_own(**address));
        pairs.extend(own.map(|address| ("--address", address.to_string())));
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
fn nodes_kubeconfig(state_dir: &Path) -> Option<PathBuf> {
    let settings = Settings::read(state_dir).ok().flatten()?;
    let kubeconfig = pki(state_dir).join("agent.kubeconfig");
    (settings.joined.is_some() && kubeconfig.is_file()).then_some(kubeconfig)
}

/// Returns the stable identity of the node in a state directory of this machine. Copies of a
/// virtual machine share `/etc/machine-id`, but not their firmware's UUID.
fn instance_id(state_dir: &Path) -> String {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    identifier(
        &read("/etc/machine-id"),
        &read("/sys/class/dmi/id/product_uuid"),
        state_dir,
    )
}

fn identifier(machine: &[u8], firmware: &[u8], state_dir: &Path) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [
        machine,
        b"\n",
        firmware,
        b"\n",
        state_dir.as_os_str().as_encoded_bytes(),
    ] {
        hash.update(part);
    }
    hex(hash.finish().as_ref().get(..16).unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_machine_is_another_one() {
        let dir = Path::new("/var/lib/skiff-agent");
        // As the agent computes it.
        assert_eq!(identifier(b"m\n", b"u\n", dir), "8d11276034cda1e5a7c3d75052a733c5");
        assert_ne!(identifier(b"m\n", b"v\n", dir), identifier(b"m\n", b"u\n", dir));
        let mut settings = Settings::nothing();
        settings.joined = Some("https://10.0.0.1:6443".to_owned());
        let of = |dir: &str| {
            chosen_arguments(Path::new(dir), &settings)
                .concat()
                .contains("--instance-id")
        };
        assert!(of("/tmp/a"));
        assert!(!of(unit::STATE), "what the unit reads is copied with the machine");
    }

    #[test]
    fn the_agent_is_told_addresses_that_it_would_not_find() {
        let mut settings = Settings::nothing();
        let addresses = |settings: &Settings| {
            let flags = chosen_arguments(Path::new("/tmp/a"), settings);
            let pairs = flags.windows(2).filter(|pair| pair[0] == "--address");
            pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
        };
        settings.node_addresses = ["192.0.2.7", "127.0.0.1"].map(|text| text.parse().unwrap()).to_vec();
        for is_fixed in [false, true] {
            settings.fixed_addresses = is_fixed;
            assert!(addresses(&settings).is_empty(), "the machine does not have them");
        }
        settings.joined = Some("https://192.0.2.1:6443".to_owned());
        assert_eq!(addresses(&settings), ["192.0.2.7"]);
    }
}
