//! Control plane that systemd runs. A node on the same machine joins it like others.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{unit, up};
use crate::api::Api;
use crate::arguments::UpOptions;
use crate::terminal::{self, Waiting, green, red};

/// Starts the unit, and waits until its server responds.
pub(super) async fn start(state_dir: &Path, options: &UpOptions) -> anyhow::Result<()> {
    ensure!(
        *options == UpOptions::default(),
        "the control plane is a unit of systemd here: its settings are in /etc/skiff/controlplane.env"
    );
    let waiting = Waiting::start("starting the control plane");
    let daemon = super::control_plane(state_dir);
    unit::serve()?;
    up::within(answering(state_dir), &daemon, "the API server is not ready")
        .await
        .context("see `journalctl -u skiff-controlplane`")?;
    waiting.done("the API server answers");
    Ok(())
}

pub(super) async fn answering(state_dir: &Path) -> anyhow::Result<()> {
    let kubeconfig = state_dir.join("admin.kubeconfig");
    while !answers(&kubeconfig).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// True if an API server is ready.
pub(super) async fn answers(kubeconfig: &Path) -> bool {
    match Api::from_kubeconfig(kubeconfig).await {
        Ok(api) => api.text("/readyz").await.is_ok(),
        Err(_) => false,
    }
}

/// Stops the unit. Its directory is kept, even if empty: the unit may not create it.
pub(super) fn stop(state_dir: &Path, purge: bool) -> anyhow::Result<()> {
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

/// Prints which daemons run and which nodes are Ready.
pub(super) async fn tell(state_dir: &Path) -> anyhow::Result<()> {
    let kubeconfig = state_dir.join("admin.kubeconfig");
    let runs = match unit::process(unit::SERVER) {
        Some(process) => green(&format!("running, process {process}, unit {}", unit::SERVER)),
        None => red(&format!("not running, unit {}", unit::SERVER)),
    };
    let api = Api::from_kubeconfig(&kubeconfig).await.ok();
    let ready = match &api {
        Some(api) => api.text("/readyz").await.is_ok(),
        None => false,
    };
    let api = api.filter(|_| ready);
    let nodes = match &api {
        Some(api) => api.get("/api/v1/nodes").await.ok(),
        None => None,
    };
    let nodes = nodes.as_ref().and_then(|list| list.get("items")?.as_array());
    let are = |nodes: &Vec<Value>| {
        let ready = nodes.iter().filter(|node| up::is_ready(node)).count();
        format!("{ready} Ready of {}", nodes.len())
    };
    let pods = super::status::count(api.as_ref(), "/api/v1/pods").await;
    let rows = [
        ("control plane", runs),
        ("API server", if ready { green("ready") } else { red("not ready") }),
        ("nodes", nodes.map_or_else(|| "unknown".to_owned(), are)),
        ("pods", pods),
        ("kubeconfig", kubeconfig.display().to_string()),
    ];
    let rows = rows.into_iter().chain(super::status::unarchived(api.as_ref()).await);
    let rows: Vec<_> = rows.map(|(name, value)| vec![name.to_owned(), value]).collect();
    terminal::write(&terminal::columns(&rows))?;
    if !ready {
        bail!("the control plane is not ready")
    }
    Ok(())
}
