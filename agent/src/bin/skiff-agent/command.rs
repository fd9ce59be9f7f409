//! The command line.

mod backends;
mod registration;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::connection::Servers;
use agent::log_files::LogFiles;
use agent::serve::Files;
use agent::{Config, Parts, clock, machine};
use agent_plan::container::files::ClusterDns;
use agent_plan::network::node_routes::Mode;
use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{CommandFactory, FromArgMatches as _, Parser};
use http::Uri;
use image::Images;
use kube::config::Kubeconfig;
use network::{Cidr, Ranges};

use registration::RegistrationArguments;

use crate::addresses::Choice;
use crate::proxying::ProxyArguments;
use crate::upkeep::UpkeepArguments;

/// A CNI plugin has so long to answer.
const PLUGIN_LIMIT: Duration = Duration::from_secs(30);

/// Number of directories that are made ahead: two for each pod of a large burst.
const SPARES: usize = 200;

/// Subcommand of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Run,
    Cleanup,
}

/// Container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RuntimeKind {
    /// libcontainer in this program
    Embedded,
    /// A containerd of this machine
    Containerd,
}

/// The ways that lead to the pods of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum NodeRoutes {
    /// Straight ones to nodes on the same link, and a VXLAN tunnel to others
    Auto,
    /// Straight ones alone
    Direct,
    /// The tunnel alone, on all nodes: for networks that drop what is not a machine's own, as many clouds do
    Tunnel,
    /// Those of the operator
    None,
}

impl NodeRoutes {
    const fn mode(self) -> Option<Mode> {
        match self {
            Self::Auto => Some(Mode::Auto),
            Self::Direct => Some(Mode::Direct),
            Self::Tunnel => Some(Mode::Tunnel),
            Self::None => None,
        }
    }
}

/// Pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum NetworkKind {
    /// A bridge of this program's own
    Bridge,
    /// CNI plugins of this machine
    Cni,
}

