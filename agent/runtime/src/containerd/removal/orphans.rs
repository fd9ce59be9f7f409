//! Orphaned shims and incomplete state of runc.
//!
//! containerd starts a shim in the call that creates a task. If the caller dies at that moment,
//! containerd deletes the task, but a shim that has not reported its address yet lives on, and is
//! never ended. If it has not opened its log yet, it waits forever for the log's reader, and so
//! does every container started later in its pod.
//!
//! runc leaves incomplete state if containerd has it delete a container whose directory is gone:
//! that fails.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use sha2::{Digest as _, Sha256};

use crate::clock::now;
use crate::containerd::client::TASK;
use crate::containerd::container::exec_fifo;
use crate::containerd::logger;
use crate::sys;

/// Directory of the shims' sockets, named by a hash of containerd's address, its namespace and the
/// shim's group.
const SOCKETS: &str = "/run/containerd/s";

/// Timeout of a creation: older state belongs to no creation in progress.
pub(in crate::containerd) const CREATION: Duration = TASK;

/// Shim without a bundle directory and without containers, which does not answer.
struct Orphan {
    pid: i32,
    process: OwnedFd,
    socket: Option<PathBuf>,
}

/// Kills the orphaned shims of this containerd and this namespace.
pub(in crate::containerd) fn end(address: &Path, namespace: &str) {
    end_those(|pid| orphan(pid, address, namespace));
}

/// Kills all shims of this containerd and this namespace that have no container, when no creation
/// is in progress: one of an interrupted creation may still have a directory and an address.
pub(in crate::containerd) fn end_idle(address: &Path, namespace: &str) {
    end_those(|pid| {
        let process = shim(pid, address, namespace)?;
        let socket = listening(pid);
        (!has_containers(pid)).then_some(Orphan { pid, process, socket })
    });
}

fn end_those(find: impl Fn(i32) -> Option<Orphan>) {
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for entry in processes.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(orphan) = pid.and_then(&find) else {
            continue;
        };
        tracing::info!(pid = orphan.pid, "ending a shim that serves no task");
        // It may just have exited.
        if sys::pidfd_send_signal(orphan.process.as_fd(), libc::SIGKILL).is_ok()
            && let Some(socket) = orphan.socket
        {
            drop(fs::remove_file(socket));
        }
    }
}

/// State directories of runc whose creation seems to be cut off, at least this old.
pub(in crate::containerd) fn aborted(namespace: &str, age: Duration) -> Vec<(String, PathBuf)> {
    let records = fs::read_dir(Path::new(exec_fifo::RUNC).join(namespace));
    let aborted = records.into_iter().flatten().flatten().filter_map(|entry| {
        let since = entry.metadata().and_then(|found| found.modified()).ok()?;
        let old = now().duration_since(since).is_ok_and(|since| since >= age);
        // Runtimes other than runc keep other files there.
        let only_gate = fs::read_dir(entry.path())
            .ok()?
            .flatten()
            .all(|file| file.file_name() == exec_fifo::PIPE);
        let id = entry.file_name().into_string().ok()?;
        (old && only_gate).then(|| (id, entry.path()))
    });
    aborted.collect()
}

