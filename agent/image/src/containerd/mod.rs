//! Images that a containerd has: blobs in its content store, layers unpacked by it into snapshots, names as images of its own,
//! so that whoever looks there (`ctr images ls`) sees what the node has.
//!
//! What nothing refers to is removed by containerd. So all that belongs to an image is reached from its name: the manifest names
//! its blobs, the configuration the topmost snapshot, by labels. On the way there a lease keeps it. Others may change the images
//! too: what is in memory is read from containerd at the start, and again whenever it says that something has changed.

mod content;
mod kept;
mod layers;
mod listen;
mod read;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agent_containerd::{CALL, Client, Error, InvalidNamespace, OWNER, within};
use containerd_client::services::v1::PluginsRequest;
use tokio::task::JoinSet;

pub(crate) use layers::Lease;

use crate::config::Limits;
use read::Known;

/// Where the images are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// containerd's socket.
    pub address: PathBuf,
    /// The containerd namespace.
    pub namespace: String,
    /// containerd's snapshotter that unpacks the layers.
    pub snapshotter: String,
}

/// containerd cannot have the images.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The namespace is none.
    #[error(transparent)]
    Namespace(#[from] InvalidNamespace),
    /// containerd refused, or did not answer.
    #[error(transparent)]
    Call(#[from] Error),
    /// containerd has no such snapshotter, or it cannot work here.
    #[error("containerd has no working snapshotter {0:?}")]
    Snapshotter(String),
}

/// The images of one namespace of a containerd.
pub(crate) struct Daemon {
    client: Client,
    namespace: String,
    snapshotter: String,
    /// Whose what we make is.
    owner: String,
    /// Where the snapshots are, if containerd says so.
    root: Option<PathBuf>,
    limits: Limits,
    /// What manifests and configurations say, by the digest that a name stands for. It never changes.
    known: Mutex<BTreeMap<String, Arc<Known>>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Daemon {
    /// Asks for the snapshotter, and lets go of what an earlier process of this directory was about to add.
    pub(crate) async fn open(directory: &Path, config: Config, limits: &Limits) -> Result<Self, OpenError> {
        let client = Client::new(&config.address, &config.namespace)?;
        let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        let request = client.request(PluginsRequest {
            filters: vec![format!(
                "type==io.containerd.snapshotter.v1,id=={:?}",
                config.snapshotter
            )],
        });
        let listed = within(CALL, "ask for the snapshotter", client.introspection().plugins(request)).await?;
        let found = listed
            .plugins
            .into_iter()
            .find(|plugin| plugin.id == config.snapshotter);
        let found = found.filter(|plugin| plugin.init_err.is_none());
        let plugin = found.ok_or_else(|| OpenError::Snapshotter(config.snapshotter.clone()))?;
        let daemon = Self {
            client,
            namespace: config.namespace,
            snapshotter: config.snapshotter,
            owner: directory.display().to_string(),
            root: plugin
                .exports
                .get("root")
                .map(PathBuf::from)
                .filter(|root| root.is_dir()),
            limits: limits.clone(),
            known: Mutex::default(),
            tasks: Arc::default(),
        };
        daemon.end_leases().await?;
        Ok(daemon)
    }

    /// Where the snapshots are.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    fn labels(&self, more: impl IntoIterator<Item = (String, String)>) -> std::collections::HashMap<String, String> {
        let mut all: std::collections::HashMap<String, String> = more.into_iter().collect();
        all.insert(OWNER.to_owned(), self.owner.clone());
        all
    }

    /// What is ours, for containerd's filters.
    fn own(&self) -> String {
        format!("labels.\"{OWNER}\"=={:?}", self.owner)
    }
}

fn tasks(tasks: &Mutex<JoinSet<()>>) -> std::sync::MutexGuard<'_, JoinSet<()>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}
