//! Control plane that systemd runs. A node on the same machine joins it like others.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::{readiness, unit};
use crate::arguments::UpOptions;
use crate::client::api::Api;
use crate::terminal::Waiting;

/// Starts the unit, and waits until its server responds.
pub(in crate::cluster) async fn start(state_dir: &Path, options: &UpOptions) -> anyhow::Result<()> {
    ensure!(
        *options == UpOptions::default(),
        "the control plane is a unit of systemd here: its settings are in /etc/skiff/controlplane.env"
    );
    let waiting = Waiting::start("starting the control plane");
    let daemon = crate::cluster::control_plane(state_dir);
    unit::serve()?;
    readiness::within(answering(state_dir), &daemon, "the API server is not ready").await?;
    waiting.done("the API server answers");
    Ok(())
}

pub(in crate::cluster) async fn answering(state_dir: &Path) -> anyhow::Result<()> {
    let kubeconfig = state_dir.join("admin.kubeconfig");
    while !answers(&kubeconfig).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// True if an API server is ready.
pub(in crate::cluster) async fn answers(kubeconfig: &Path) -> bool {
    match Api::from_kubeconfig(kubeconfig).await {
        Ok(api) => api.text("/readyz").await.is_ok(),
        Err(_) => false,
    }
}

/// Stops the unit. Its directory is kept, even if empty: the unit may not create it.
pub(in crate::cluster) fn stop(state_dir: &Path, purge: bool) -> anyhow::Result<()> {
    let waiting = Waiting::start("stopping the control plane");
    let ran = unit::is_active(unit::SERVER);
    unit::stop(unit::SERVER)?;
    if purge {
        empty(state_dir)?;
    }
    let (ran, state) = (if ran { "is" } else { "was" }, if purge { "removed" } else { "kept" });
    waiting.done(&format!("the control plane {ran} down; its state is {state}"));
    Ok(())
}

fn empty(directory: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory).context("read the state")? {
        let entry = entry.context("read the state")?;
        let removed = if entry.file_type().context("read the state")?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        removed.with_context(|| format!("remove {}", entry.path().display()))?;
    }
    Ok(())
}
