//! The agent as a systemd unit, where `systemd/install` has put it.
//!
//! ```text
//! /var/lib/skiff-agent/cluster.json    what was chosen for the node; the rest is the agent's state
//! /etc/skiff/agent/                    its credentials
//! /etc/skiff/agent.env                 its name and flags, which the unit reads
//! ```

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::settings::Settings;

/// The state directory of the unit's agent.
const STATE: &str = "/var/lib/skiff-agent";
/// The directory of its credentials.
pub(super) const CREDENTIALS: &str = "/etc/skiff/agent";
const ENVIRONMENT: &str = "/etc/skiff/agent.env";
const NAME: &str = "skiff-agent.service";

/// Tells whether the node in a state directory is the unit's.
pub(super) fn is_its(state_dir: &Path) -> bool {
    state_dir == Path::new(STATE)
}

/// The directory in which a node is to be made that nobody has named one for, where the unit is installed and systemd runs.
pub(crate) fn to_join() -> Option<PathBuf> {
    let folders = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
    let installed = folders.iter().any(|folder| Path::new(folder).join(NAME).is_file());
    // sd_booted(3)
    (installed && Path::new("/run/systemd/system").is_dir()).then(|| STATE.into())
}

/// The directory of the unit's node, where it has joined a cluster.
pub(crate) fn joined() -> Option<PathBuf> {
    Path::new(STATE).join("cluster.json").is_file().then(|| STATE.into())
}

/// Starts the unit with a node's settings, now and whenever the machine starts.
pub(super) fn start(state_dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    let flags = super::chosen_arguments(state_dir, settings);
    let plain = |flag: &String| !flag.contains(|letter: char| letter.is_whitespace() || "\"'\\$".contains(letter));
    ensure!(
        flags.iter().all(plain),
        "the unit takes no flags with spaces, quotes, dollars or backslashes"
    );
    let text = format!(
        "NODE_NAME={}\nSKIFF_AGENT_FLAGS={}\n",
        settings.node_name,
        flags.join(" ")
    );
    // Not before the agent's own folder, which the unit does not make.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(STATE);
    made.and_then(|()| fs::write(ENVIRONMENT, text))
        .with_context(|| format!("write {ENVIRONMENT}"))?;
    systemctl(&["enable"])?;
    // One that waits for its next try is begun again with what is written now.
    systemctl(&["restart", "--no-block"])
}

/// Stops the unit, for as long as nobody starts it again.
pub(super) fn stop() -> anyhow::Result<()> {
    systemctl(&["disable", "--now"])
}

fn systemctl(words: &[&str]) -> anyhow::Result<()> {
    let done = Command::new("systemctl")
        .args(words)
        .arg(NAME)
        .output()
        .context("start systemctl")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "systemctl {} {NAME}: {}",
        words.join(" "),
        said.trim()
    );
    Ok(())
}
