//! Terminals: created in a container by the exec'd process, and passed on by their master.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::libc;
use nix::sys::stat::{Mode, SFlag, fstat, major, minor};
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::{Uid, dup2_stderr, dup2_stdin, dup2_stdout, fchown};

use crate::sys;

/// File system type of terminals.
const DEVPTS: FsType = FsType(0x1cd1);
/// Device that creates terminals, below the container's root.
const MULTIPLEXER: &str = "/dev/pts/ptmx";

/// Creates a terminal in this process's root, which is the container's, and makes it standard
/// input, output and error and the controlling terminal; sends its master to `console`.
pub(in crate::supervisor) fn take(console: BorrowedFd<'_>, user: u32) -> io::Result<()> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let master = open(MULTIPLEXER, flags, Mode::empty())?;
    check(&master)?;
    let terminal = sys::terminal_peer(master.as_fd())?;
    fchown(&terminal, Some(Uid::from_raw(user)), None)?;
    sys::send_with_descriptors(console, MULTIPLEXER.as_bytes(), &[master])?;
    sys::become_controlling(terminal.as_fd())?;
    dup2_stdin(&terminal)?;
    dup2_stdout(&terminal)?;
    dup2_stderr(&terminal)?;
    Ok(())
}

/// Checks the file system: a container can put any file at the path.
fn check(master: &OwnedFd) -> io::Result<()> {
    let found = fstat(master)?;
    let device = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR
        && (major(found.st_rdev), minor(found.st_rdev)) == (5, 2);
    if device && fstatfs(master)?.filesystem_type() == DEVPTS {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ENOTTY))
}

/// Receives the master that a container's init process sends to its console socket.
pub(in crate::supervisor) fn accept(listener: &UnixListener) -> io::Result<OwnedFd> {
    let (stream, _) = listener.accept()?;
    let (_, descriptors) = sys::receive_with_descriptors(stream.as_fd(), &mut [0; 64])?;
    let master = descriptors.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
    check(&master)?;
    fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(master)
}
