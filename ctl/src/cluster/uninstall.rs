//! `skiff uninstall`: removes everything of Skiff from this machine, and reports what remains.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};

use super::daemons::unit;
use super::down::mounted_inside;
use super::left;
use super::settings::Settings;
use crate::arguments::{DEFAULT_STATE, Place, UpOptions};
use crate::terminal::{self, Waiting};

/// Files of `systemd/install`, or an operator's beside them, that indicate an installation.
const UNITS: [&str; 7] = [
    "/etc/systemd/system/skiff-agent.service.d",
    "/etc/systemd/system/skiff-controlplane.service.d",
    "/usr/lib/systemd/system/skiff-agent.service",
    "/usr/lib/systemd/system/skiff-controlplane.service",
    "/usr/lib/systemd/logind.conf.d/skiff.conf",
    "/usr/lib/tmpfiles.d/skiff.conf",
    "/usr/lib/sysusers.d/skiff.conf",
];
/// Directories of the units, and the programs.
const OTHERS: [&str; 6] = [
    "/etc/skiff",
    "/var/lib/skiff",
    "/var/lib/skiff-agent",
    "/usr/bin/skiff",
    "/usr/bin/skiff-agent",
    "/usr/bin/skiff-controlplane",
];
/// User of the control plane's unit.
const USER: &str = "skiff";

/// Installation to remove.
struct Installed {
    /// Directory of the node, and its settings.
    node: Option<(PathBuf, Settings)>,
    /// Directory of the control plane's unit.
    served: Option<PathBuf>,
    /// True if files of `systemd/install` are still present.
    units: bool,
}

impl Installed {
    fn find(place: &Place) -> anyhow::Result<Self> {
        let state_dir = place.node_dir();
        // Settings of a failed start are incomplete.
        let settings = Settings::read(&state_dir)?;
        let settings =
            settings.map(|known| Settings::choose(&state_dir, &UpOptions::default(), Some(&known)).unwrap_or(known));
        Ok(Self {
            node: settings.map(|settings| (state_dir, settings)),
            served: place.served_dir(),
            units: place.is_default() && (UNITS.iter().any(|file| Path::new(file).exists()) || has_user()),
        })
    }

    /// Lists what is on the machine, one per line.
    async fn left(&self, verify: bool) -> anyhow::Result<Vec<String>> {
        let mut all = match &self.node {
            Some((state_dir, settings)) if verify => left::list(state_dir, settings)?,
            Some((state_dir, settings)) => left::settled(state_dir, settings).await?,
            None => Vec::new(),
        };
        if self.units {
            for name in [unit::SERVER, unit::AGENT] {
                all.extend(unit::is_active(name).then(|| format!("unit {name} is active")));
            }
            let files = UNITS
                .iter()
                .chain(&OTHERS)
                .filter(|file| fs::symlink_metadata(file).is_ok());
            all.extend(files.map(|file| format!("file {file}")));
            all.extend(has_user().then(|| format!("user {USER}")));
        }
        all.sort();
        all.dedup();
        Ok(all)
    }
}

/// Runs the command. With `verify`, nothing is removed. Exit code 1 if something remains.
pub(crate) async fn run(place: &Place, verify: bool) -> anyhow::Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "looking at a machine and removing what is there needs root"
    );
    let installed = Installed::find(place)?;
    let mut failures = Vec::new();
    if !verify {
        failures = remove(&installed).await;
    }
    let left = installed.left(verify).await?;
    for line in &left {
        terminal::line(line)?;
    }
    for failure in &failures {
        terminal::note(format!("{failure:#}"));
    }
    if left.is_empty() && failures.is_empty() {
        terminal::line(
            "Nothing of it is on this machine: no process, mount, link, table, control group, unit or file.",
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Removes the installation; continues after failures.
async fn remove(installed: &Installed) -> Vec<anyhow::Error> {
    let mut failures = Vec::new();
    if let Some((state_dir, settings)) = &installed.node {
        let waiting = Waiting::start("stopping the node");
        failures.extend(super::down::end(state_dir, settings, true, &waiting).1);
        if settings.joined.is_some() {
            super::membership::leave::remove_node(state_dir, &settings.node_name).await;
        }
        if failures.is_empty() {
            failures.extend(super::down::remove_state(state_dir).err());
            waiting.done("the node is down; its state is removed");
        }
    }
    if let Some(directory) = &installed.served {
        failures.extend(super::daemons::served::stop(directory, true).err());
    }
    // Running daemons still need their programs.
    if installed.units && failures.is_empty() {
        failures.extend(remove_files());
    }
    failures
}

fn remove_files() -> Vec<anyhow::Error> {
    let mut failures = Vec::new();
    for name in [unit::SERVER, unit::AGENT]
        .iter()
        .filter(|name| unit::is_installed(name))
    {
        failures.extend(unit::stop(name).err());
    }
    // Nor is anything taken from below pods, where the node's settings are lost.
    let kept = OTHERS.iter().map(Path::new).filter(|file| file.is_dir());
    failures.extend(kept.filter_map(|file| keep_mounted(file).err()));
    if !failures.is_empty() {
        return failures;
    }
    let own = std::env::current_exe().unwrap_or_default();
    // This program is removed last, so that failures can be retried.
    let (last, first): (Vec<&str>, Vec<&str>) = UNITS.iter().chain(&OTHERS).partition(|file| Path::new(file) == own);
    for file in first.into_iter().chain(last) {
        failures.extend(remove_file(Path::new(file)).err());
    }
    failures.extend(unit::systemctl(&["daemon-reload"], None).err());
    if has_user() {
        let gone = Command::new("userdel").arg(USER).output().context("start userdel");
        let gone = gone.and_then(|said| {
            ensure!(
                said.status.success(),
                "userdel {USER}: {}",
                String::from_utf8_lossy(&said.stderr).trim()
            );
            Ok(())
        });
        failures.extend(gone.err());
    }
    failures
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let removed = if is_directory {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("remove {}", path.display())),
    }
}

/// Refuses a directory with mounts below it: what pods have there, volumes too, would go with it.
fn keep_mounted(directory: &Path) -> anyhow::Result<()> {
    let mounts = fs::read("/proc/self/mountinfo").context("read the mounts")?;
    let real = fs::canonicalize(directory).with_context(|| format!("find {}", directory.display()))?;
    if let Some(point) = mounted_inside(&mounts, &real).next() {
        bail!("{} is still mounted; {} is kept", point.display(), directory.display());
    }
    Ok(())
}

fn has_user() -> bool {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    // A person's account has another home directory.
    users.lines().any(|line| {
        let mut fields = line.split(':');
        fields.next() == Some(USER) && fields.nth(4) == Some(DEFAULT_STATE)
    })
}
