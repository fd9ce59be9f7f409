//! A containerd for one test: with its own root, state and socket, and without plugins that reach
//! further. The machine's own service is neither started nor used.
#![allow(dead_code, reason = "some tests let it only run")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct Daemon {
    directory: PathBuf,
    process: Option<Child>,
}

impl Daemon {
    pub(crate) fn address(directory: &Path) -> PathBuf {
        directory.join("containerd.sock")
    }

    pub(crate) async fn start(directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        let path = |name: &str| directory.join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = \"{}\"\nstate = \"{}\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.snapshotter.v1.devmapper\",\n\
               \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.aufs\",\n\
               \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.tracing.processor.v1.otlp\"]\n\
             [grpc]\n  address = \"{}\"\n[plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{}\"\n",
            path("root"),
            path("state"),
            path("containerd.sock"),
            path("opt"),
        );
        fs::write(directory.join("config.toml"), config).unwrap();
        let mut daemon = Self {
            directory: directory.to_owned(),
            process: None,
        };
        daemon.resume().await;
        daemon
    }

    /// Starts it, also after [`Daemon::kill`], and waits until it listens.
    pub(crate) async fn resume(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.join("log"))
            .unwrap();
        let process = Command::new("containerd")
            .arg("--config")
            .arg(self.directory.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        self.process = Some(process);
        let address = Self::address(&self.directory);
        let listening = async {
            while tokio::net::UnixStream::connect(&address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let listens = tokio::time::timeout(TIMEOUT, listening).await;
        assert!(listens.is_ok(), "{}", self.log());
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.as_ref().unwrap().id()).unwrap()
    }

    /// Kills it as a crash would: its shims go on.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
            // Missing if it was killed before it listened.
            drop(fs::remove_file(Self::address(&self.directory)));
        }
    }

    /// Runs `ctr` in this daemon's namespace and returns its output.
    pub(crate) fn ctr(&self, words: &[&str]) -> String {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(Self::address(&self.directory))
            .arg("--namespace")
            .arg(Self::namespace(&self.directory))
            .args(words)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Commits a snapshot with a directory's contents. It stays until it is removed.
    pub(crate) fn snapshot(&self, name: &str, of: &Path) -> String {
        let key = format!("{name}-making");
        self.ctr(&["snapshots", "prepare", &key]);
        // mount -t bind /SOURCE /target -o rw,rbind
        let mounts = self.ctr(&["snapshots", "mounts", "/target", &key]);
        let source = mounts.split_whitespace().nth(3).unwrap();
        let copied = Command::new("cp")
            .arg("-a")
            .arg(of.join("."))
            .arg(source)
            .status()
            .unwrap();
        assert!(copied.success());
        self.ctr(&["snapshots", "commit", name, &key]);
        self.ctr(&["snapshots", "label", name, "containerd.io/gc.root=test"]);
        name.to_owned()
    }

    /// Names of the writable snapshots.
    pub(crate) fn writable(&self) -> Vec<String> {
        let listed = self.ctr(&["snapshots", "ls"]);
        let lines = listed.lines().filter(|line| line.trim_end().ends_with(" Active"));
        let mut names: Vec<String> = lines
            .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
            .collect();
        names.sort();
        names
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Each machine has its own namespace: runc separates its state only by namespace, not by
    /// containerd.
    pub(crate) fn namespace(directory: &Path) -> String {
        let name = directory.parent().unwrap().file_name().unwrap();
        name.to_str().unwrap().to_owned()
    }

    pub(crate) fn has_shims(&self) -> bool {
        !shims(&self.directory.display().to_string()).is_empty()
    }

    /// Asserts that it has no objects of ours left.
    pub(crate) async fn finish(mut self) {
        for words in [
            ["tasks", "ls", "-q"],
            ["containers", "ls", "-q"],
            ["leases", "ls", "-q"],
        ] {
            assert_eq!(self.ctr(&words), "", "left: {words:?}");
        }
        // Those of containers; those of images stay.
        assert_eq!(self.writable(), Vec::<String>::new(), "left: snapshots");
        // A shim exits by itself after its last task.
        let directory = self.directory.display().to_string();
        let alone = async {
            while !shims(&directory).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let alone = tokio::time::timeout(TIMEOUT, alone).await;
        assert!(alone.is_ok(), "{:?}", shims(&directory));
        self.kill();
        let state = Path::new("/run/containerd/runc").join(Self::namespace(&self.directory));
        assert_eq!(
            fs::read_dir(&state).map_or(0, Iterator::count),
            0,
            "{}",
            state.display()
        );
        drop(fs::remove_dir(&state));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.process.is_none() {
            return;
        }
        for pid in shims(&self.directory.display().to_string()) {
            // It may have exited.
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).ok();
        }
        self.kill();
        drop(fs::remove_dir_all(
            Path::new("/run/containerd/runc").join(Self::namespace(&self.directory)),
        ));
    }
}

/// Shims of the containerd in this directory.
fn shims(directory: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("containerd-shim") && line.contains(directory) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    found
}
