//! System calls that no crate of ours wraps: the only module of this crate, besides the forks, with
//! `unsafe` code.

mod mounts;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;

pub(crate) use mounts::{FileSystem, Mount};

/// Flag of `clone3` only: it does not fit into libc's type of `clone` flags.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// `NS_GET_USERNS`: the user namespace that owns another namespace.
const GET_USERS: libc::Ioctl = 0xb701;

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[expect(unsafe_code, reason = "the kernel returned a new descriptor that nobody else owns")]
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = checked(result).and_then(|fd| i32::try_from(fd).map_err(io::Error::other))?;
    // SAFETY: see the reason above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Attempts of a lookup that fails because of concurrent renames or mounts.
const LOOKUPS: u32 = 1000;

/// Opens a path within a root; links cannot lead out of it.
pub(crate) fn open_in_root(root: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..LOOKUPS {
        match openat2(root.as_fd(), path, how) {
            // The kernel cannot resolve `..` safely during any rename or mount on the machine
            // (`openat2(2)`).
            Err(Errno::EAGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::EAGAIN)
}

/// Opens a pidfd: it cannot refer to a later process of the same PID.
#[expect(unsafe_code, reason = "pidfd_open has no wrapper")]
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Signals the process of a pidfd.
#[expect(unsafe_code, reason = "pidfd_send_signal has no wrapper")]
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed, the rest are integers.
    checked(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0) }).map(drop)
}

/// Reaps the next child that has exited: its PID, and its exit code or minus its signal. nix knows
/// no real-time signals, and loses a child that was killed by one.
#[expect(unsafe_code, reason = "waitpid's wrapper refuses real-time signals")]
pub(crate) fn reap() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: the status is a local variable.
    let pid = match checked(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) }.into()) {
        Ok(0) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
        pid => i32::try_from(pid?).map_err(io::Error::other)?,
    };
    let ended = if libc::WIFSIGNALED(status) {
        -libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    };
    Ok(Some((pid, ended)))
}

/// Makes orphaned descendants children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// Marks every descriptor from 3 on close-on-exec.
#[expect(unsafe_code, reason = "close_range has no wrapper")]
pub(crate) fn close_on_exec_all() -> io::Result<()> {
    // SAFETY: changes flags only; no descriptor is closed here.
    checked(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Closes every descriptor from 3 on, for a process that owns none.
#[expect(unsafe_code, reason = "close_range has no wrapper")]
pub(crate) fn close_all() -> io::Result<()> {
    // SAFETY: the caller is a fork that uses no descriptor any more and ends without running
    // destructors.
    checked(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0) }).map(drop)
}

/// Forks. The caller must be single-threaded.
#[expect(
    unsafe_code,
    reason = "fork is unsafe only where other threads exist; a supervisor has none"
)]
pub(crate) fn fork() -> io::Result<nix::unistd::ForkResult> {
    // SAFETY: see the reason above.
    unsafe { nix::unistd::fork() }.map_err(io::Error::from)
}

/// Forks straight into a v2 group, or normally if that is not possible; returns whether the child
/// is in the group.
#[expect(unsafe_code, reason = "clone3 has no wrapper")]
pub(crate) fn fork_into(group: Option<BorrowedFd<'_>>) -> io::Result<(nix::unistd::ForkResult, bool)> {
    let Some(group) = group else {
        return Ok((fork()?, false));
    };
    let into = u64::try_from(group.as_raw_fd()).map_err(io::Error::other)?;
    let exit_signal = u64::try_from(libc::SIGCHLD).map_err(io::Error::other)?;
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
    // set_tid_size, cgroup
    let arguments: [u64; 11] = [CLONE_INTO_CGROUP, 0, 0, 0, exit_signal, 0, 0, 0, 0, 0, into];
    // SAFETY: like fork: no memory is shared and this process has one thread, so the child may go
    // on here.
    let result = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    match i32::try_from(result) {
        Ok(0) => Ok((nix::unistd::ForkResult::Child, true)),
        Ok(pid) if pid > 0 => Ok((
            nix::unistd::ForkResult::Parent {
                child: nix::unistd::Pid::from_raw(pid),
            },
            true,
        )),
        Ok(_) | Err(_) => Ok((fork()?, false)),
    }
}

/// Exits this forked child without running its parent's destructors.
#[expect(unsafe_code, reason = "_exit has no safe wrapper")]
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}

/// Part of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Program {
    kind: u32,
    length: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    place: u32,
}