/// Removes them, unless files were added meanwhile.
pub(in crate::containerd) fn remove(aborted: &[(String, PathBuf)]) {
    for (id, directory) in aborted {
        tracing::info!(container = id, "removing what runc has begun");
        let removed = match fs::remove_file(directory.join(exec_fifo::PIPE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => fs::remove_dir(directory),
        };
        if let Err(error) = removed {
            tracing::warn!(container = id, %error, "what runc has begun stays");
        }
    }
}

fn shim(pid: i32, address: &Path, namespace: &str) -> Option<OwnedFd> {
    // Opened before anything is read: the descriptor keeps referring to this process.
    is_shim(&proc(pid, "cmdline"), address, namespace)
        .then(|| sys::pidfd_open(pid).ok())
        .flatten()
}

fn orphan(pid: i32, address: &Path, namespace: &str) -> Option<Orphan> {
    let process = shim(pid, address, namespace)?;
    let directory = fs::read_link(proc(pid, "cwd")).ok()?;
    let directory = directory.as_os_str().as_bytes().strip_suffix(b" (deleted)")?;
    let socket = listening(pid);
    let named = bundles(Path::new(OsStr::from_bytes(directory))).any(|of_other| Some(&of_other) == socket.as_ref());
    let orphan = Orphan { pid, process, socket };
    let answers = named && has_log(pid);
    let serves = answers || has_containers(pid);
    (!serves).then_some(orphan)
}

fn proc(pid: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

fn is_shim(command_line: &Path, address: &Path, namespace: &str) -> bool {
    let line = fs::read(command_line).unwrap_or_default();
    let words: Vec<&OsStr> = line.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    let program = words.first().and_then(|word| Path::new(word).file_name());
    let option = |name: &str| {
        let mut rest = words.iter().skip_while(|word| **word != name);
        rest.nth(1).copied()
    };
    let same = |path: &OsStr| fs::canonicalize(path).ok() == fs::canonicalize(address).ok();
    program.is_some_and(|program| program.as_bytes().starts_with(b"containerd-shim-"))
        && option("-namespace").is_some_and(|word| word == namespace)
        && option("-address").is_some_and(same)
}

/// Bundles of all tasks in the containerd that owns this one.
fn bundles(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let beside = directory.parent().map(fs::read_dir).and_then(Result::ok);
    beside.into_iter().flatten().flatten().filter_map(|entry| {
        // A task without an address yet has a shim of its own with that bundle.
        let address = address(&entry.path())?;
        let path = address.strip_prefix(b"unix://").unwrap_or(&address).to_vec();
        Some(PathBuf::from(OsString::from_vec(path)))
    })
}

/// Address that a task's shim reported to containerd: in a file of its own or, since containerd 2,
/// in a JSON document.
fn address(bundle: &Path) -> Option<Vec<u8>> {
    if let Ok(address) = fs::read(bundle.join("address")) {
        return Some(address);
    }
    let document = fs::read(bundle.join("bootstrap.json")).ok()?;
    let document: serde_json::Value = serde_json::from_slice(&document).ok()?;
    Some(document.get("address")?.as_str()?.as_bytes().to_vec())
}

/// Removes the socket of a pod's shim, when the pod has no container any more: since containerd 2,
/// shims leave theirs.
pub(in crate::containerd) fn remove_socket(address: &Path, namespace: &str, group: &str) {
    let sum = Sha256::digest(address.join(namespace).join(group).as_os_str().as_bytes());
    // Older shims have removed it themselves.
    drop(fs::remove_file(Path::new(SOCKETS).join(format!("{sum:x}"))));
}

/// Path at which a process listens.
fn listening(pid: i32) -> Option<PathBuf> {
    let sockets = fs::read_to_string(proc(pid, "net/unix")).ok()?;
    let own: Vec<String> = fs::read_dir(proc(pid, "fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|target| {
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    sockets.lines().find_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let words: Vec<&str> = line.split_whitespace().collect();
        let (inode, path) = (words.get(6)?, words.get(7)?);
        own.iter().any(|known| known == inode).then(|| PathBuf::from(path))
    })
}

/// True if the shim has opened its log, which it does before it can answer; also if that cannot be
/// determined.
fn has_log(pid: i32) -> bool {
    fs::read_link(proc(pid, "fd/2")).map_or(true, |target| target != Path::new("/dev/null"))
}

/// True if the shim has child processes other than loggers, which end with it; also if that cannot
/// be determined.
fn has_containers(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(proc(pid, "task")) else {
        return true;
    };
    let is_logger = |child: &str| {
        let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(logger::COMMAND.as_bytes())
    };
    threads.flatten().any(|thread| {
        let children = fs::read_to_string(thread.path().join("children"));
        children.map_or(true, |children| !children.split_whitespace().all(is_logger))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::bundles;

    #[test]
    fn sockets_of_tasks_are_found_whatever_version_wrote_them_down() {
        let tasks = tempfile::tempdir().unwrap();
        for (task, file, text) in [
            ("old", "address", "unix:///run/containerd/s/1"),
            (
                "new",
                "bootstrap.json",
                r#"{"version":3,"address":"unix:///run/containerd/s/2","protocol":"ttrpc"}"#,
            ),
            ("cut", "bootstrap.json", r#"{"version":3,"addr"#),
        ] {
            fs::create_dir(tasks.path().join(task)).unwrap();
            fs::write(tasks.path().join(task).join(file), text).unwrap();
        }
        let mut found: Vec<PathBuf> = bundles(&tasks.path().join("gone")).collect();
        found.sort();
        assert_eq!(
            found,
            ["1", "2"].map(|name| PathBuf::from("/run/containerd/s").join(name))
        );
    }
}
