//! Init process of a PID namespace shared by the containers of a pod.

use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::{ForkResult, Pid, dup2_stdin};

use super::users::Users;
use crate::supervisor::rootfs::namespace::{self, MountNamespace};
use crate::sys::{self, FileSystem};

/// Init process of a PID namespace: it only reaps, and dies with the supervisor, however that ends;
/// all processes of the namespace die with it.
pub(in crate::supervisor) struct Pause {
    pub(in crate::supervisor) pid: i32,
    /// The other end reads end-of-file when the supervisor exits.
    _lifeline: PipeWriter,
}

impl Pause {
    pub(in crate::supervisor) fn start(mntns: &MountNamespace, users: Option<&Users>) -> io::Result<Self> {
        let (mut reader, mut writer) = io::pipe()?;
        let (line, lifeline) = io::pipe()?;
        match sys::fork()? {
            ForkResult::Child => {
                let made = seclude(mntns)
                    .and_then(|()| users.map_or(Ok(()), Users::enter))
                    .and_then(|()| unshare(CloneFlags::CLONE_NEWPID).map_err(io::Error::from))
                    .and_then(|()| sys::fork());
                match made {
                    Ok(ForkResult::Parent { child }) => {
                        let told = writer.write_all(&child.as_raw().to_ne_bytes());
                        sys::exit_now(i32::from(told.is_err()))
                    }
                    Ok(ForkResult::Child) => sys::exit_now(i32::from(wait_for_end(line.into()).is_err())),
                    Err(_) => sys::exit_now(1),
                }
            }
            ForkResult::Parent { child } => {
                drop(writer);
                let mut pid = [0; 4];
                let read = reader.read_exact(&mut pid);
                nix::sys::wait::waitpid(child, None)?;
                read.map(|()| Self {
                    pid: i32::from_ne_bytes(pid),
                    _lifeline: lifeline,
                })
            }
        }
    }

    pub(in crate::supervisor) fn end(self) {
        kill(Pid::from_raw(self.pid), Signal::SIGKILL).ok();
    }
}

/// Detaches this process, which the containers see and may be allowed to trace, from the machine's
/// files.
fn seclude(mntns: &MountNamespace) -> io::Result<()> {
    mntns.enter()?;
    let nothing = FileSystem::open("tmpfs")?;
    nothing.set("source", b"empty")?;
    nothing.set("mode", b"0555")?;
    let attributes = u32::try_from(libc::MOUNT_ATTR_RDONLY).map_err(io::Error::other)?;
    namespace::become_root(&nothing.mount(attributes)?, Path::new(namespace::HOME))
}

#[expect(unsafe_code, reason = "sigaction is unsafe for handlers; this ignores a signal")]
fn wait_for_end(line: OwnedFd) -> io::Result<()> {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::SA_NOCLDWAIT, SigSet::empty());
    // SAFETY: no handler is installed. Ignoring SIGCHLD makes the kernel reap.
    unsafe { sigaction(Signal::SIGCHLD, &ignore) }?;
    dup2_stdin(&line)?;
    drop(line);
    // Above all the agent's socket: the agent takes its end-of-file for the supervisor's exit.
    sys::close_all()?;
    loop {
        match nix::unistd::read(io::stdin(), &mut [0]) {
            Err(nix::Error::EINTR) => {}
            result => return result.map(drop).map_err(io::Error::from),
        }
    }
}