/// Part of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attachment {
    target: u32,
    program: u32,
    place: u32,
    flags: u32,
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// Attaches a BPF program that decides about each use of a device by processes of a v2 group, for
/// the lifetime of the group.
#[expect(unsafe_code, reason = "bpf has no wrapper")]
pub(crate) fn filter_devices(group: &Path, program: &[u64]) -> io::Result<()> {
    let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).map_err(io::Error::other);
    let wanted = Program {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        length: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr() as u64,
        // It calls no GPL-only helper functions.
        licence: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name: *b"skiff_devices\0\0\0",
        interface: 0,
        place: BPF_CGROUP_DEVICE,
    };
    let size = size_of_val(&wanted);
    // SAFETY: the structure and what it points to outlive the call.
    let loaded = owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const wanted, size) })?;
    let group = std::fs::File::open(group)?;
    let attachment = Attachment {
        target: number(group.as_fd())?,
        program: number(loaded.as_fd())?,
        place: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    let size = size_of_val(&attachment);
    // SAFETY: the structure outlives the call.
    checked(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw const attachment, size) }).map(drop)
}

/// Joins the namespaces of a process, named by `CLONE_NEW…` flags.
pub(crate) fn join_namespaces(pidfd: BorrowedFd<'_>, flags: nix::sched::CloneFlags) -> io::Result<()> {
    nix::sched::setns(pidfd, flags).map_err(io::Error::from)
}

/// Opens the user namespace that owns a namespace.
#[expect(unsafe_code, reason = "NS_GET_USERNS has no wrapper")]
pub(crate) fn owning_users(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    owned(unsafe { libc::ioctl(namespace.as_raw_fd(), GET_USERS) }.into())
}

/// True if the kernel is of this version or a later one.
pub(crate) fn kernel_since(version: (u32, u32)) -> bool {
    static KNOWN: std::sync::OnceLock<(u32, u32)> = std::sync::OnceLock::new();
    let running = KNOWN.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release
            .split(['.', '-'])
            .map(|part| part.trim().parse::<u32>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    });
    *running >= version
}

/// Unlocks the other end of a terminal and opens it by its descriptor: no path can redirect this.
#[expect(unsafe_code, reason = "TIOCSPTLCK and TIOCGPTPEER have no wrapper")]
pub(crate) fn terminal_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let unlocked: libc::c_int = 0;
    // SAFETY: the integer outlives the call.
    checked(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) }.into())?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: integers only.
    owned(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) }.into())
}

/// Makes a terminal the controlling one of this process's session.
#[expect(unsafe_code, reason = "TIOCSCTTY has no wrapper")]
pub(crate) fn become_controlling(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: integers only.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }.into()).map(drop)
}

/// Sets a terminal's size.
#[expect(unsafe_code, reason = "TIOCSWINSZ has no wrapper")]
pub(crate) fn resize(terminal: BorrowedFd<'_>, size: crate::Size) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: size.height,
        ws_col: size.width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the structure outlives the call.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }.into()).map(drop)
}

/// Takes ownership of a descriptor that the kernel just created for this process.
#[expect(unsafe_code, reason = "the caller got it from recvmsg")]
pub(crate) fn received(fd: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: see the reason above.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Receives bytes, and the descriptors sent with them, from a socket. Descriptors beyond eight at
/// once are closed.
pub(crate) fn receive_with_descriptors(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 8]);
    let mut parts = [io::IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            descriptors.extend(fds.into_iter().map(received));
        }
    }
    Ok((message.bytes, descriptors))
}

/// Sends bytes with descriptors; returns the number of bytes sent.
pub(crate) fn send_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[OwnedFd],
) -> io::Result<usize> {
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
    let fds: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&fds)];
    let parts = [io::IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    Ok(sendmsg::<UnixAddr>(socket.as_raw_fd(), &parts, &control, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_path_is_found_while_others_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, other) = (folder.path().join("root"), folder.path().join("other"));
        std::fs::create_dir_all(root.join("run/lock")).unwrap();
        std::fs::create_dir(root.join("var")).unwrap();
        symlink("../run", root.join("var/run")).unwrap();
        std::fs::create_dir(&other).unwrap();
        let opened = std::fs::File::open(&root).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::fs::rename(&other, folder.path().join("moved")).unwrap();
                    std::fs::rename(folder.path().join("moved"), &other).unwrap();
                }
            });
            let look = |_| open_in_root(&opened, Path::new("/var/run/lock"), OFlag::O_PATH);
            let failed: Vec<_> = (0..20_000).map(look).filter_map(Result::err).collect();
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, [], "{} of 20000", failed.len());
        });
    }
}
