//! Backups, which the control plane's program writes and reads.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Writes a backup of the cluster to a file.
pub(crate) fn backup(state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    run("backup", state_dir, file)
}

/// Restores a cluster from a file.
pub(crate) fn restore(state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    run("restore", state_dir, file)?;
    crate::terminal::line(format!(
        "Start it with: skiff up --state-dir {}",
        crate::terminal::quoted(state_dir)
    ))
}

fn run(subcommand: &str, state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    let program = super::sibling("skiff-controlplane")?;
    let status = Command::new(&program)
        .arg(subcommand)
        .arg("--state-dir")
        .arg(state_dir)
        .arg(file)
        .status()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(status.success(), "{subcommand} failed");
    Ok(())
}