#[derive(Debug, Parser)]
#[command(name = "skiff-agent", version, about = "Runs the pods of one node")]
// Flags of an operator override those that `skiff join` chose.
#[command(args_override_self = true)]
pub(crate) struct Arguments {
    /// `run` the agent, or `cleanup` everything that it made on this machine
    #[arg(default_value = "run", value_parser = ["run", "cleanup"])]
    command: String,
    /// Where the agent keeps what is its own
    #[arg(long)]
    pub(crate) state_dir: PathBuf,
    /// Where containers' logs lie, with links to them in the directory `containers` beside it: `/var/log/pods` is where collectors
    /// look. Otherwise `logs` in --state-dir, without links
    #[arg(long, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
    /// What stands for a kubelet's --root-dir, where plugins register: `/var/lib/kubelet` is where they look. Otherwise `kubelet` in
    /// --state-dir
    #[arg(long, value_name = "DIR")]
    pub(crate) kubelet_dir: Option<PathBuf>,
    /// Name of the Node
    #[arg(long)]
    pub(crate) node_name: String,
    /// How to reach the API server, as user system:node:NAME
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Address of an API server, HOST:PORT, instead of that in the kubeconfig; may be repeated, or with commas between. The first
    /// one is asked, and the next one when it does not answer
    #[arg(long, env = "SKIFF_SERVER", value_name = "ADDRESS", value_parser = servers)]
    server: Vec<Vec<Uri>>,
    /// How to reach the API server, with a token, as long as there is no valid certificate in --kubeconfig: one is asked for, and
    /// for the agent's own server, and written to where the other flags say
    #[arg(long, value_name = "FILE")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// An identifier of this machine, by which it knows its Node again; `machine` for one of its firmware's and its
    /// system's identifiers and of --state-dir, which no copy of the machine has
    #[arg(long, value_name = "TEXT")]
    instance_id: Option<String>,
    /// Certificate of the agent's own server (PEM)
    #[arg(long)]
    serving_cert: PathBuf,
    /// Its key
    #[arg(long)]
    serving_key: PathBuf,
    /// Authority of the clients that the agent's server takes (PEM)
    #[arg(long)]
    client_ca: PathBuf,
    /// Where the agent's server listens; 0.0.0.0 is every address, those of IPv6 too
    #[arg(long, default_value = "0.0.0.0:10250")]
    pub(crate) listen: SocketAddr,
    /// The node's address; may be repeated, the first one's family is then that of status.podIP. Otherwise that of the interface
    /// which leads to the API server, and one of the other family where pods have one
    #[arg(long, alias = "node-ip", value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// Range of the pods' addresses, or with a comma one of each family. Otherwise what the control plane gives the node
    #[arg(long)]
    pod_cidr: Option<Ranges>,
    /// Root of the agent's control groups; skiff/NODE-NAME by default
    #[arg(long)]
    cgroup_root: Option<String>,
    /// What makes the containers
    #[arg(long, value_enum, default_value = "embedded")]
    runtime: RuntimeKind,
    /// containerd's socket
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    containerd_address: PathBuf,
    /// The containerd namespace of the node's containers
    #[arg(long, default_value = "skiff")]
    containerd_namespace: String,
    /// containerd's snapshotter that has the images and the containers' root file systems
    #[arg(long, default_value = "overlayfs")]
    containerd_snapshotter: String,
    /// `cleanup` removes the images in containerd too; those of the embedded runtime are in the state directory
    #[arg(long)]
    pub(crate) with_images: bool,
    /// What connects the pods
    #[arg(long, value_enum, default_value = "bridge")]
    network: NetworkKind,
    /// Directory of the CNI configurations; the first one by name is used
    #[arg(long, default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Directories of the CNI plugins, separated by colons
    #[arg(long, default_value = "/opt/cni/bin:/usr/lib/cni")]
    cni_bin_dir: std::ffi::OsString,
    /// Name of the pods' bridge
    #[arg(long, default_value = "skiff0")]
    bridge: String,
    /// The routes that the built-in network makes to the pods of other nodes
    #[arg(long, value_enum, default_value = "auto")]
    node_routes: NodeRoutes,
    /// Range that is reached without masquerade, besides the pods' own; may be repeated
    #[arg(long)]
    direct_cidr: Vec<Cidr>,
    /// How many pods' networks the built-in network makes ahead of time
    #[arg(long, default_value_t = 32)]
    pod_slots: usize,
    /// How many pods the node takes
    #[arg(long, default_value_t = 110)]
    max_pods: u32,
    #[command(flatten)]
    upkeep: UpkeepArguments,
    #[command(flatten)]
    proxy: ProxyArguments,
    #[command(flatten)]
    registration: RegistrationArguments,
    /// Address of the cluster's name server; may be repeated
    #[arg(long)]
    cluster_dns: Vec<IpAddr>,
    /// The cluster's domain
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    /// File from which pods take the machine's name servers; an empty one is none. Otherwise `/etc/resolv.conf`, or where that
    /// names no servers but on the loopback, the file in which systemd-resolved or `NetworkManager` tells whom those ask
    #[arg(long, value_parser = OsStringValueParser::new().map(PathBuf::from))]
    resolv_conf: Option<PathBuf>,
    /// Directory of image archives that are imported at the start
    #[arg(long)]
    pub(crate) image_dir: Option<PathBuf>,
    /// Ask this host before the registry, REGISTRY=HOST, or REGISTRY=HOST/PATH where the mirror's names begin with a path; may be
    /// repeated
    #[arg(long, value_parser = mirror)]
    registry_mirror: Vec<(String, String)>,
    /// Registry that speaks HTTP without TLS; may be repeated
    #[arg(long)]
    registry_plain_http: Vec<String>,
    /// Trust these certificates (PEM) for pulls from this registry or mirror alone, REGISTRY=FILE; may be repeated
    ///
    /// REGISTRY is its host, with the port where names of images have one. An authority in the file is trusted besides
    /// those of the machine: for the registry, for the server that gives its tokens, and for where it redirects to. A
    /// certificate that names the host itself, signed by whomever, is trusted for that host and no other.
    #[arg(long, value_parser = pair)]
    registry_ca: Vec<(String, String)>,
    /// The flags above by name
    #[arg(skip)]
    flags: Vec<(String, String)>,
}

