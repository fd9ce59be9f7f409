//! Events of processes that the kernel ended because the machine had no memory left, as a kubelet
//! tells of them (`pkg/kubelet/oom/oom_watcher_linux.go`). Those that reached the limit of their own
//! container are in its status.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::info;

use crate::Error;
use crate::client::events::Kind;
use crate::context::Context;

/// The kernel's messages, a record with each read (`Documentation/ABI/testing/dev-kmsg`).
const MESSAGES: &str = "/dev/kmsg";
/// Longest record (`PRINTK_MESSAGE_MAX`, with room for other versions).
const LONGEST: usize = 8192;
/// First priority of messages that processes have written: the kernel's own have facility 0.
const FOREIGN: u32 = 8;

/// Tells of victims without end, where the kernel's messages can be read.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    // The memory of this machine is not that of a simulated one.
    if context.config.secrets_in_memory {
        let Err(error) = follow(&context).await;
        info!(%error, "{MESSAGES} is not read: no event will tell that the machine had no memory left");
    }
    std::future::pending().await
}

/// Follows the messages from now on.
async fn follow(context: &Context) -> io::Result<Infallible> {
    let messages = open()?;
    let mut record = vec![0; LONGEST];
    loop {
        let mut ready = messages.readable().await?;
        match nix::unistd::read(messages.get_ref(), &mut record) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
                if let Some((name, pid)) = victim(&text) {
                    let message = format!("System OOM encountered, victim process: {name}, pid: {pid}");
                    context.node_event(Kind::Warning, "SystemOOM", message);
                }
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            // Messages were overwritten before they were read.
            Err(Errno::EPIPE) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
fn open() -> io::Result<AsyncFd<OwnedFd>> {
    let mut options = OpenOptions::new();
    let mut messages = options
        .read(true)
        // Where it is a terminal, it does not become the agent's.
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(MESSAGES)?;
    messages.seek(SeekFrom::End(0))?;
    // SAFETY: an OwnedFd stays open, and the same, for as long as it lives, and the registration owns it.
    Ok(unsafe { AsyncFd::register_with_interest(OwnedFd::from(messages), Interest::READABLE) }?)
}

/// Name and ID of the process that a record says was ended, unless a control group's limit was the
/// cause.
fn victim(record: &str) -> Option<(&str, u32)> {
    // `PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE`, and properties on lines of their own.
    let (head, message) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let message = message.lines().next()?.strip_prefix("Out of memory")?;
    let (pid, rest) = message.split_once(": Killed process ")?.1.split_once(" (")?;
    let (name, _) = rest.rsplit_once(") total-vm:")?;
    let pid = pid.parse().ok().filter(|_| priority < FOREIGN)?;
    Some((name, pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_of_the_machine_are_told_from_those_of_a_limit() {
        let usage =
            "total-vm:8388kB, anon-rss:7000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:64kB oom_score_adj:0\n";
        for (record, expected) in [
            (
                "3,812,5140900,-;Out of memory: Killed process 73 (stress) ",
                Some(("stress", 73)),
            ),
            (
                "3,812,5140900,-;Out of memory (oom_kill_allocating_task): Killed process 73 (a) (b) ",
                Some(("a) (b", 73)),
            ),
            (
                "3,812,5140900,-;Memory cgroup out of memory: Killed process 73 (stress) ",
                None,
            ),
            ("12,812,5140900,-;Out of memory: Killed process 73 (stress) ", None),
            ("6,812,5140900,-;eth0: link up ", None),
            ("", None),
        ] {
            assert_eq!(victim(&format!("{record}{usage}")), expected, "{record}");
        }
    }
}
