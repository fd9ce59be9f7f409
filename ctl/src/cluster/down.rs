//! `skiff down`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};

use super::daemons::process::Daemon;
use super::daemons::unit;
use super::settings::Settings;
use crate::arguments::{Place, UpOptions};
use crate::terminal::{self, Waiting};

/// Stops pods and daemons and removes their resources on the machine. Continues after failures and
/// reports them all.
pub(crate) fn run(place: &Place, purge: bool) -> anyhow::Result<()> {
    let (state_dir, served) = (place.node_dir(), place.served_dir());
    let settings = Settings::read(&state_dir)?;
    if settings.is_none() && served.is_none() {
        return terminal::line(format!("No cluster in {}.", state_dir.display()));
    }
    ensure!(rustix::process::geteuid().is_root(), "stopping a node needs root");
    // The status of its pods is sent before the server stops.
    let node = settings.map(|settings| end_node(&state_dir, &settings, purge));
    let control_plane = served.map(|directory| super::daemons::served::stop(&directory, purge));
    node.unwrap_or(Ok(())).and(control_plane.unwrap_or(Ok(())))
}

fn end_node(state_dir: &Path, settings: &Settings, purge: bool) -> anyhow::Result<()> {
    // Settings of a failed start are incomplete.
    let settings =
        Settings::choose(state_dir, &UpOptions::default(), Some(settings)).unwrap_or_else(|_| settings.clone());
    let waiting = Waiting::start("stopping the node agent");
    let (ended, mut failures) = end(state_dir, &settings, purge, &waiting);
    if purge && failures.is_empty() {
        waiting.now("removing the state");
        failures.extend(remove_state(state_dir).err());
    }
    if failures.is_empty() {
        let state = if purge {
            "its state is removed"
        } else {
            "its state is kept"
        };
        let what = if settings.joined.is_some() { "node" } else { "cluster" };
        let ran = if ended.ran { "is" } else { "was" };
        let ran = format!("the {what} {ran} down");
        waiting.done(&format!("{ran}; {state}"));
        for what in ended.left.lines() {
            terminal::line(format!("left behind: {what}"))?;
        }
        return Ok(());
    }
    drop(waiting);
    let texts: Vec<String> = failures.iter().map(|error| format!("{error:#}")).collect();
    bail!("{}", texts.join("\n"))
}

/// Result of stopping a cluster.
pub(super) struct Ended {
    /// True if any of its daemons ran.
    ran: bool,
    /// Remains on the machine, one per line.
    pub(super) left: String,
}

/// Stops pods and daemons and removes their resources on the machine, images too with `purge`.
/// Continues after failures, which are the second value.
pub(super) fn end(
    state_dir: &Path,
    settings: &Settings,
    purge: bool,
    waiting: &Waiting,
) -> (Ended, Vec<anyhow::Error>) {
    let mut failures: Vec<anyhow::Error> = Vec::new();
    let stop = |daemon: Daemon, name: &str| match daemon.stop(Duration::from_secs(10)) {
        Ok(ran) => (ran, None),
        Err(error) => (false, Some(error.context(format!("stop {name}")))),
    };
    let was_unit = unit::is_its(state_dir) && super::agent(state_dir).running().is_some();
    if unit::is_its(state_dir) {
        failures.extend(unit::stop(unit::AGENT).err());
    }
    let (agent_ran, failure) = stop(super::agent(state_dir), "the node agent");
    failures.extend(failure);
    waiting.now("stopping pods and removing what they had on the machine");
    let mut left = String::new();
    if super::agent_directory(state_dir).is_dir() {
        match clean_up(state_dir, settings, purge) {
            Ok(told) => left = told,
            Err(error) => failures.push(error),
        }
    }
    if settings.joined.is_none() {
        waiting.now("stopping the control plane");
    }
    let (server_ran, failure) = stop(super::control_plane(state_dir), "the control plane");
    failures.extend(failure);
    let ran = agent_ran || was_unit || server_ran;
    (Ended { ran, left }, failures)
}

/// Runs the agent's cleanup; returns what remains on the machine, one per line.
fn clean_up(state_dir: &Path, settings: &Settings, purge: bool) -> anyhow::Result<String> {
    let mut command = Command::new(super::sibling("skiff-agent")?);
    command.arg("cleanup").args(super::agent_arguments(state_dir, settings));
    if purge {
        command.arg("--with-images");
    }
    let done = command.output().context("clean up after the node agent")?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(anyhow!(
        "clean up after the node agent: {}\n{}",
        done.status,
        said.trim()
    ))
}

/// Removes the directory and the agent's credentials, unless a file system is still mounted in it.
/// A directory that is a mount point itself is emptied.
pub(super) fn remove_state(state_dir: &Path) -> anyhow::Result<()> {
    let mounts = fs::read("/proc/self/mountinfo").context("read the mounts")?;
    // The kernel lists mounts by their canonical paths.
    let real = fs::canonicalize(state_dir).with_context(|| format!("find {}", state_dir.display()))?;
    if let Some(point) = mounted_inside(&mounts, &real).next() {
        bail!("{} is still mounted; the state is kept", point.display());
    }
    match fs::remove_dir_all(super::pki(state_dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context("remove credentials"),
        Ok(()) | Err(_) => {}
    }
    match fs::remove_dir_all(&real) {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && is_empty(&real) => Ok(()),
        removed => removed.with_context(|| format!("remove {}", real.display())),
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the mounts below a directory; `mounts` is a `mountinfo`.
pub(super) fn mounted_inside(mounts: &[u8], directory: &Path) -> impl Iterator<Item = PathBuf> {
    mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescaped)
        .filter(move |point| point.starts_with(directory) && point != directory)
}

/// Decodes a path in `mountinfo`: spaces, tabs, newlines and backslashes are `\` and three octal
/// digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut rest, mut path) = (field, Vec::new());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(octal.unwrap_or(*first));
        rest = after.get(if octal.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_are_found() {
        let mounts = b"36 35 98:0 / /a\\040b rw - ext4 /dev/x rw\n37 35 98:0 / /a\\040b/c rw - tmpfs x rw\n39 1 8:0 / /e\\134f\\012\xff/g rw - ext4 x rw\n38 1 8:0 / /d rw - ext4 x rw\n";
        let first = |directory: &Path| mounted_inside(mounts, directory).next();
        assert_eq!(first(Path::new("/a b")), Some(PathBuf::from("/a b/c")));
        let strange = PathBuf::from(OsString::from_vec(b"/e\\f\n\xff".to_vec()));
        assert_eq!(first(&strange), Some(strange.join("g")));
        assert_eq!(first(Path::new("/a")), None);
        assert_eq!(first(Path::new("/d")), None);
    }

    #[test]
    fn a_link_to_the_state_does_not_hide_it() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-purge-{}", std::process::id()));
        fs::create_dir_all(directory.join("real/agent")).unwrap();
        std::os::unix::fs::symlink(directory.join("real"), directory.join("link")).unwrap();
        remove_state(&directory.join("link")).unwrap();
        assert!(!directory.join("real").exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
