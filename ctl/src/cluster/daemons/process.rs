//! Background daemons: started, found again, stopped, and never confused with another process of
//! the same PID.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Daemon of a cluster.
pub(in crate::cluster) struct Daemon {
    pid_file: PathBuf,
    /// Lock file that the daemon writes itself, however it was started.
    lock_file: Option<PathBuf>,
    log: PathBuf,
    /// Unit of systemd that it is, whose log is the journal's.
    unit: Option<&'static str>,
}

/// Process that was verified to be the daemon.
pub(in crate::cluster) struct Running {
    pub(in crate::cluster) pid: i32,
    handle: rustix::fd::OwnedFd,
}

impl Daemon {
    pub(in crate::cluster) fn new(state_dir: &Path, name: &str) -> Self {
        Self {
            pid_file: state_dir.join(format!("{name}.pid")),
            lock_file: None,
            log: state_dir.join(format!("{name}.log")),
            unit: None,
        }
    }

    /// Sets the lock file in which the daemon records its process.
    pub(in crate::cluster) fn locking(self, lock_file: PathBuf) -> Self {
        Self {
            lock_file: Some(lock_file),
            ..self
        }
    }

    /// Sets the unit of systemd that the daemon is, if it is one.
    pub(in crate::cluster) fn of_unit(self, unit: Option<&'static str>) -> Self {
        Self { unit, ..self }
    }

    /// Returns the running process: the one that was started from here, else the holder of the
    /// daemon's lock.
    pub(in crate::cluster) fn running(&self) -> Option<Running> {
        recorded(&self.pid_file).or_else(|| recorded(self.lock_file.as_deref()?))
    }

    /// Starts a program in its own session, with its output in the log.
    pub(in crate::cluster) fn start(&self, program: &Path, arguments: &[String]) -> anyhow::Result<Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.log)
            .context("open the log")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir("/")
            // The daemon puts it aside when it is large.
            .env("SKIFF_LOG_FILE", &self.log)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        leave_session(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let pid = i32::try_from(child.id()).context("a process id")?;
        let record = format!(
            "{pid} {} {}\n",
            began_at(pid).unwrap_or_default(),
            boot_id().unwrap_or_default()
        );
        fs::write(&self.pid_file, record).context("write the pid file")?;
        Ok(child)
    }

    /// Returns the last lines of the log for diagnosis, with its name.
    pub(in crate::cluster) fn last_words(&self) -> String {
        let (name, text) = match self.unit {
            Some(unit) => {
                let mut command = Command::new("journalctl");
                command.args(["--unit", unit, "--lines", "15", "--output", "cat", "--no-pager"]);
                let said = command.output().map(|said| said.stdout).unwrap_or_default();
                (format!("`journalctl -u {unit}`"), said)
            }
            None => (self.log.display().to_string(), fs::read(&self.log).unwrap_or_default()),
        };
        let tail = text.get(text.len().saturating_sub(4096)..).unwrap_or_default();
        let lines: Vec<String> = String::from_utf8_lossy(tail)
            .lines()
            .map(|line| format!("  {line}"))
            .collect();
        let lines = lines.get(lines.len().saturating_sub(15)..).unwrap_or_default();
        format!("the end of {name}:\n{}", lines.join("\n"))
    }

    /// Sends SIGTERM, and SIGKILL after `patience`; returns whether the daemon ran.
    pub(in crate::cluster) fn stop(&self, patience: Duration) -> anyhow::Result<bool> {
        let mut ran = false;
        // A process may have been started from here, and another one, by mistake, in another way.
        for record in [Some(&self.pid_file), self.lock_file.as_ref()].into_iter().flatten() {
            if let Some(running) = recorded(record) {
                running.stop(patience)?;
                ran = true;
            }
        }
        remove(&self.pid_file)?;
        Ok(ran)
    }
}

/// Returns the process in a record, if it still runs. The record has the PID, its start time, the
/// boot ID and, in an agent's lock, the command.
fn recorded(file: &Path) -> Option<Running> {
    let text = fs::read_to_string(file).ok()?;
    let mut words = text.split_whitespace();
    let pid: i32 = words.next()?.parse().ok()?;
    let (began, boot) = (words.next()?, words.next()?);
    let runs = words.next().is_none_or(|command| command == "run");
    // The pidfd is opened first: later checks then apply to the process that it refers to.
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let same = began_at(pid).as_deref() == Some(began) && boot_id().as_deref() == Some(boot);
    (runs && same).then_some(Running { pid, handle })
}

