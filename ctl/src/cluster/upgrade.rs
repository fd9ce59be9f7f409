//! `skiff upgrade`: replaces the running programs.
//!
//! 1. The new programs are checked: they must run on this machine.
//! 2. Each replaces the previous one by a rename; that one is kept beside it (`.NAME.before`).
//! 3. The daemons are stopped, and started by the new `skiff`, the control plane first: a server
//!    may be newer than its nodes, but not older. Pods keep running: their supervisors are
//!    processes of the program that they were started with.
//! 4. If a daemon is not Ready in time, the previous programs are restored and started.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use ring::digest;

use super::daemons::process::Daemon;
use super::daemons::{served, unit};
use super::settings::Settings;
use crate::arguments::{Place, UpgradeOptions};
use crate::terminal;

/// Programs in the order of their replacement.
const PROGRAMS: [&str; 3] = ["skiff-controlplane", "skiff-agent", "skiff"];
const UNITS: &str = "/usr/lib/systemd/system";
/// Longest time for a daemon to end.
const END: Duration = Duration::from_secs(20);

/// File to replace.
struct Replaced {
    /// Path of the file.
    path: PathBuf,
    /// Path of the new file.
    new: PathBuf,
}

impl Replaced {
    fn beside(&self, ending: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{ending}"))
    }

