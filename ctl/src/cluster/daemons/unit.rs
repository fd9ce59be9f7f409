//! The daemons as systemd units, installed by `systemd/install`.
//!
//! ```text
//! /var/lib/skiff/                      state of the control plane, without a cluster.json
//! /etc/skiff/controlplane.env          its settings, written by the operator
//! /var/lib/skiff-agent/cluster.json    settings of the node, beside the agent's state
//! /var/lib/skiff-agent/unit.env        its name and flags, which the unit reads
//! /etc/skiff/agent/                    its credentials
//! /etc/skiff/agent.env                 the operator's additions, not written here
//! ```

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::arguments::DEFAULT_STATE;

/// State directory of the agent's unit.
pub(in crate::cluster) const STATE: &str = "/var/lib/skiff-agent";
/// Directory of its credentials.
pub(in crate::cluster) const CREDENTIALS: &str = "/etc/skiff/agent";
const ENVIRONMENT: &str = "unit.env";
const OPERATORS: &str = "/etc/skiff/agent.env";
/// Names of the units.
pub(in crate::cluster) const AGENT: &str = "skiff-agent.service";
pub(in crate::cluster) const SERVER: &str = "skiff-controlplane.service";
/// Directories of units, see `systemd.unit(5)`.
const FOLDERS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// True if the node in a state directory is the unit's.
pub(in crate::cluster) fn is_its(state_dir: &Path) -> bool {
    state_dir == Path::new(STATE)
}

/// True if a unit is installed and systemd runs: `sd_booted(3)`.
fn has(unit: &str) -> bool {
    is_installed(unit) && Path::new("/run/systemd/system").is_dir()
}

/// True if the file of a unit exists.
pub(in crate::cluster) fn is_installed(unit: &str) -> bool {
    FOLDERS.iter().any(|folder| Path::new(folder).join(unit).is_file())
}

/// True if a unit runs, or waits for its next restart.
pub(in crate::cluster) fn is_active(unit: &str) -> bool {
    let state = property(unit, "ActiveState");
    !["", "inactive", "failed"].contains(&state.as_str())
}

/// Returns the main PID of a running unit.
pub(in crate::cluster) fn process(unit: &str) -> Option<i32> {
    property(unit, "MainPID").parse().ok().filter(|pid| *pid > 0)
}

fn property(unit: &str, name: &str) -> String {
    let shown = Command::new("systemctl")
        .args(["show", "--value", "--property", name, unit])
        .output();
    let shown = shown.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    shown.unwrap_or_default().trim().to_owned()
}

/// Returns the default directory of a node that joins, if the unit is installed.
pub(in crate::cluster) fn to_join() -> Option<PathBuf> {
    has(AGENT).then(|| STATE.into())
}

/// Returns the directory of the unit's node, if it has joined a cluster.
pub(in crate::cluster) fn joined() -> Option<PathBuf> {
    Path::new(STATE).join("cluster.json").is_file().then(|| STATE.into())
}

/// True if a state directory is that of the control plane's unit, and the unit was started before.
pub(in crate::cluster) fn serves(state_dir: &Path) -> bool {
    let is_cluster = || state_dir.join("cluster.json").exists();
    state_dir == Path::new(DEFAULT_STATE) && state_dir.join("controlplane").is_dir() && !is_cluster() && has(SERVER)
}

/// Returns a variable that the operator sets for the agent.
pub(in crate::cluster) fn operators(name: &str) -> Option<String> {
    variable(&fs::read_to_string(OPERATORS).ok()?, name)
}

/// Returns the variable that names a proxy to this process, if the agent's unit has none.
pub(in crate::cluster) fn lacks_proxy() -> Option<&'static str> {
    let names = ["HTTPS_PROXY", "https_proxy"];
    let given = names
        .into_iter()
        .find(|name| std::env::var_os(name).is_some_and(|url| !url.is_empty()))?;
    names.iter().all(|name| operators(name).is_none()).then_some(given)
}

/// Returns the name that the operator has given to the unit's node.
pub(in crate::cluster) fn node_name(state_dir: &Path) -> Option<String> {
    operators("NODE_NAME").filter(|_| is_its(state_dir))
}

/// Returns the last value of a variable in an `EnvironmentFile=`.
fn variable(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.trim().split_once('='));
    let value = lines
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value.trim())
        .next_back()?;
    let quoted = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    Some(quoted.unwrap_or(value).to_owned()).filter(|value| !value.is_empty())
}

/// Enables and starts the agent's unit with a node's name and flags.
pub(in crate::cluster) fn start(node_name: &str, flags: &[String]) -> anyhow::Result<()> {
    let plain = |flag: &String| !flag.contains(|letter: char| letter.is_whitespace() || "\"'\\$".contains(letter));
    ensure!(
        flags.iter().all(plain),
        "the unit takes no flags with spaces, quotes, dollars or backslashes"
    );
    let text = format!(
        "# Written by `skiff join`. What you add belongs into {OPERATORS}.\nNODE_NAME={node_name}\nSKIFF_NODE_FLAGS={}\n",
        flags.join(" ")
    );
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(STATE);
    let written = made.and_then(|()| replace(&Path::new(STATE).join(ENVIRONMENT), text.as_bytes(), 0o600));
    written.with_context(|| format!("write {STATE}/{ENVIRONMENT}"))?;
    systemctl(&["enable"], AGENT)?;
    // A unit that waits for its next restart is restarted with the new settings.
    systemctl(&["restart", "--no-block"], AGENT)
}

/// Replaces a file atomically.
pub(in crate::cluster) fn replace(path: &Path, text: &[u8], mode: u32) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Enables and starts the control plane's unit.
pub(in crate::cluster) fn serve() -> anyhow::Result<()> {
    systemctl(&["enable", "--now"], SERVER)
}

/// Stops and disables a unit.
pub(in crate::cluster) fn stop(unit: &str) -> anyhow::Result<()> {
    systemctl(&["disable", "--now"], unit)
}

pub(in crate::cluster) fn systemctl<'a>(words: &[&str], unit: impl Into<Option<&'a str>>) -> anyhow::Result<()> {
    let words: Vec<&str> = words.iter().copied().chain(unit.into()).collect();
    let done = Command::new("systemctl")
        .args(&words)
        .output()
        .context("start systemctl")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "systemctl {}: {}", words.join(" "), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::variable;

    #[test]
    fn a_variable_has_its_last_value() {
        let text = "# NODE_NAME=no\nNODE_NAME=a\n NODE_NAME = b\nNODE_NAME=\"c d\"\nEMPTY=\n";
        assert_eq!(variable(text, "NODE_NAME").as_deref(), Some("c d"));
        assert_eq!(variable(text, "EMPTY"), None);
        assert_eq!(variable(text, "ABSENT"), None);
    }
}
