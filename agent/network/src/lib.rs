//! Pod network of this machine, behind one trait.
//!
//! [`Network`] is the interface: [`Bridge`] creates network namespaces, veth pairs and a bridge by
//! rtnetlink; [`Cni`] runs standard plugins; [`Sim`] only allocates addresses, for tests. Detaching
//! and stopping are idempotent and continue past errors.

mod bridge;
mod cni;
mod files;
pub mod fuzzing;
pub mod local;
mod nft;
mod plugin;
pub mod policies;
mod ranges;
pub mod services;
mod sim;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use agent_plan::network::bandwidth::Bandwidth;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub use api::cidr::{Cidr, ParseCidrError};
pub use bridge::{Bridge, Config, Nodes, RouteNews};
pub use cni::{Cni, Config as CniConfig};
pub use plugin::{NAME as PLUGIN, helper as plugin};
pub use ranges::{ParseRangesError, Ranges};
pub use sim::Sim;

/// Sandbox to attach, with its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachSpec {
    /// Sandbox id: unique on the machine; letters, digits, `-`, `_` and `.`, at most 64 bytes, not
    /// starting with a dot.
    pub sandbox_id: String,
    /// Pod of the sandbox, which some networks use.
    pub pod: PodId,
    /// Host ports of the pod.
    pub ports: Vec<PortMapping>,
    /// First host ID of the pod's user namespace with its 65536 IDs, which owns the network
    /// namespace.
    #[serde(default)]
    pub user_ids: Option<u32>,
    /// Limits of its traffic, for CNI plugins.
    #[serde(default)]
    pub bandwidth: Bandwidth,
}

/// Identity of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodId {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// Host port that is mapped to a port of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// `hostPort`.
    pub host_port: u16,
    /// `containerPort`.
    pub container_port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `hostIP`: all addresses of the node if absent.
    pub host_address: Option<IpAddr>,
}

/// Network of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Sandbox id.
    pub sandbox_id: String,
    /// Path at which the network namespace is bind-mounted.
    pub netns: PathBuf,
    /// The pod's addresses with the prefix of their range; the first is `status.podIP`.
    pub addresses: Vec<Cidr>,
    /// Default gateway: the bridge's address, of the family of the pod's first address.
    pub gateway: IpAddr,
    /// Name of the interface in the namespace.
    pub interface: String,
    /// Host ports that lead to the pod, if this network maps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
}

/// Pods of the node, for Services and network policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Ranges of their addresses.
    pub ranges: Ranges,
    /// Interface of the node that leads to them.
    pub interface: String,
}

/// A network operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The id cannot be part of a path.
    #[error("invalid sandbox id {0:?}")]
    InvalidId(String),
    /// [`Network::start`] was not called, or with ranges other than the recorded ones.
    #[error("the pod network is not started")]
    NotStarted,
    /// The pods' range is too small.
    #[error("pod range {0}: at least four addresses are needed")]
    RangeTooSmall(Cidr),
    /// The kernel does not support IPv6, or has it disabled.
    #[error("pod range {0}: this machine has no IPv6")]
    NoIpv6(Cidr),
    /// The pods' range cannot change while sandboxes have addresses in it.
    #[error("pods still use addresses of {0}")]
    RangeInUse(Ranges),
    /// The bridge belongs to another network.
    #[error("bridge {bridge} is there already and belongs to {owner}; choose another name")]
    BridgeTaken {
        /// Name of the bridge.
        bridge: String,
        /// State folder of the network that owns it, or a description of an unknown owner.
        owner: String,
    },
    /// Another interface has an address that a pod or their gateway would get.
    #[error(
        "pod range {range}: {interface} has an address of it already; give the interface another one, or choose another range"
    )]
    RangeTaken {
        /// Range of the pods.
        range: Cidr,
        /// Interface that has the address.
        interface: String,
    },
    /// All addresses are allocated.
    #[error("no free address in {0}")]
    Exhausted(Ranges),
    /// A file or namespace operation failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The kernel refused a change of links, addresses, routes or rules.
    #[error("{doing}: {cause}")]
    Kernel {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the kernel or of nft.
        cause: String,
    },
    /// There is no usable CNI configuration.
    #[error("failed to setup network for sandbox {sandbox:?}: cni plugin not initialized: no network configuration in {}", folder.display())]
    Unconfigured {
        /// Sandbox id.
        sandbox: String,
        /// Directory of the configurations.
        folder: PathBuf,
    },
    /// A CNI plugin returned an error or timed out.
    #[error("failed to {doing} network for sandbox {sandbox:?}: {cause}")]
    Plugin {
        /// `setup` or `destroy`.
        doing: &'static str,
        /// Sandbox id.
        sandbox: String,
        /// Error message of the plugin.
        cause: String,
    },
    /// These steps of a tear-down failed; the others were completed.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Incomplete(Vec<String>),
    /// Like `Incomplete`, but only plugins failed, which still hold resources of ended pods.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Held(Vec<String>),
}

