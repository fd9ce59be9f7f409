//! The process that supervisors are forked from.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, setsid};

use crate::sys;

/// Longest path of a sandbox's directory.
const PATH_LIMIT: usize = 4096;

/// What a new supervisor starts from.
pub(super) struct Order {
    /// The sandbox's directory.
    pub(super) directory: PathBuf,
    /// The agent that ordered it.
    pub(super) agent: UnixStream,
}

/// Orders a supervisor: sends its directory, its socket and its standard error.
pub(crate) fn order(zygote: &OwnedFd, directory: &Path, agent: &OwnedFd, log: &OwnedFd) -> io::Result<()> {
    let fds = [agent.as_raw_fd(), log.as_raw_fd()];
    let path = [IoSlice::new(directory.as_os_str().as_bytes())];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<UnixAddr>(
        zygote.as_raw_fd(),
        &path,
        &[ControlMessage::ScmRights(&fds)],
        flags,
        None,
    )?;
    Ok(())
}

/// Forks a child for each order; returns the order in the child, and nothing when the agent is gone.
pub(super) fn serve() -> io::Result<Option<Order>> {
    let orders = take_over_stdin()?;
    // EPERM: it leads a session already.
    setsid().ok();
    forget_ignored()?;
    children(SigHandler::SigIgn, SaFlags::SA_NOCLDWAIT)?;
    loop {
        let Some((directory, agent, log)) = receive(&orders)? else {
            return Ok(None);
        };
        match sys::fork() {
            Ok(ForkResult::Child) => {
                drop(orders);
                children(SigHandler::SigDfl, SaFlags::empty())?;
                dup2_stderr(log)?;
                return Ok(Some(Order {
                    directory,
                    agent: UnixStream::from(agent),
                }));
            }
            // Without a child the socket is closed here, and the agent sees that.
            Ok(ForkResult::Parent { .. }) | Err(_) => {}
        }
    }
}

/// Frees descriptors 0 to 2, which containers inherit.
fn take_over_stdin() -> io::Result<OwnedFd> {
    let orders = io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    sys::close_on_exec_all()?;
    Ok(orders)
}

/// What the agent was started with would be ignored by all programs in containers, too: what a shell starts with `&`
/// ignores SIGQUIT, which stops nginx, and no shell can trap what was ignored before it. Of SIGPIPE the supervisor takes care.
#[expect(unsafe_code, reason = "sigaction is unsafe for handlers; this restores defaults")]
fn forget_ignored() -> io::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let fixed = [Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGPIPE];
    for signal in Signal::iterator().filter(|signal| !fixed.contains(signal)) {
        // SAFETY: no handler is installed.
        unsafe { sigaction(signal, &default) }?;
    }
    Ok(SigSet::empty().thread_set_mask()?)
}

#[expect(unsafe_code, reason = "sigaction is unsafe for handlers; this sets a disposition")]
fn children(handler: SigHandler, flags: SaFlags) -> io::Result<()> {
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGCHLD, &SigAction::new(handler, flags, SigSet::empty())) }?;
    Ok(())
}

/// The next order: directory, socket, log.
fn receive(orders: &OwnedFd) -> io::Result<Option<(PathBuf, OwnedFd, OwnedFd)>> {
    let mut path = vec![0; PATH_LIMIT];
    loop {
        let mut space = nix::cmsg_space!([RawFd; 2]);
        let mut parts = [IoSliceMut::new(&mut path)];
        let message = recvmsg::<UnixAddr>(
            orders.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        );
        let message = match message {
            Err(nix::Error::EINTR) => continue,
            result => result?,
        };
        let length = message.bytes;
        let mut fds = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                fds.extend(received.into_iter().map(sys::received));
            }
        }
        if length == 0 && fds.is_empty() {
            return Ok(None);
        }
        path.truncate(length);
        let mut fds = fds.into_iter();
        return match (fds.next(), fds.next()) {
            (Some(agent), Some(log)) => Ok(Some((PathBuf::from(OsString::from_vec(path)), agent, log))),
            (_, _) => Err(io::ErrorKind::InvalidData.into()),
        };
    }
}
