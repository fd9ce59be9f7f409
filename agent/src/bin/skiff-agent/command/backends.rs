//! Container runtime, image store and pod network, as the command line selects them.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use image::Images;
use network::{Bridge, Cni, Network};
use runtime::{Containerd, Embedded, Runtime};

use super::{Arguments, NetworkKind, PLUGIN_LIMIT, RuntimeKind};

impl Arguments {
    /// True if this node's containers are run by containerd, and were before.
    pub(crate) fn knows_containerd(&self) -> bool {
        match self.runtime {
            RuntimeKind::Embedded => false,
            RuntimeKind::Containerd => self.state_dir.join("containerd/sandboxes").exists(),
        }
    }

    pub(crate) async fn images(&self) -> anyhow::Result<Images> {
        let (directory, configuration) = (self.state_dir.join("images"), self.image_config());
        match self.runtime {
            RuntimeKind::Embedded => Images::open(&directory, configuration).context("open the image store"),
            RuntimeKind::Containerd => {
                let place = image::ContainerdConfig {
                    address: self.containerd_address.clone(),
                    namespace: self.containerd_namespace.clone(),
                    snapshotter: self.containerd_snapshotter.clone(),
                };
                let opened = Images::open_containerd(&directory, configuration, place).await;
                let address = self.containerd_address.display();
                opened.with_context(|| format!("open the images of containerd at {address}"))
            }
        }
    }

    /// Returns why containerd, or its snapshotter, is not available, if the containers are run by
    /// it.
    pub(crate) async fn engine_trouble(&self) -> Option<anyhow::Error> {
        match self.runtime {
            RuntimeKind::Embedded => None,
            RuntimeKind::Containerd => self.images().await.err(),
        }
    }

    /// Ends pods without their container engine; with `forget`, the engine will not be used again.
    pub(crate) async fn end_without_engine(&self, forget: bool) -> Result<(), runtime::Error> {
        runtime::end_without_engine(&self.state_dir.join("containerd"), &self.cgroup_root(), forget).await
    }

    fn cgroup_root(&self) -> String {
        let own = self.cgroup_root.clone();
        own.unwrap_or_else(|| format!("skiff/{}", self.node_name))
    }

    pub(crate) async fn runtime(&self) -> anyhow::Result<Arc<dyn Runtime>> {
        let root = self.cgroup_root();
        let (embedded, containerd) = (self.state_dir.join("runtime"), self.state_dir.join("containerd"));
        match self.runtime {
            RuntimeKind::Embedded => {
                refuse_others("containerd", &containerd)?;
                let opened = Embedded::open(runtime::Config::new(embedded, root)).await;
                Ok(Arc::new(opened.context("open the container runtime")?))
            }
            RuntimeKind::Containerd => {
                refuse_others("embedded", &embedded)?;
                let (address, namespace) = (&self.containerd_address, &self.containerd_namespace);
                let configuration = runtime::ContainerdConfig {
                    snapshotter: self.containerd_snapshotter.clone(),
                    ..runtime::ContainerdConfig::new(containerd, root, address, namespace)
                };
                let opened = Containerd::open(configuration).await;
                let opened = opened.with_context(|| format!("open containerd at {}", address.display()))?;
                Ok(Arc::new(opened))
            }
        }
    }

    pub(crate) fn network(&self) -> anyhow::Result<Arc<dyn Network>> {
        match self.network {
            NetworkKind::Bridge => {
                let configuration = network::Config {
                    state_dir: self.state_dir.join("network"),
                    bridge: self.bridge.clone(),
                    direct: self.direct_cidr.clone(),
                    slots: self.pod_slots,
                    guarded: true,
                    routes: self.node_routes.mode(),
                };
                Ok(Arc::new(Bridge::open(configuration).context("open the pod network")?))
            }
            NetworkKind::Cni => {
                let configuration = network::CniConfig {
                    state_dir: std::path::absolute(self.state_dir.join("cni")).context("find the state directory")?,
                    conf_dir: self.cni_conf_dir.clone(),
                    bin_dirs: std::env::split_paths(&self.cni_bin_dir).collect(),
                    time_limit: PLUGIN_LIMIT,
                };
                Ok(Arc::new(Cni::open(configuration).context("open the pod network")?))
            }
        }
    }
}

/// Pods of another runtime would be orphaned.
fn refuse_others(name: &str, state: &Path) -> anyhow::Result<()> {
    let held = std::fs::read_dir(state.join("sandboxes")).is_ok_and(|mut entries| entries.next().is_some());
    anyhow::ensure!(
        !held,
        "{} still holds pods of the {name} runtime; first run this command with `cleanup` in place of `run`, and \
         `--runtime={name}` in place of the other",
        state.display()
    );
    Ok(())
}
