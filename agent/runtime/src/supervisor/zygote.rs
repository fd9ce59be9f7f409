//! Zygote: the process that supervisors are forked from.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, recvmsg,
    sendmsg, shutdown, socketpair,
};
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, setsid};

use super::namespaces::ready::Ready;
use super::rootfs::namespace::MountNamespace;
use super::rootfs::shm::SharedMemory;
use super::{Failure, at};
use crate::sys;

/// Limit of the path of a sandbox's directory.
const PATH_LIMIT: usize = 4096;
/// Idle time after which a child is forked ahead: starting pods have the machine for themselves.
const QUIET_MILLISECONDS: u8 = 250;
/// Timeout of the spare's exit, which takes microseconds.
const END_MILLISECONDS: u16 = 2000;

/// Order from which a new supervisor starts.
pub(super) struct Order {
    /// Directory of the sandbox.
    pub(super) directory: PathBuf,
    /// Connection of the agent that ordered it.
    pub(super) agent: UnixStream,
    /// State that the process prepared ahead.
    pub(super) ready: Result<Ready, Failure>,
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

/// Forks a child for each order; returns the order in the child, and `None` when the agent is gone.
///
/// One child (the spare) is forked ahead, with what nearly every pod needs: the fork and the first
/// page faults of a new process take longer than the rest that a supervisor does before its pod has
/// a network.
pub(super) fn serve(mntns: &MountNamespace) -> io::Result<Option<Order>> {
    let orders = take_over()?;
    // Until the first order, this process may not be in its cgroup yet, nor would a spare be.
    let (mut spare, mut ordered) = (None, false);
    loop {
        if ordered && spare.is_none() && !comes(&orders, QUIET_MILLISECONDS.into())? {
            match begin_spare() {
                Forked::Child(own) => {
                    // Only the zygote receives all orders.
                    drop(orders);
                    return be_spare(&own, mntns);
                }
                Forked::Parent(made) => spare = made,
            }
        }
        let Some((directory, agent, log)) = receive(&orders)? else {
            spare.as_ref().map_or(Ok(()), end_spare)?;
            return Ok(None);
        };
        ordered = true;
        if spare
            .take()
            .is_some_and(|spare| order(&spare, &directory, &agent, &log).is_ok())
        {
            continue;
        }
        match sys::fork() {
            Ok(ForkResult::Child) => {
                drop(orders);
                return begin(directory, agent, log, get_ready()).map(Some);
            }
            // Without a child the socket is closed here, and the agent notices.
            Ok(ForkResult::Parent { .. }) | Err(_) => {}
        }
    }
}

/// Side of a fork, with this process's end of the socket between them.
enum Forked {
    Child(OwnedFd),
    /// `None` if there is no child.
    Parent(Option<OwnedFd>),
}

fn begin_spare() -> Forked {
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let Ok((ours, theirs)) = pair else {
        return Forked::Parent(None);
    };
    match sys::fork() {
        Ok(ForkResult::Child) => {
            drop(ours);
            Forked::Child(theirs)
        }
        Ok(ForkResult::Parent { .. }) => Forked::Parent(Some(ours)),
        Err(_) => Forked::Parent(None),
    }
}

/// Waits for an order to become the supervisor of a pod.
fn be_spare(orders: &OwnedFd, mntns: &MountNamespace) -> io::Result<Option<Order>> {
    // A failed process is missing when it is needed: its replacement reports the cause if it fails,
    // too.
    let Ok(mut ready) = get_ready() else { return Ok(None) };
    // If it cannot be created, the pod's supervisor reports the cause.
    ready.memory = SharedMemory::make(mntns, 0).ok();
    let Some((directory, agent, log)) = receive(orders)? else {
        return Ok(None);
    };
    begin(directory, agent, log, Ok(ready)).map(Some)
}

fn get_ready() -> Result<Ready, Failure> {
    children(SigHandler::SigDfl, SaFlags::empty()).map_err(at("take signals"))?;
    Ready::get()
}

fn begin(directory: PathBuf, agent: OwnedFd, log: OwnedFd, ready: Result<Ready, Failure>) -> io::Result<Order> {
    dup2_stderr(log)?;
    Ok(Order {
        directory,
        agent: UnixStream::from(agent),
        ready,
    })
}

/// Waits until the spare is gone: no process of the agent's outlives the zygote. A stopped spare
/// exits when it is continued.
fn end_spare(spare: &OwnedFd) -> io::Result<()> {
    shutdown(spare.as_raw_fd(), Shutdown::Write)?;
    if !comes(spare, END_MILLISECONDS.into())? {
        return Ok(());
    }
    let mut end = [0];
    match nix::unistd::read(spare, &mut end) {
        Ok(_) | Err(nix::Error::ECONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an order, or the agent's end, comes within a time.
fn comes(orders: &OwnedFd, time: PollTimeout) -> io::Result<bool> {
    let mut wanted = [PollFd::new(orders.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut wanted, time) {
            Err(nix::Error::EINTR) => {}
            result => return Ok(result? > 0),
        }
    }
}

/// Becomes a zygote; returns the socket of its orders.
pub(crate) fn take_over() -> io::Result<OwnedFd> {
    let orders = take_over_stdin()?;
    // EPERM: it is a session leader already.
    setsid().ok();
    forget_ignored()?;
    children(SigHandler::SigIgn, SaFlags::SA_NOCLDWAIT)?;
    Ok(orders)
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

/// Resets ignored signals, which all programs in containers would inherit from the agent: a shell
/// that starts it with `&` ignores SIGQUIT, which stops nginx, and no shell can trap a signal that
/// was ignored before. SIGPIPE is handled by the supervisor.
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

/// Receives the next order: directory, socket, log.
pub(crate) fn receive(orders: &OwnedFd) -> io::Result<Option<(PathBuf, OwnedFd, OwnedFd)>> {
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