pub(crate) fn parse() -> Arguments {
    let matches = <Arguments as CommandFactory>::command().get_matches();
    let mut arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    arguments.flags = common::flags::set(&<Arguments as CommandFactory>::command(), &matches);
    arguments
}

/// The address of an API server is none.
#[derive(Debug, thiserror::Error)]
#[error("expected HOST:PORT, such as 10.0.0.1:6443, or https://HOST:PORT")]
struct InvalidServer;

/// Reads addresses with commas between; empty places are passed over.
fn servers(text: &str) -> Result<Vec<Uri>, InvalidServer> {
    let each = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    each.map(server).collect()
}

fn server(text: &str) -> Result<Uri, InvalidServer> {
    let authority = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    let uri: Uri = format!("https://{authority}")
        .parse()
        .map_err(|_invalid| InvalidServer)?;
    let is_bare = uri.path() == "/" && uri.query().is_none() && !authority.contains('@');
    (is_bare && uri.port_u16().is_some())
        .then_some(uri)
        .ok_or(InvalidServer)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Reads a mirror, which may be written as a URL; one of plain HTTP has a flag of its own.
fn mirror(text: &str) -> Result<(String, String), String> {
    let (registry, mirror) = pair(text)?;
    let bare = mirror.strip_prefix("https://").unwrap_or(&mirror).trim_end_matches('/');
    if bare.is_empty() || bare.contains("://") {
        return Err("a mirror is HOST or HOST/PATH; --registry-plain-http HOST is for one without TLS".to_owned());
    }
    Ok((registry, bare.to_owned()))
}

impl Arguments {
    pub(crate) fn command(&self) -> Command {
        if self.command == "cleanup" {
            Command::Cleanup
        } else {
            Command::Run
        }
    }

    pub(crate) fn tls_files(&self) -> Files {
        Files {
            certificate: self.serving_cert.clone(),
            key: self.serving_key.clone(),
            client_authority: self.client_ca.clone(),
        }
    }

    pub(crate) fn image_config(&self) -> image::Config {
        let mut registries: BTreeMap<String, image::Registry> = BTreeMap::new();
        for (host, mirror) in &self.registry_mirror {
            registries.entry(host.clone()).or_default().mirrors.push(mirror.clone());
        }
        for host in &self.registry_plain_http {
            registries.entry(host.clone()).or_default().plain_http = true;
        }
        for (host, file) in &self.registry_ca {
            registries
                .entry(host.clone())
                .or_default()
                .authorities
                .push(file.into());
        }
        image::Config {
            registries,
            ..image::Config::default()
        }
    }

    /// Removes what holds pods to network policies on this machine.
    pub(crate) fn remove_network_policies(&self) -> Result<(), network::Error> {
        network::policies::remove(&network::policies::table(&self.bridge))
    }

    /// Removes what leads to Services on this machine.
    pub(crate) fn remove_service_proxy(&self) -> Result<(), network::Error> {
        network::services::remove(&network::services::table(&self.bridge))
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) async fn parts(&self, client: kube::Client, images: &Images) -> anyhow::Result<Parts> {
        Ok(Parts {
            client,
            runtime: self.runtime().await?,
            network: self.network()?,
            images: Arc::new(images.clone()),
            clock: clock::wall(),
        })
    }

    pub(crate) fn config(&self, port: u16, addresses: Vec<IpAddr>) -> anyhow::Result<Config> {
        let state_directory = std::fs::canonicalize(&self.state_dir).context("find the state directory")?;
        Ok(Config {
            logs: self.logs(&state_directory),
            kubelet_directory: self.kubelet_directory(&state_directory),
            network_policies: self.proxy.network_policies(&self.bridge),
            service_proxy: self.proxy.service_proxy(&self.bridge, &addresses),
            node_name: self.node_name.clone(),
            state_directory,
            spares: SPARES,
            pod_cidr: self.pod_cidr,
            addresses,
            port,
            max_pods: self.max_pods,
            upkeep: self.upkeep.upkeep()?,
            shutdown: self.upkeep.shutdown()?,
            dns: ClusterDns {
                servers: self.cluster_dns.iter().map(ToString::to_string).collect(),
                domain: self.cluster_domain.clone(),
            },
            resolv_conf: self.resolv_conf.clone(),
            server: self.server_address(),
            secrets_in_memory: true,
            instance_id: self.instance_id.as_ref().map(|given| match given.as_str() {
                "machine" => machine::instance_id(&self.state_dir),
                given => given.to_owned(),
            }),
            registration: self.registration.registration()?,
            flags: self.flags.clone(),
        })
    }

    pub(crate) fn logs(&self, state_directory: &Path) -> LogFiles {
        LogFiles::new(state_directory, self.pod_logs_dir.clone())
    }

    pub(crate) fn kubelet_directory(&self, state_directory: &Path) -> PathBuf {
        agent::kubelet_directory::claim(self.kubelet_dir.as_deref(), state_directory)
    }

    /// The servers that are asked.
    pub(crate) fn servers(&self) -> Servers {
        Servers::new(&self.server.concat())
    }

    /// Address of the API server, an IPv4 one if there is one.
    fn server_address(&self) -> Option<SocketAddr> {
        let uri = self.server_url().ok()?;
        let host = format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(443));
        host.to_socket_addrs().ok()?.min_by_key(SocketAddr::is_ipv6)
    }

    /// URL of the first server that is asked.
    fn server_url(&self) -> anyhow::Result<Uri> {
        if let Some(first) = self.server.iter().flatten().next() {
            return Ok(first.clone());
        }
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).context("read the kubeconfig")?;
        let cluster = kubeconfig.clusters.first().and_then(|cluster| cluster.cluster.as_ref());
        let server = cluster
            .and_then(|cluster| cluster.server.clone())
            .context("the kubeconfig names no server")?;
        server.parse().context("the server's address")
    }

    /// Each server alone.
    pub(crate) fn each_server(&self) -> Vec<Servers> {
        match self.server.concat().as_slice() {
            [] => vec![Servers::new(&[])],
            given => given
                .iter()
                .map(|server| Servers::new(std::slice::from_ref(server)))
                .collect(),
        }
    }

    /// The node's given addresses.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.address
    }

    /// Choice of the addresses where none are given.
    pub(crate) fn choice(&self) -> anyhow::Result<Choice> {
        let servers = match self.server.concat() {
            given if given.is_empty() => vec![self.server_url()?],
            given => given,
        };
        let proxy = Kubeconfig::read_from(&self.kubeconfig).ok();
        let proxy = proxy.as_ref().and_then(common_proxy::given);
        // The proxy alone may know the server's name, or have a route to it.
        let nearest = |server: Uri| common_proxy::towards(proxy.as_ref(), &server).unwrap_or(server);
        let servers: Vec<Uri> = servers.into_iter().map(nearest).collect();
        let of = |v6| self.pod_cidr.is_some_and(|ranges| ranges.of_family(v6).is_some());
        Ok(Choice::new(&servers, (of(false), of(true))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_port_and_no_path() {
        for (text, expected) in [
            ("10.0.0.1:6443", Some("https://10.0.0.1:6443/")),
            ("https://plane.example:443/", Some("https://plane.example:443/")),
            ("[fd30::1]:6443", Some("https://[fd30::1]:6443/")),
            ("10.0.0.1", None),
            ("http://10.0.0.1:6443", None),
            ("10.0.0.1:6443/path", None),
            ("10.0.0.1:6443?a", None),
            ("a@10.0.0.1:6443", None),
            ("", None),
        ] {
            let read = server(text).map(|uri| uri.to_string()).ok();
            assert_eq!(read.as_deref(), expected, "{text}");
        }
        assert_eq!(servers("a:1, b:2,").unwrap().len(), 2);
        assert_eq!(servers("").unwrap().len(), 0, "an emptied line of the unit's file");
    }

    #[test]
    fn mirrors_are_hosts_that_may_have_a_path() {
        for (text, expected) in [
            ("docker.io=mirror.example", Some("mirror.example")),
            ("docker.io=mirror.example:5000/hub/", Some("mirror.example:5000/hub")),
            ("docker.io=https://mirror.example/", Some("mirror.example")),
            ("docker.io=http://mirror.example", None),
            ("docker.io=", None),
            ("mirror.example", None),
        ] {
            let read = mirror(text).map(|(_, mirror)| mirror).ok();
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }
}