impl Running {
    fn stop(&self, patience: Duration) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        if !self.wait(patience)? {
            self.signal(Signal::KILL)?;
            anyhow::ensure!(self.wait(Duration::from_secs(10))?, "process {} does not end", self.pid);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("signal process {}", self.pid)),
        }
    }

    /// Waits for the process to end; returns whether it did within the time.
    fn wait(&self, patience: Duration) -> anyhow::Result<bool> {
        let timeout = Timespec::try_from(patience).context("a time")?;
        let mut descriptors = [PollFd::new(&self.handle, PollFlags::IN)];
        loop {
            match poll(&mut descriptors, Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("wait for a process"),
            }
        }
    }
}

#[expect(unsafe_code, reason = "setsid must happen in the child; it is safe to call there")]
fn leave_session(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into));
    }
}

/// Returns the start time of a process in clock ticks since boot: field 22 of its `stat`.
fn began_at(pid: i32) -> Option<String> {
    let mut text = String::new();
    File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read_to_string(&mut text)
        .ok()?;
    // The second field is the command in parentheses, which may contain any characters.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    // A zombie does not count as running.
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.nth(18).map(str::to_owned)
}

fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .map(|text| text.trim().to_owned())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context("remove the pid file"),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_with_the_same_pid_is_not_ours() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let daemon = Daemon::new(&directory, "daemon");
        assert!(daemon.running().is_none());
        let mut child = daemon.start(Path::new("/bin/sleep"), &["1000".to_owned()]).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(daemon.running().unwrap().pid, pid);
        // The same PID with another start time.
        fs::write(
            directory.join("daemon.pid"),
            format!("{pid} 1 {}\n", boot_id().unwrap()),
        )
        .unwrap();
        assert!(daemon.running().is_none());
        assert!(!daemon.stop(Duration::from_secs(1)).unwrap());
        assert!(child.try_wait().unwrap().is_none(), "it was left alone");
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_daemon_that_another_started_is_found_by_its_lock() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-lock-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let lock = directory.join("daemon.lock");
        let daemon = Daemon::new(&directory, "daemon").locking(lock.clone());
        let mut child = daemon.start(Path::new("/bin/sleep"), &["1000".to_owned()]).unwrap();
        let record = fs::read_to_string(directory.join("daemon.pid")).unwrap();
        fs::remove_file(directory.join("daemon.pid")).unwrap();
        fs::write(&lock, format!("{} cleanup\n", record.trim())).unwrap();
        assert!(daemon.running().is_none(), "another command holds the lock");
        fs::write(&lock, format!("{} run\n", record.trim())).unwrap();
        assert!(daemon.stop(Duration::from_secs(5)).unwrap());
        child.wait().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_last_words_are_those_of_the_log_or_of_the_journal() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-words-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let daemon = || Daemon::new(&directory, "daemon");
        fs::write(directory.join("daemon.log"), "one\ntwo\n").unwrap();
        let log = directory.join("daemon.log");
        assert_eq!(
            daemon().last_words(),
            format!("the end of {}:\n  one\n  two", log.display())
        );
        let unit = daemon().of_unit(Some("skiff-none.service")).last_words();
        assert!(
            unit.starts_with("the end of `journalctl -u skiff-none.service`:"),
            "{unit}"
        );
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn stopping_ends_it_and_may_be_repeated() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-stop-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let daemon = Daemon::new(&directory, "daemon");
        let mut child = daemon.start(Path::new("/bin/sleep"), &["1000".to_owned()]).unwrap();
        assert!(daemon.stop(Duration::from_secs(5)).unwrap());
        assert!(!daemon.stop(Duration::from_secs(5)).unwrap());
        child.wait().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_process_that_waits_for_its_parent_has_ended() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Until it is reaped, the kernel keeps its entry.
        let ended = (0..5_000).any(|_| {
            std::thread::park_timeout(Duration::from_millis(1));
            began_at(pid).is_none()
        });
        assert!(ended && Path::new(&format!("/proc/{pid}")).exists());
        child.wait().unwrap();
    }
}
