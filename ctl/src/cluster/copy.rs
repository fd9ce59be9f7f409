//! Backups, moves between stores and queries in SQL, which are the control plane's program's work.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::arguments::{MoveOptions, SqlOptions};

/// Writes a backup of the cluster to a file.
pub(crate) fn backup(state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    run("backup", state_dir, file)
}

/// Restores a cluster from a file.
pub(crate) fn restore(state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    super::directory::suits(state_dir)?;
    run("restore", state_dir, file)?;
    crate::terminal::line(format!(
        "Start it with: skiff up --state-dir {}",
        crate::terminal::quoted(state_dir)
    ))
}

/// Moves the cluster's objects to another store.
pub(crate) fn move_store(state_dir: &Path, options: &MoveOptions) -> anyhow::Result<()> {
    let flags = [
        ("--etcd-cafile", &options.etcd_cafile),
        ("--etcd-certfile", &options.etcd_certfile),
        ("--etcd-keyfile", &options.etcd_keyfile),
    ];
    let mut words: Vec<&OsStr> = Vec::new();
    for (flag, file) in flags {
        words.extend(file.iter().flat_map(|file| [OsStr::new(flag), file.as_os_str()]));
    }
    words.extend([OsStr::new(&options.from), OsStr::new(&options.to)]);
    start("move", state_dir, words)
}

/// Prints the rows of a query.
pub(crate) fn sql(state_dir: &Path, options: &SqlOptions) -> anyhow::Result<()> {
    let json = options.json.then_some("--json");
    let numbers = [
        format!("--limit={}", options.limit),
        format!("--timeout={}", options.timeout),
    ];
    let words = json.into_iter().chain(numbers.iter().map(String::as_str));
    start("sql", state_dir, words.chain(["--", options.query.as_str()]))
}

fn run(subcommand: &str, state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    start(subcommand, state_dir, [file])
}

fn start<W: AsRef<OsStr>>(
    subcommand: &str,
    state_dir: &Path,
    words: impl IntoIterator<Item = W>,
) -> anyhow::Result<()> {
    let program = super::sibling("skiff-controlplane")?;
    let status = Command::new(&program)
        .arg(subcommand)
        .arg("--state-dir")
        .arg(state_dir)
        .args(words)
        .status()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(status.success(), "{subcommand} failed");
    Ok(())
}
