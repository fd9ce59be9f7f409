//! A cluster of real daemons on one machine, in a network namespace of its own, driven as a person would: with `skiff`
//! and stock kubectl.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{leaks, process};

/// Timeout of a condition. Generous: the machine runs other tests at the same time.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// A network namespace with its own uplink, so that a test does not affect the machine's network.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates the namespace, brings its loopback up and gives it an uplink `up0` with
    /// 172.30.0.1/24 that leads nowhere.
    ///
    /// # Errors
    /// Fails if `ip` fails; needs root.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let name = format!("skiff-{name}-{}", std::process::id());
        process::run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name };
        for words in [
            "link set lo up",
            "link add up0 type veth peer name up1",
            "link set up1 up",
            "link set up0 up",
            "addr add 172.30.0.1/24 dev up0",
            "route add default via 172.30.0.254",
        ] {
            namespace.run("ip", words.split(' '))?;
        }
        Ok(namespace)
    }

    /// The name under `/var/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread inside; threads that it starts later are inside too.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn enter(&self) -> anyhow::Result<()> {
        let inside = std::fs::File::open(format!("/var/run/netns/{}", self.name))?;
        Ok(nix::sched::setns(inside, nix::sched::CloneFlags::CLONE_NEWNET)?)
    }

    /// A command that will run inside. (`ip netns exec` would remount /sys and hide the control groups.)
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/var/run/netns/{}", self.name))
            .arg("--")
            .arg(program);
        command
    }

    fn run<'a>(&self, program: &str, words: impl Iterator<Item = &'a str>) -> anyhow::Result<String> {
        process::run(self.command(program).args(words))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let gone = Command::new("ip").args(["netns", "del", &self.name]).status();
        if !gone.is_ok_and(|status| status.success()) {
            tracing::error!(namespace = self.name, "could not be deleted");
        }
    }
}

/// Configuration of a cluster's start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// Environment of the daemons, where it differs from that of other tests.
    pub environment: &'a [(&'a str, &'a str)],
    /// The size in MiB of a small disk of its own.
    pub disk: Option<u32>,
    /// The name of the state directory, where it matters.
    pub folder: Option<&'a str>,
    /// Additional arguments of the first `skiff up`.
    pub words: &'a [String],
    /// The directory of the programs, where it is not the tests' own.
    pub programs: Option<&'a Path>,
    /// True to start the daemons with a shell's umask, which leaves files readable to all users;
    /// otherwise the umask is that of their units.
    pub open: bool,
}

/// A file system in memory, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path, mebibytes: u32) -> anyhow::Result<Self> {
        let options = format!("size={mebibytes}m,mode=0700");
        process::run(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
                .arg(at),
        )?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = process::run(Command::new("umount").arg(&self.0)) {
            tracing::error!(%error, "a disk of a test stays mounted");
        }
    }
}

/// Running cluster: a control plane and one node, with its state in a directory of its own.
pub struct Machine {
    namespace: Namespace,
    state: PathBuf,
    environment: Vec<(String, String)>,
    programs: PathBuf,
    open: bool,
    _disk: Option<Disk>,
    _home: tempfile::TempDir,
    before: BTreeSet<String>,
    down: bool,
}

impl Machine {
    /// Starts both daemons by `skiff up` and returns when the node is Ready.
    ///
    /// # Errors
    /// Fails if a daemon does not come up; the message holds what `skiff up` said.
    pub fn start(name: &str) -> anyhow::Result<Self> {
        Self::start_in(Namespace::new(name)?)
    }

    /// Like [`Self::start`], in an existing namespace.
    ///
    /// # Errors
    /// Fails if a daemon does not come up; the message holds what `skiff up` said.
    pub fn start_in(namespace: Namespace) -> anyhow::Result<Self> {
        Self::start_with(namespace, Setup::default())
    }

