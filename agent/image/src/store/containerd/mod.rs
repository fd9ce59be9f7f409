//! Images kept in containerd: blobs in its content store, layers unpacked into its snapshots, and
//! containerd images for the names, so that `ctr images ls` shows the images of the node.
//!
//! containerd garbage-collects unreferenced content, so everything that belongs to an image is
//! reachable from its name through labels: the manifest references its blobs, and the configuration
//! references the topmost snapshot. A lease protects the content of an image until it has its name.
//! Other clients may change images too: the records in memory are read from containerd at the start
//! and after each of its events.

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

/// Configuration of the containerd image store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path of containerd's socket.
    pub address: PathBuf,
    /// containerd namespace.
    pub namespace: String,
    /// containerd snapshotter that unpacks the layers.
    pub snapshotter: String,
}

/// containerd cannot keep the images.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The namespace is invalid.
    #[error(transparent)]
    Namespace(#[from] InvalidNamespace),
    /// containerd returned an error or did not answer.
    #[error(transparent)]
    Call(#[from] Error),
    /// containerd has no such snapshotter, or the snapshotter does not work here.
    #[error("containerd has no working snapshotter {0:?}")]
    Snapshotter(String),
}

/// Images in one containerd namespace.
pub(crate) struct Daemon {
    client: Client,
    namespace: String,
    snapshotter: String,
    /// Value of the owner label of everything that this store creates.
    owner: String,
    /// Directory of the snapshots, if containerd reports it.
    root: Option<PathBuf>,
    limits: Limits,
    /// Parsed manifests and configurations by the digest of an image's target. Content under a
    /// digest never changes.
    known: Mutex<BTreeMap<String, Arc<Known>>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Daemon {
    /// Checks that the snapshotter works, and deletes the leases of an earlier process with this
    /// directory.
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

    /// Directory of the snapshots.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    fn labels(&self, more: impl IntoIterator<Item = (String, String)>) -> std::collections::HashMap<String, String> {
        let mut all: std::collections::HashMap<String, String> = more.into_iter().collect();
        all.insert(OWNER.to_owned(), self.owner.clone());
        all
    }

    /// Filter for containerd objects with the owner label.
    fn own(&self) -> String {
        format!("labels.\"{OWNER}\"=={:?}", self.owner)
    }
}

fn tasks(tasks: &Mutex<JoinSet<()>>) -> std::sync::MutexGuard<'_, JoinSet<()>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}
