//! `skiff down`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};

use super::settings::Settings;
use crate::terminal::{self, Waiting};

/// Stops pods and daemons and removes what they made on the machine. Goes on past failures and reports them all.
pub(crate) fn run(state_dir: &Path, purge: bool) -> anyhow::Result<()> {
    let Some(settings) = Settings::read(state_dir)? else {
        terminal::line(format!("No cluster in {}.", state_dir.display()))?;
        return Ok(());
    };
    ensure!(rustix::process::geteuid().is_root(), "stopping a node needs root");
    let mut failures: Vec<anyhow::Error> = Vec::new();
    let waiting = Waiting::start("stopping the node agent");
    let agent_ran = super::agent(state_dir)
        .stop(Duration::from_secs(10))
        .unwrap_or_else(|error| {
            failures.push(error.context("stop the node agent"));
            false
        });
    waiting.now("stopping pods and removing what they had on the machine");
    if state_dir.join("agent").is_dir()
        && let Err(error) = clean_up(state_dir, &settings)
    {
        failures.push(error);
    }
    waiting.now("stopping the control plane");
    let server_ran = super::control_plane(state_dir)
        .stop(Duration::from_secs(10))
        .unwrap_or_else(|error| {
            failures.push(error.context("stop the control plane"));
            false
        });
    if purge && failures.is_empty() {
        waiting.now("removing the state");
        if let Err(error) = remove_state(state_dir) {
            failures.push(error);
        }
    }
    if failures.is_empty() {
        let state = if purge {
            "its state is removed"
        } else {
            "its state is kept"
        };
        let ran = if agent_ran || server_ran {
            "the cluster is down"
        } else {
            "the cluster was down"
        };
        waiting.done(&format!("{ran}; {state}"));
        return Ok(());
    }
    drop(waiting);
    let texts: Vec<String> = failures.iter().map(|error| format!("{error:#}")).collect();
    bail!("{}", texts.join("\n"))
}

fn clean_up(state_dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    let mut command = Command::new(super::sibling("skiff-agent")?);
    command.arg("cleanup").args(super::agent_arguments(state_dir, settings));
    let done = command.output().context("clean up after the node agent")?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(anyhow!(
        "clean up after the node agent: {}\n{}",
        done.status,
        said.trim()
    ))
}

/// Removes the directory, unless something is still mounted in it.
fn remove_state(state_dir: &Path) -> anyhow::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let inside = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .find(|point| Path::new(point).starts_with(state_dir) && Path::new(point) != state_dir);
    if let Some(point) = inside {
        bail!("{point} is still mounted; the state is kept");
    }
    fs::remove_dir_all(state_dir).with_context(|| format!("remove {}", state_dir.display()))
}