    fn take_place(&self) -> anyhow::Result<()> {
        let (before, new) = (self.beside("before"), self.beside("new"));
        let work = || -> std::io::Result<()> {
            remove(&before)?;
            fs::hard_link(&self.path, &before)?;
            remove(&new)?;
            let mode = fs::metadata(&self.path)?.permissions().mode() & 0o7777;
            let mut file = File::options().write(true).create_new(true).mode(mode).open(&new)?;
            std::io::copy(&mut File::open(&self.new)?, &mut file)?;
            // Independent of this process' umask.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.flush()?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        work().with_context(|| format!("replace {}", self.path.display()))
    }

    fn take_back(&self) -> anyhow::Result<()> {
        let before = self.beside("before");
        if !before.exists() {
            return Ok(());
        }
        // The replaced file is kept beside it for diagnosis.
        fs::rename(before, &self.path).with_context(|| format!("put {} back", self.path.display()))
    }

    fn forget(&self) {
        remove(&self.beside("before")).ok();
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Daemons of this machine.
struct Daemons {
    served: Option<PathBuf>,
    node: Option<(PathBuf, Settings)>,
}

impl Daemons {
    fn control_plane(&self) -> Option<Daemon> {
        let own = self.node.as_ref().filter(|(_, settings)| settings.joined.is_none());
        let directory = self.served.as_ref().or(own.map(|(directory, _)| directory))?;
        Some(super::control_plane(directory))
    }

    fn agent(&self) -> Option<Daemon> {
        self.node.as_ref().map(|(directory, _)| super::agent(directory))
    }

    /// Returns the directory of the running programs.
    fn home(&self) -> anyhow::Result<PathBuf> {
        let mut daemons = [self.control_plane(), self.agent()].into_iter().flatten();
        let running = daemons.find_map(|daemon| Some(daemon.running()?.pid));
        let unit = || self.served.as_ref().and_then(|_| unit::process(unit::SERVER));
        let running = running.or_else(unit);
        let running =
            running.context("nothing of the cluster runs here: `skiff up` starts the programs that are installed")?;
        let program = fs::read_link(format!("/proc/{running}/exe")).context("find the program that runs")?;
        let folder = program.parent().context("find the program that runs")?;
        Ok(folder.to_owned())
    }

    /// Stops each daemon and starts it with the programs in the directory. Returns how long the
    /// server was unavailable.
    async fn restart(&self, home: &Path, timeout: Duration) -> anyhow::Result<Option<Duration>> {
        let all = async {
            let gap = match self.control_plane() {
                Some(daemon) => Some(self.restart_control_plane(home, &daemon).await?),
                None => None,
            };
            if let (Some((directory, _)), Some(daemon)) = (&self.node, self.agent()) {
                if unit::is_its(directory) {
                    unit::systemctl(&["stop"], unit::AGENT)?;
                }
                daemon.stop(END)?;
                start(home, directory).await?;
            }
            anyhow::Ok(gap)
        };
        match tokio::time::timeout(timeout, all).await {
            Ok(done) => done,
            Err(_elapsed) => bail!("not everything is Ready after {} s", timeout.as_secs()),
        }
    }

    async fn restart_control_plane(&self, home: &Path, daemon: &Daemon) -> anyhow::Result<Duration> {
        let begun = tokio::time::Instant::now();
        if let Some(directory) = &self.served {
            let before = unit::process(unit::SERVER);
            unit::systemctl(&["restart", "--no-block"], unit::SERVER)?;
            // Until it has ended, the previous server responds.
            while unit::process(unit::SERVER).is_none_or(|process| Some(process) == before) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            served::answering(directory).await?;
            return Ok(begun.elapsed());
        }
        daemon.stop(END)?;
        let (directory, _) = self.node.as_ref().context("a cluster of this machine")?;
        let kubeconfig = directory.join("admin.kubeconfig");
        let answers = async {
            while !served::answers(&kubeconfig).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            begun.elapsed()
        };
        // Includes the running agent.
        let (started, gap) = tokio::join!(start(home, directory), async {
            tokio::time::timeout(END, answers)
                .await
                .unwrap_or_else(|_elapsed| begun.elapsed())
        });
        started.map(|()| gap)
    }
}

/// Child process that is killed on drop.
struct Starting(Child);

impl Drop for Starting {
    fn drop(&mut self) {
        // Errors of a child that has ended are ignored.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts stopped daemons by the `skiff` of their own release, which knows their flags.
async fn start(home: &Path, state_dir: &Path) -> anyhow::Result<()> {
    let mut up = Command::new(home.join("skiff"));
    up.arg("up")
        .arg("--state-dir")
        .arg(state_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut up = Starting(up.spawn().context("start skiff up")?);
    loop {
        match up.0.try_wait().context("wait for skiff up")? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => bail!("{} up failed", home.join("skiff").display()),
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

pub(crate) async fn run(place: &Place, options: &UpgradeOptions) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "replacing programs needs root");
    let node_dir = place.node_dir();
    let daemons = Daemons {
        node: Settings::read(&node_dir)?.map(|settings| (node_dir, settings)),
        served: place.served_dir(),
    };
    let home = daemons.home()?;
    let unpacked = Unpacked::open(options.from.as_deref(), &home)?;
    let replaced = replaced(&home, &unpacked.folder)?;
    let (before, after) = (version(&home.join("skiff"))?, version(&unpacked.folder.join("skiff"))?);
    let timeout = Duration::from_secs(options.timeout);
    if let Err(error) = put(&replaced) {
        // No daemon was restarted.
        let failures = take_back(&replaced);
        return Err(with_failures(&error, "The former programs run on.", &failures));
    }
    match daemons.restart(&home, timeout).await {
        Ok(gap) => {
            replaced.iter().for_each(Replaced::forget);
            let gap = gap.map(|gap| format!("; the API server was away for {} ms", gap.as_millis()));
            terminal::line(format!("{before} is now {after}{}.", gap.unwrap_or_default()))
        }
        Err(error) => Err(go_back(&daemons, &replaced, (&home, timeout), &error).await),
    }
}

fn put(replaced: &[Replaced]) -> anyhow::Result<()> {
    // Backups of an interrupted upgrade would be restored as the current programs.
    for file in replaced {
        remove(&file.beside("before")).with_context(|| format!("clean up beside {}", file.path.display()))?;
    }
    replaced.iter().try_for_each(Replaced::take_place)?;
    reload(replaced)
}

/// Reloads systemd after units were replaced.
fn reload(replaced: &[Replaced]) -> anyhow::Result<()> {
    if replaced.iter().any(|file| file.path.starts_with(UNITS)) {
        unit::systemctl(&["daemon-reload"], None)?;
    }
    Ok(())
}

/// Restores the previous programs, and starts them.
async fn go_back(
    daemons: &Daemons,
    replaced: &[Replaced],
    (home, timeout): (&Path, Duration),
    error: &anyhow::Error,
) -> anyhow::Error {
    let mut failures = take_back(replaced);
    let told = match daemons.restart(home, timeout).await {
        Ok(_) => "The former programs run again.",
        Err(failure) => {
            failures.push(failure);
            "The former programs are in their places again."
        }
    };
    with_failures(error, told, &failures)
}

fn with_failures(error: &anyhow::Error, told: &str, failures: &[anyhow::Error]) -> anyhow::Error {
    let failures = failures.iter().map(|failure| format!("\nMoreover: {failure:#}"));
    anyhow!("{error:#}\n{told}{}", failures.collect::<String>())
}

/// Puts the former files back into their places.
fn take_back(replaced: &[Replaced]) -> Vec<anyhow::Error> {
    let failures = replaced.iter().filter_map(|file| file.take_back().err());
    failures.chain(reload(replaced).err()).collect()
}

/// Returns the files that exist here and in the directory: programs, and units if they are
/// installed.
fn replaced(home: &Path, folder: &Path) -> anyhow::Result<Vec<Replaced>> {
    let units = [unit::SERVER, unit::AGENT].into_iter();
    let units = units.map(|name| (Path::new(UNITS).join(name), folder.join("systemd").join(name)));
    let is_home = |(path, _): &(PathBuf, PathBuf)| home == Path::new("/usr/bin") && path.is_file();
    let programs = PROGRAMS.iter().map(|name| (home.join(name), folder.join(name)));
    let all = programs.filter(|(path, _)| path.is_file()).chain(units.filter(is_home));
    let all = all
        .filter(|(_, new)| new.is_file())
        .map(|(path, new)| Replaced { path, new });
    let all: Vec<Replaced> = all.collect();
    for name in PROGRAMS.iter().filter(|name| home.join(name).is_file()) {
        ensure!(
            folder.join(name).is_file(),
            "there is no {name} in {}",
            folder.display()
        );
        version(&folder.join(name))?;
    }
    Ok(all)
}

/// Returns the version that a program reports. A program for another architecture or C library
/// reports none.
fn version(program: &Path) -> anyhow::Result<String> {
    let said = Command::new(program).arg("--version").output();
    let said = said.with_context(|| format!("{} does not run here", program.display()))?;
    let why = String::from_utf8_lossy(&said.stderr);
    ensure!(
        said.status.success(),
        "{} does not run here: {}",
        program.display(),
        why.trim()
    );
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Directory of programs.
struct Unpacked {
    folder: PathBuf,
    /// True if the directory was created for an archive, and is removed on drop.
    is_temporary: bool,
}

impl Unpacked {
    /// Opens the given directory or archive, or else the directory of this program.
    fn open(from: Option<&Path>, home: &Path) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find the own executable")?;
        let given = match from {
            Some(given) => given.to_owned(),
            None => own.parent().context("find the own executable")?.to_owned(),
        };
        let given = fs::canonicalize(&given).with_context(|| format!("find {}", given.display()))?;
        ensure!(
            given != fs::canonicalize(home).unwrap_or_default(),
            "{} has the programs that run: name another folder, or an archive, by --from",
            given.display()
        );
        if given.is_dir() {
            return Ok(Self {
                folder: given,
                is_temporary: false,
            });
        }
        is_whole(&given)?;
        let folder = home.join(format!(".skiff-upgrade-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let unpacked = Self {
            folder,
            is_temporary: true,
        };
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "--no-same-owner", "-xf"])
            .arg(&given)
            .arg("-C")
            .arg(&unpacked.folder);
        let said = tar.output().context("start tar")?;
        let why = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "unpack {}: {}", given.display(), why.trim());
        Ok(unpacked)
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        if self.is_temporary {
            fs::remove_dir_all(&self.folder).ok();
        }
    }
}

/// Verifies an archive by the checksum beside it; `make dist` writes both.
fn is_whole(archive: &Path) -> anyhow::Result<()> {
    let mut sums = archive.as_os_str().to_owned();
    sums.push(".sha256");
    let Ok(sums) = fs::read_to_string(&sums) else {
        terminal::note(format!("There is no {} to hold the archive against.", sums.display()));
        return Ok(());
    };
    let content = fs::read(archive).with_context(|| format!("read {}", archive.display()))?;
    let sum = super::hex(digest::digest(&digest::SHA256, &content).as_ref());
    ensure!(
        sums.split_whitespace().next() == Some(sum.as_str()),
        "{} is not the archive that its .sha256 is for",
        archive.display()
    );
    Ok(())
}
