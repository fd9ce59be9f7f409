//! Start of a created container.
//!
//! libcontainer has the init process listen at a socket in libcontainer's own directory. That is on
//! a file system that is unmounted with the creation, not on the disk: files created from within
//! the container's memory cgroup leave pages in the page cache that pin the cgroup long after its
//! removal, and thousands of such cgroups slow down every new one.
//!
//! The socket cannot be found afterwards, so the child connects to it and the supervisor keeps the
//! other end.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::supervisor::rootfs::namespace;
use crate::sys::FileSystem;

/// ID of every container in libcontainer, whose directory belongs to one creation.
pub(super) const NAME: &str = "oci";
/// Size of the tmpfs, more than libcontainer writes.
const SIZE: &[u8] = b"1m";

/// Connection to the init process, which runs the program when it reads end-of-file; bytes before
/// that are ignored. The init process has inherited this end, too, so it waits on when the
/// supervisor is gone.
pub(in crate::supervisor) struct Starter(UnixStream);

impl Starter {
    /// Created by the supervisor, before it forks the child that connects it.
    pub(in crate::supervisor) fn new() -> io::Result<Self> {
        let end = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self(end.into()))
    }

    /// Connects it in the child, when the init process listens.
    pub(in crate::supervisor) fn connect(&self) -> io::Result<()> {
        let socket = Path::new(namespace::STATE)
            .join(NAME)
            .join(libcontainer::notify_socket::NOTIFY_FILE);
        match connect(self.0.as_raw_fd(), &UnixAddr::new(&socket)?) {
            // It was killed meanwhile: its exit is reported.
            Err(Errno::ECONNREFUSED) => Ok(()),
            connected => Ok(connected?),
        }
    }

    /// Starts the program. Other processes have this end as well, so closing it would not suffice.
    pub(in crate::supervisor) fn tell(&self) -> io::Result<()> {
        (&self.0).write_all(b"start container")?;
        self.0.shutdown(Shutdown::Write)
    }
}

/// Mounts a tmpfs for libcontainer's directory in the mount namespace.
pub(super) fn make_room() -> io::Result<()> {
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    let room = FileSystem::open("tmpfs")?;
    room.set("source", b"state")?;
    room.set("size", SIZE)?;
    room.set("mode", b"0700")?;
    let room = room.mount(u32::try_from(attributes).map_err(io::Error::other)?)?;
    room.attach(Path::new(namespace::STATE))
}
