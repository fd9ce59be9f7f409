//! `skiff status`.

use std::path::Path;

use anyhow::{bail, ensure};
use serde_json::Value;

use super::daemons::process::Daemon;
use super::daemons::readiness::is_ready;
use super::daemons::unit;
use super::settings::Settings;
use crate::arguments::Place;
use crate::client::api::{Api, text_at, with_query};
use crate::terminal::{self, green, red};

pub(crate) async fn run(place: &Place) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "looking at a cluster of this machine needs root"
    );
    let (state_dir, served) = (place.node_dir(), place.served_dir());
    let settings = Settings::read(&state_dir)?;
    if settings.is_none() && served.is_none() {
        bail!("no cluster in {}; `skiff up` starts one", state_dir.display());
    }
    let control_plane = match &served {
        Some(served) => tell_served(served).await,
        None => Ok(()),
    };
    let node = match settings {
        Some(settings) => tell(&state_dir, settings).await,
        None => Ok(()),
    };
    control_plane.and(node)
}

async fn tell(state_dir: &Path, settings: Settings) -> anyhow::Result<()> {
    let kubeconfig = match settings.joined {
        Some(_) => super::pki(state_dir).join("agent.kubeconfig"),
        None => state_dir.join("admin.kubeconfig"),
    };
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
    let node_ready = node.as_ref().is_some_and(is_ready);
    let version = node
        .as_ref()
        .map(|node| text_at(node, "/status/nodeInfo/kubeletVersion").to_owned())
        .unwrap_or_default();
    let server = settings.joined.clone();
    let server = server.unwrap_or_else(|| format!("https://127.0.0.1:{}", settings.listen_port));
    let mut rows = vec![
        ("control plane", shown(super::control_plane(state_dir))),
        ("API server", format!("{server} {}", yes(ready, "ready", "not ready"))),
        ("node agent", shown(super::agent(state_dir))),
        (
            "node",
            format!(
                "{} {} {version}",
                settings.node_name,
                yes(node_ready, "Ready", "not Ready")
            ),
        ),
    ];
    // A node sees its own pods only, and its CIDRs are allocated by the control plane.
    let (pods, ranges) = if settings.joined.is_some() {
        rows.retain(|(name, _)| *name != "control plane");
        let field = format!("spec.nodeName={}", settings.node_name);
        let ranges = node
            .as_ref()
            .and_then(|node| node.pointer("/spec/podCIDRs")?.as_array());
        let ranges: Vec<&str> = ranges.into_iter().flatten().filter_map(Value::as_str).collect();
        let pods = with_query("/api/v1/pods", &[("fieldSelector", Some(&field))]);
        (pods, ranges.join(","))
    } else {
        ("/api/v1/pods".to_owned(), settings.pod_cidr)
    };
    let api = api.ok().filter(|_| ready);
    rows.extend([
        ("pods", count(api.as_ref(), &pods).await),
        ("pod addresses", ranges),
        ("kubeconfig", kubeconfig.display().to_string()),
    ]);
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .chain(unarchived(api.as_ref()).await)
        .map(|(name, value)| vec![name.to_owned(), value.trim().to_owned()])
        .collect();
    terminal::write(&terminal::columns(&rows))?;
    if ready && node_ready {
        Ok(())
    } else {
        let what = if settings.joined.is_some() { "node" } else { "cluster" };
        bail!("the {what} is not ready{}", remedy(state_dir))
    }
}

/// Returns advice if the node's agent does not run, as after a restart of the machine without a unit.
fn remedy(state_dir: &Path) -> &'static str {
    match super::agent(state_dir).running() {
        Some(_) => "",
        None => "; `skiff up` starts it again",
    }
}

/// Prints which daemons run and which nodes are Ready.
async fn tell_served(state_dir: &Path) -> anyhow::Result<()> {
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
        let ready = nodes.iter().filter(|node| is_ready(node)).count();
        format!("{ready} Ready of {}", nodes.len())
    };
    let pods = count(api.as_ref(), "/api/v1/pods").await;
    let rows = [
        ("control plane", runs),
        ("API server", if ready { green("ready") } else { red("not ready") }),
        ("nodes", nodes.map_or_else(|| "unknown".to_owned(), are)),
        ("pods", pods),
        ("kubeconfig", kubeconfig.display().to_string()),
    ];
    let rows = rows.into_iter().chain(unarchived(api.as_ref()).await);
    let rows: Vec<_> = rows.map(|(name, value)| vec![name.to_owned(), value]).collect();
    terminal::write(&terminal::columns(&rows))?;
    if !ready {
        bail!("the control plane is not ready")
    }
    Ok(())
}

/// Returns a row if the server cannot archive the past. Nodes may not read its metrics.
async fn unarchived(api: Option<&Api>) -> Option<(&'static str, String)> {
    let metrics = api?.text("/metrics").await.ok()?;
    let failing = metrics.lines().any(|line| line == "skiff_history_archive_failing 1");
    failing.then(|| ("past", red("not archived; the control plane's log says why")))
}

fn yes(is: bool, then: &str, otherwise: &str) -> String {
    if is { green(then) } else { red(otherwise) }
}

async fn count(api: Option<&Api>, path: &str) -> String {
    let Some(api) = api else { return "unknown".to_owned() };
    let Ok(pods) = api.get(path).await else {
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