impl Error {
    fn io(doing: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io {
            doing,
            path: path.to_path_buf(),
            source,
        }
    }
}

/// Sandbox that lost its link to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Sandbox id.
    pub sandbox_id: String,
    /// Error of the last attempt to connect it again, which is retried; `None` once it is
    /// connected.
    pub failure: Option<String>,
}

/// Pod network, as used by the agent.
pub trait Network: Send + Sync + 'static {
    /// Prepares the machine for pods of these ranges: bridge, forwarding, masquerading, a blackhole
    /// route for each range. Idempotent: a restarted agent calls it again.
    fn start(&self, ranges: Ranges) -> BoxFuture<'_, Result<(), Error>>;

    /// Creates a sandbox's namespace and allocates its address. Idempotent: a second call returns
    /// the same attachment.
    fn attach(&self, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment, Error>>;

    /// Path of an attached sandbox's namespace.
    fn netns(&self, sandbox_id: &str) -> PathBuf;

    /// All attachments, by sandbox id, which a restarted agent adopts or detaches. An incomplete
    /// one has no addresses.
    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>>;

    /// Removes a sandbox's namespace and address. Succeeds if there is none. Its ports are free
    /// when this returns; its address may become free a little later, when the kernel has deleted
    /// the link.
    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>>;

    /// Error message if no sandbox can be attached now, as far as known. Returns within a few
    /// seconds.
    fn unready(&self) -> BoxFuture<'_, Option<String>> {
        futures::future::ready(None).boxed()
    }

    /// Pods that this network connects, if it knows all of them.
    fn served(&self) -> Option<Served> {
        None
    }

    /// Address of the node for servers of its pods, to be taken with [`local::hold`]; `None` if they
    /// reach it by the gateway of their range.
    fn local_address(&self) -> Option<IpAddr> {
        None
    }

    /// True if a pod has this address, as far as this network has to tell it from others'.
    fn has_pod(&self, _address: IpAddr) -> bool {
        true
    }

    /// Reconnects sandboxes that lose their links, while it is polled, and reports each. Returns if
    /// losses cannot be detected any more.
    fn mend(&self, _told: mpsc::Sender<Lost>) -> BoxFuture<'_, Result<(), Error>> {
        futures::future::pending().boxed()
    }

    /// Inserts the rules that let pods' packets pass the host's firewall, again if another program
    /// has replaced them. Returns descriptions of rules that still drop them.
    fn pass(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        futures::future::ready(Ok(None)).boxed()
    }

    /// Description of a sysctl by which packets between pods of this node bypass Services and
    /// policies.
    fn bypass(&self) -> Option<String> {
        None
    }

    /// Notifications that routes to other nodes' pods should be checked; `None` if this network
    /// creates none.
    fn hear_routes(&self) -> Result<Option<RouteNews>, Error> {
        Ok(None)
    }

    /// Sets the routes to the pods of other nodes, continuing past errors. Returns the nodes whose
    /// pods are unreachable, with the error of each.
    fn route(&self, _nodes: Nodes) -> BoxFuture<'_, Result<BTreeMap<String, String>, Error>> {
        futures::future::ready(Ok(BTreeMap::new())).boxed()
    }

    /// Removes everything that this network created on the machine. Succeeds if there is nothing.
    fn stop(&self) -> BoxFuture<'_, Result<(), Error>>;
}
