//! `skiff leave`.

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use http::Method;

use super::join;
use crate::client::api::is_not_found;
use crate::cluster::left;
use crate::cluster::settings::Settings;
use crate::terminal::{self, Waiting};

/// Longest time to wait for the API server, which may be gone permanently.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Stops the node and removes all of its resources on this machine. Its pods are ended, not moved.
pub(crate) async fn run(state_dir: &Path) -> anyhow::Result<()> {
    let Some(settings) = Settings::read(state_dir)? else {
        return terminal::line(format!("No node in {}.", state_dir.display()));
    };
    ensure!(rustix::process::geteuid().is_root(), "stopping a node needs root");
    ensure!(
        settings.joined.is_some(),
        "{} holds a cluster of its own, which `skiff down --purge` ends",
        state_dir.display()
    );
    let waiting = Waiting::start("stopping the node agent");
    let (ended, mut failures) = crate::cluster::down::end(state_dir, &settings, true, &waiting);
    let is_gone = remove_node(state_dir, &settings.node_name).await;
    if failures.is_empty() {
        failures.extend(crate::cluster::down::remove_state(state_dir).err());
    }
    if !failures.is_empty() {
        drop(waiting);
        let texts: Vec<String> = failures.iter().map(|error| format!("{error:#}")).collect();
        bail!("{}", texts.join("\n"))
    }
    waiting.now("looking for what is left");
    let found = left::settled(state_dir, &settings).await?;
    waiting.done("this machine is no node any more");
    for what in ended.left.lines() {
        terminal::line(format!("left behind: {what}"))?;
    }
    if found.is_empty() {
        terminal::line("Nothing of it is left: no process, mount, link, table, control group or file.")?;
    }
    if !is_gone {
        terminal::line(format!(
            "A node may not delete itself; on the server: skiff delete node {}",
            settings.node_name
        ))?;
    }
    ensure!(found.is_empty(), "left on this machine:\n{}", found.join("\n"));
    Ok(())
}

/// Deletes the Node with the node's credentials: upstream's roles deny it, a cluster's may not.
/// Returns whether it is gone.
pub(in crate::cluster) async fn remove_node(state_dir: &Path, name: &str) -> bool {
    let removed = async {
        let api = join::own_api(state_dir).await?;
        let path = format!("/api/v1/nodes/{name}");
        api.send(Method::DELETE, &path, "application/json", None).await
    };
    match tokio::time::timeout(TIMEOUT, removed).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => is_not_found(&error),
        Err(_elapsed) => false,
    }
}
