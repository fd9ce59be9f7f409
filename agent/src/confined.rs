//! Safe access to files that a container may have replaced.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{self, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

/// Opens a regular file; links, FIFOs and devices are rejected without being opened.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let found = fcntl::open(path, flags, Mode::empty())?;
    reopen(&File::from(found))
}

/// Opens a path below a directory with `O_PATH`; symbolic links cannot lead out of it. The file
/// itself is not opened: a FIFO would block until it has a writer, and opening a device may have
/// side effects.
pub(crate) fn find(directory: &Path, path: &str) -> io::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root = fcntl::open(directory, flags | OFlag::O_DIRECTORY, Mode::empty())?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(File::from(openat2(&root, path, how)?))
}

/// Reopens a file that was found, if it is regular: the same file, even if its path was replaced
/// since.
pub(crate) fn reopen(found: &File) -> io::Result<File> {
    if !found.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // Does not wait for the holder of a lease.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    options.open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Runs blocking file access on a thread of its own.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    common::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Reads at most `bytes` from the end of a file.
pub(crate) fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut contents = Vec::new();
    file.take(bytes).read_to_end(&mut contents)?;
    Ok(contents)
}

/// Reads at most `bytes` of a regular file below a directory; symbolic links cannot lead out of it.
pub(crate) fn below(directory: &Path, path: &str, bytes: u64) -> io::Result<Vec<u8>> {
    let file = reopen(&find(directory, path)?)?;
    if file.metadata()?.len() > bytes {
        let what = format!("a file of more than {bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut contents = Vec::new();
    file.take(bytes).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    use nix::sys::stat::{SFlag, makedev, mknod};

    use super::*;

    /// Must be rejected for its type: opening it would fail with another error, or not at all.
    fn refused(directory: &Path, name: &str) {
        let path = directory.join(name);
        for error in [
            open(&path).expect_err("opened"),
            tail(&path, 16).expect_err("read"),
            below(directory, name, 16).expect_err("read"),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
        }
    }

    #[test]
    fn attack_13_what_is_no_regular_file_is_not_even_opened() {
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path();
        std::fs::write(home.join("log"), "own").expect("written");
        std::os::unix::fs::symlink("log", home.join("link")).expect("linked");
        assert_eq!(tail(&home.join("log"), 2).expect("read"), b"wn");
        assert!(open(&home.join("link")).is_err(), "a link");
        // Sockets, and devices of a type that the kernel does not know, cannot be opened.
        let _socket = UnixListener::bind(home.join("socket")).expect("bound");
        mknod(&home.join("device"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(4095, 1)).expect("made");
        for name in ["socket", "device", "."] {
            refused(home, name);
        }
    }

    #[test]
    fn attack_13_who_writes_to_a_pipe_does_not_notice_that_it_is_refused() {
        let home = tempfile::tempdir().expect("a directory");
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("made");
        let opened = |options: &mut OpenOptions| {
            let options = options.custom_flags(OFlag::O_NONBLOCK.bits());
            options.open(&pipe).expect("opened")
        };
        let reader = opened(OpenOptions::new().read(true));
        let writer = opened(OpenOptions::new().write(true));
        drop(reader);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("made");
        let event = EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLET, 0);
        epoll.add(&writer, event).expect("added");
        let noticed = || {
            let mut events = [EpollEvent::empty()];
            epoll.wait(&mut events, EpollTimeout::ZERO).expect("asked")
        };
        assert_eq!((noticed(), noticed()), (1, 0), "there is no reader any more");
        refused(home.path(), "pipe");
        assert_eq!(noticed(), 0, "it was opened");
        drop(opened(OpenOptions::new().read(true)));
        assert_eq!(noticed(), 1, "who opens it is noticed");
    }

    #[test]
    fn attack_18_profiles_are_read_below_their_directory_only() {
        let home = tempfile::tempdir().expect("a directory");
        let profiles = home.path().join("seccomp");
        std::fs::create_dir(&profiles).expect("made");
        std::fs::write(profiles.join("good.json"), "{}").expect("written");
        std::fs::write(home.path().join("secret"), "{}").expect("written");
        std::os::unix::fs::symlink(home.path().join("secret"), profiles.join("link")).expect("linked");
        assert_eq!(below(&profiles, "good.json", 16).expect("read"), b"{}");
        let absolute = home.path().join("secret").display().to_string();
        for path in ["", "../secret", "link", ".", "missing", &absolute, "a/../../secret"] {
            assert!(below(&profiles, path, 16).is_err(), "{path:?}");
        }
        assert!(below(&profiles, "good.json", 1).is_err(), "too large");
    }
}
