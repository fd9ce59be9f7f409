//! The pods' network on this machine, behind one trait.
//!
//! [`Network`] is the seam: [`Bridge`] makes network namespaces, veth pairs and a bridge by rtnetlink; [`Cni`] has standard
//! plugins do it; [`Sim`] only hands out addresses, for tests. Detaching and stopping are idempotent and go on past failures.

mod bridge;
mod cidr;
mod cni;
mod files;
pub mod fuzzing;
mod nft;
mod plugin;
pub mod policies;
mod ranges;
pub mod services;
mod sim;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub use bridge::{Bridge, Config, Nodes, RouteNews};
pub use cidr::{Cidr, ParseCidrError};
pub use cni::{Cni, Config as CniConfig};
pub use plugin::{NAME as PLUGIN, helper as plugin};
pub use ranges::{ParseRangesError, Ranges};
pub use sim::Sim;

/// Whom to attach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachSpec {
    /// The sandbox: unique on the machine; letters, digits, `-`, `_` and `.`, at most 64 bytes, not starting with a dot.
    pub sandbox_id: String,
    /// The pod, for networks that want to know.
    pub pod: PodId,
    /// Ports of the node that lead to the pod.
    pub ports: Vec<PortMapping>,
    /// The namespace belongs to users of the pod's own: the first of the 65536 ids of the node that they are.
    #[serde(default)]
    pub user_ids: Option<u32>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodId {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// A port of the node that leads to one of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// `hostPort`.
    pub host_port: u16,
    /// `containerPort`.
    pub container_port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `hostIP`: every address of the node where it is absent.
    pub host_address: Option<IpAddr>,
}

/// A sandbox's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The sandbox.
    pub sandbox_id: String,
    /// The network namespace, held by a bind mount at this path.
    pub netns: PathBuf,
    /// The pod's addresses with the prefix of their range; the first is `status.podIP`.
    pub addresses: Vec<Cidr>,
    /// The default gateway: the bridge's address, of the family of the pod's first one.
    pub gateway: IpAddr,
    /// The interface in the namespace.
    pub interface: String,
    /// Ports of the node that lead to the pod, where this network leads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
}

/// The node's pods, for those who lead traffic to and from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Where their addresses are from.
    pub ranges: Ranges,
    /// The node's interface that leads to them.
    pub interface: String,
}

/// Why the network could not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id that cannot be part of a path.
    #[error("invalid sandbox id {0:?}")]
    InvalidId(String),
    /// [`Network::start`] was not called, or with another range than this state was made for.
    #[error("the pod network is not started")]
    NotStarted,
    /// The pods' range cannot be served.
    #[error("pod range {0}: at least four addresses are needed")]
    RangeTooSmall(Cidr),
    /// The machine's kernel has no addresses of version 6, or was started without them.
    #[error("pod range {0}: this machine has no IPv6")]
    NoIpv6(Cidr),
    /// The pods' range cannot change while sandboxes have addresses of it.
    #[error("pods still use addresses of {0}")]
    RangeInUse(Ranges),
    /// The bridge is another network's.
    #[error("bridge {bridge} is there already and belongs to {owner}; choose another name")]
    BridgeTaken {
        /// Its name.
        bridge: String,
        /// The state folder of the network that it belongs to, or words for one that nobody knows.
        owner: String,
    },
    /// Another interface has the pods' gateway's address.
    #[error("pod range {range}: {interface} has its first address already; choose another range")]
    RangeTaken {
        /// The range.
        range: Cidr,
        /// Who has it.
        interface: String,
    },
    /// Every address is taken.
    #[error("no free address in {0}")]
    Exhausted(Ranges),
    /// A file or namespace operation failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The kernel refused a change of links, addresses, routes or rules.
    #[error("{doing}: {cause}")]
    Kernel {
        /// What was being done.
        doing: &'static str,
        /// The kernel's or nft's answer.
        cause: String,
    },
    /// There is no CNI configuration that could be used.
    #[error("failed to setup network for sandbox {sandbox:?}: cni plugin not initialized: no network configuration in {}", folder.display())]
    Unconfigured {
        /// The sandbox.
        sandbox: String,
        /// Where configurations are looked for.
        folder: PathBuf,
    },
    /// A CNI plugin refused, failed or did not answer.
    #[error("failed to {doing} network for sandbox {sandbox:?}: {cause}")]
    Plugin {
        /// `setup` or `destroy`.
        doing: &'static str,
        /// The sandbox.
        sandbox: String,
        /// The plugin's words.
        cause: String,
    },
    /// A tear-down went to its end, and these steps of it failed.
    #[error("{} step(s) of the removal failed: {}", .0.len(), .0.join("; "))]
    Incomplete(Vec<String>),
    /// The same, but nothing failed besides plugins that did not let go of what they hold for pods that have ended.
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

/// A sandbox that lost its link to the network, whoever took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The sandbox.
    pub sandbox_id: String,
    /// Why it could not be connected again; that is tried on. Nothing where it is connected.
    pub failure: Option<String>,
}

/// Everything that the agent asks of the pod network.
pub trait Network: Send + Sync + 'static {
    /// Prepares the machine for pods of these ranges: bridge, forwarding, masquerade, a blackhole route for each range. Adopts
    /// what is there already, so that a restarted agent calls it again.
    fn start(&self, ranges: Ranges) -> BoxFuture<'_, Result<(), Error>>;

    /// Gives a sandbox its namespace and address. A second call for the same sandbox returns what the first one made.
    fn attach(&self, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment, Error>>;

    /// Where a sandbox's namespace is once it is attached.
    fn netns(&self, sandbox_id: &str) -> PathBuf;

    /// All attachments, by sandbox id: what a restarted agent adopts or detaches. One that was not finished, or whose removal was
    /// not, has no addresses.
    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>>;

    /// Takes a sandbox's namespace and address away. Success when there is none. Its ports are free from then on; its address may
    /// come free a little later, when the kernel has let go of it.
    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>>;

    /// Why no sandbox can be attached now, where that is known. The answer comes within a few seconds.
    fn unready(&self) -> BoxFuture<'_, Option<String>> {
        futures::future::ready(None).boxed()
    }

    /// Which pods this network connects, where it knows that of them all.
    fn served(&self) -> Option<Served> {
        None
    }

    /// Connects sandboxes again that lose their links, for as long as it is polled, and tells of each. It ends where nothing can
    /// be noticed any more.
    fn mend(&self, _told: mpsc::Sender<Lost>) -> BoxFuture<'_, Result<(), Error>> {
        futures::future::pending().boxed()
    }

    /// Has the machine's firewall let pods' packets through, once more where another program has set it up anew. The answer
    /// tells what holds them up all the same.
    fn pass(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        futures::future::ready(Ok(None)).boxed()
    }

    /// Tells of a setting of the machine by which packets between pods of this node pass its Services and policies by.
    fn bypass(&self) -> Option<String> {
        None
    }

    /// Hears from now on when routes to other nodes' pods should be looked at; nothing where this network makes none.
    fn hear_routes(&self) -> Result<Option<RouteNews>, Error> {
        Ok(None)
    }

    /// Leads to the pods of other nodes, as far as it goes on past failures. The answer tells the nodes whose pods are not
    /// reached, and why not.
    fn route(&self, _nodes: Nodes) -> BoxFuture<'_, Result<BTreeMap<String, String>, Error>> {
        futures::future::ready(Ok(BTreeMap::new())).boxed()
    }

    /// Removes everything that this network made on the machine. Success when there is nothing.
    fn stop(&self) -> BoxFuture<'_, Result<(), Error>>;
}
