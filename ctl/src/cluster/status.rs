//! `skiff status`.

use std::path::Path;

use anyhow::bail;
use serde_json::Value;

use super::process::Daemon;
use super::settings::Settings;
use crate::api::{Api, text_at};
use crate::terminal::{self, green, red};

pub(crate) async fn run(state_dir: &Path) -> anyhow::Result<()> {
    let Some(settings) = Settings::read(state_dir)? else {
        bail!("no cluster in {}; `skiff up` starts one", state_dir.display());
    };
    let kubeconfig = state_dir.join("admin.kubeconfig");
    let shown = |daemon: Daemon| match daemon.running() {
        Some(running) => green(&format!("running, process {}", running.pid)),
        None => red("not running"),
    };
    let api = Api::from_kubeconfig(&kubeconfig).await;
    let ready = match &api {
        Ok(api) => api.text("/readyz").await.is_ok(),
        Err(_) => false,
    };
    let node = match &api {
        Ok(api) if ready => api.get(&format!("/api/v1/nodes/{}", settings.node_name)).await.ok(),
        Ok(_) | Err(_) => None,
    };
    let node_ready = node.as_ref().is_some_and(super::up::is_ready);
    let version = node
        .as_ref()
        .map(|node| text_at(node, "/status/nodeInfo/kubeletVersion").to_owned())
        .unwrap_or_default();
    let rows = [
        ("control plane", shown(super::control_plane(state_dir))),
        (
            "API server",
            format!(
                "https://127.0.0.1:{} {}",
                settings.listen_port,
                yes(ready, "ready", "not ready")
            ),
        ),
        ("node agent", shown(super::agent(state_dir))),
        (
            "node",
            format!(
                "{} {} {version}",
                settings.node_name,
                yes(node_ready, "Ready", "not Ready")
            ),
        ),
        ("pods", count(api.ok().filter(|_| ready).as_ref()).await),
        ("pod addresses", settings.pod_cidr),
        ("kubeconfig", kubeconfig.display().to_string()),
    ];
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value.trim().to_owned()])
        .collect();
    terminal::write(&terminal::columns(&rows))?;
    if ready && node_ready {
        Ok(())
    } else {
        bail!("the cluster is not ready")
    }
}

fn yes(is: bool, then: &str, otherwise: &str) -> String {
    if is { green(then) } else { red(otherwise) }
}

async fn count(api: Option<&Api>) -> String {
    let Some(api) = api else { return "unknown".to_owned() };
    let Ok(pods) = api.get("/api/v1/pods").await else {
        return "unknown".to_owned();
    };
    let phases: Vec<&str> = pods
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|pod| text_at(pod, "/status/phase"))
        .collect();
    let running = phases.iter().filter(|phase| **phase == "Running").count();
    format!("{running} running of {}", phases.len())
}
