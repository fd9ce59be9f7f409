//! Reading files that a container may have replaced by something else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Opens a regular file; a link, a pipe or a device is refused without being touched.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// Does what may wait for a disk where nothing else waits for it.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// At most so many bytes from the end.
pub(crate) fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut contents = Vec::new();
    file.take(bytes).read_to_end(&mut contents)?;
    Ok(contents)
}

/// A regular file below a directory, at most so many bytes of it; no link leads out.
pub(crate) fn below(directory: &Path, path: &str, bytes: u64) -> io::Result<Vec<u8>> {
    let root = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits())
        .open(directory)?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(root.as_fd(), path, how)?);
    let found = file.metadata()?;
    if !found.is_file() || found.len() > bytes {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file of a fair size",
        ));
    }
    let mut contents = Vec::new();
    file.take(bytes).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

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