    /// Like [`Self::start_in`], with its own disk, environment or arguments.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(namespace: Namespace, setup: Setup<'_>) -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("skiff-").tempdir()?;
        let disk = setup.disk.map(|size| Disk::mount(home.path(), size)).transpose()?;
        let state = match (&disk, setup.folder) {
            (_, Some(folder)) => home.path().join(folder),
            (Some(_), None) => home.path().join("state"),
            (None, None) => home.path().to_owned(),
        };
        let before = leaks::traces(&state, namespace.name())?;
        // The disk usage of the test machine must not affect the tests.
        let environment = [("SKIFF_EVICTION_HARD", ""), ("SKIFF_IMAGE_GC_HIGH_THRESHOLD", "100")];
        let environment = environment.iter().chain(setup.environment);
        let environment = environment.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let machine = Self {
            namespace,
            state,
            environment: environment.collect(),
            programs: setup
                .programs
                .map_or_else(process::programs, |folder| Ok(folder.to_owned()))?,
            open: setup.open,
            _disk: disk,
            _home: home,
            before,
            down: false,
        };
        machine.skiff(["up"].into_iter().chain(setup.words.iter().map(String::as_str)))?;
        Ok(machine)
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The network namespace that stands for the machine.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state().join("admin.kubeconfig")
    }

    /// Runs `skiff ARGUMENTS --state-dir STATE` on the machine.
    ///
    /// # Errors
    /// Fails if it does not exit with 0.
    pub fn skiff<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        let mask = if self.open { "0022" } else { "0077" };
        let mut command = self.namespace.command("sh");
        command.args(["-c", &format!("umask {mask} && exec \"$@\""), "sh"]);
        command.arg(self.programs.join("skiff"));
        command.args(words).arg("--state-dir").arg(self.state());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        process::run(&mut command)
    }

    /// A kubectl command for this cluster, with its discovery cache inside the state directory.
    pub fn kubectl_command(&self, kubectl: &Path) -> Command {
        let mut command = self.namespace.command(kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--cache-dir").arg(
            self.state()
                .join("kubectl-cache")
                .join(kubectl.file_name().unwrap_or_default()),
        );
        command
    }

    /// Runs the newest stock kubectl.
    ///
    /// # Errors
    /// Fails if it does not exit with 0.
    pub fn kubectl<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        let newest = process::kubectls()?.pop().context("a kubectl")?;
        process::run(self.kubectl_command(&newest).args(words))
    }

    /// Fetches `http://ADDRESS/PATH` from the machine.
    ///
    /// # Errors
    /// Fails if there is no answer with a status below 400 within 10 s.
    pub fn fetch(&self, address: &str) -> anyhow::Result<String> {
        process::run(
            self.namespace
                .command("curl")
                .args(["-sS", "--fail", "--max-time", "10", address]),
        )
    }

    /// Fetches like [`Self::fetch`], from a server that may have just started and not listen yet.
    ///
    /// # Errors
    /// Fails if the patience is over.
    pub fn page(&self, address: &str) -> anyhow::Result<String> {
        eventually(&format!("{address} answers"), || {
            self.fetch(address).map_err(|error| format!("{error:#}"))
        })
    }

    /// Imports an image archive into the node.
    ///
    /// # Errors
    /// Fails if the agent refuses it.
    pub fn import(&self, archive: &Path) -> anyhow::Result<String> {
        self.skiff(["image", "import", &archive.display().to_string()])
    }

    /// The process id of a daemon of this cluster.
    ///
    /// # Errors
    /// Fails if it does not run.
    pub fn daemon(&self, program: &str) -> anyhow::Result<i32> {
        let folder = self.state().display().to_string();
        process::with_command_line(&folder)?
            .into_iter()
            .find(|(_, line)| {
                let mut words = line.split(' ');
                words.next().is_some_and(|word| word.ends_with(program)) && words.next() == Some("run")
            })
            .map(|(pid, _)| pid)
            .with_context(|| format!("{program} runs"))
    }

    /// Kills a daemon of this cluster and waits for its end.
    ///
    /// # Errors
    /// Fails if it does not run or does not end.
    pub fn kill(&self, program: &str) -> anyhow::Result<()> {
        let pid = self.daemon(program)?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        ended(pid)
    }

    /// The records of the audit log; its last line may be half written.
    ///
    /// # Errors
    /// Fails if the log cannot be read or a whole line is no JSON.
    pub fn audit(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        let mut records = Vec::new();
        for entry in std::fs::read_dir(self.state().join("controlplane/audit"))? {
            let text = std::fs::read(entry?.path())?;
            let whole = text.split_inclusive(|byte| *byte == b'\n');
            for line in whole.filter(|line| line.ends_with(b"\n")) {
                records.push(serde_json::from_slice(line)?);
            }
        }
        Ok(records)
    }

    /// A process in the machine's namespace that the test itself has started, and that is there when the cluster is down.
    pub fn keep(&mut self, pid: i32) {
        let namespace = self.namespace.name();
        self.before.insert(leaks::process_in(pid, namespace));
    }

    /// Takes the cluster down and fails when anything of it is left on the machine.
    ///
    /// # Errors
    /// Fails if `skiff down` fails or something is left.
    pub fn finish(self) -> anyhow::Result<()> {
        self.finish_by(&["down", "--purge"])
    }

    /// Like [`Self::finish`], with another command.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn finish_by(mut self, words: &[&str]) -> anyhow::Result<()> {
        self.down = true;
        let root = self.cgroup_root()?;
        self.skiff(words.iter().copied())?;
        let left = eventually("shims of containerd end", || {
            let left = self.left(&root).map_err(|error| format!("{error:#}"))?;
            // Shims exit by themselves, a moment after containerd has reported their task as
            // deleted.
            let are_ending = !left.is_empty() && left.iter().all(|trace| leaks::is_shim(trace));
            if are_ending {
                Err(format!("{left:#?}"))
            } else {
                Ok(left)
            }
        })?;
        if !left.is_empty() {
            bail!("left on the machine: {left:#?}");
        }
        Ok(())
    }

    /// Returns the traces that were not there before the cluster was started, with the command
    /// lines of processes.
    fn left(&self, root: &str) -> anyhow::Result<Vec<String>> {
        let mut after = leaks::traces(self.state(), self.namespace.name())?;
        after.extend(leaks::cgroups(root)?);
        Ok(after
            .difference(&self.before)
            .filter_map(|trace| leaks::named(trace))
            .collect())
    }

    /// True if a process is in the cluster's cgroups.
    #[must_use]
    pub fn holds(&self, pid: i32) -> bool {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        self.cgroup_root()
            .is_ok_and(|root| groups.contains(&format!("/{root}/")))
    }

    /// The control group that holds the cluster's pods.
    fn cgroup_root(&self) -> anyhow::Result<String> {
        let settings: serde_json::Value = serde_json::from_slice(&std::fs::read(self.state().join("cluster.json"))?)?;
        let root = settings.get("cgroup_root").and_then(serde_json::Value::as_str);
        Ok(root.context("cluster.json names no cgroup_root")?.to_owned())
    }

    /// The daemons' own logs, for the message of a test that fails.
    pub fn logs(&self) -> String {
        let listing = Command::new("sh")
            .args([
                "-c",
                "for f in \"$1\"/*.log \"$1\"/*/*.log; do [ -f \"$f\" ] && echo \"== $f\" && tail -n 40 \"$f\"; done",
                "sh",
            ])
            .arg(self.state())
            .output();
        listing.map_or_else(|error| error.to_string(), |output: Output| process::both(&output))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.down {
            return;
        }
        // After a failed test: keep the logs for its message, and clean up the machine.
        tracing::error!(logs = self.logs(), "the cluster ended by a failure");
        if let Err(error) = self.skiff(["down", "--purge"]) {
            tracing::error!(%error, "skiff down");
        }
    }
}

/// Waits until `probe` returns something, asking again after short pauses; the error tells the last state that it saw.
///
/// # Errors
/// Fails if the patience is over.
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> anyhow::Result<T> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test against real processes runs on the wall clock"
    )]
    let now = std::time::Instant::now;
    let start = now();
    loop {
        let seen = match probe() {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if now().duration_since(start) > TIMEOUT {
            bail!("{what}: not within {TIMEOUT:?}; last seen: {seen}");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Waits until the last thread of a process has ended: its first one may be gone while others still hold its locks.
///
/// # Errors
/// Fails if the patience is over.
pub fn ended(pid: i32) -> anyhow::Result<()> {
    eventually(&format!("process {pid} ends"), || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let ended = threads <= 1 && state.is_none_or(|state| state == 'Z');
        ended.then_some(()).ok_or_else(|| format!("{threads} threads: {stat}"))
    })
}
