//! Directories that are persistent volumes of this node: `ROOT/NAME`. They are reachable by path
//! only with access to the agent's own directory; containers get them mounted.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::claims;

/// Local persistent volumes below one root.
#[derive(Clone, Debug)]
pub struct LocalPath {
    root: PathBuf,
    /// Directory of the volumes of all pods.
    pods: PathBuf,
}

/// A directory cannot be created or removed.
#[derive(Debug, thiserror::Error)]
pub enum LocalPathError {
    /// The name is not that of a volume.
    #[error("{0:?} is not the name of a volume")]
    Name(String),
    /// The volume is mounted.
    #[error("volume {0:?} is used by a pod")]
    Used(String),
    /// A file operation failed.
    #[error("{doing} {}", path.display())]
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LocalPathError {
    let path = path.to_owned();
    move |source| LocalPathError::Io { doing, path, source }
}

/// Volumes are named after the uid of their claim.
fn check(name: &str) -> Result<(), LocalPathError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.len() > "pvc-".len() && name.len() <= 63 && name.starts_with("pvc-") && name.bytes().all(plain) {
        Ok(())
    } else {
        Err(LocalPathError::Name(name.to_owned()))
    }
}

impl LocalPath {
    /// Directories below `root`; `pods` is the directory of the volumes of all pods.
    pub fn new(root: PathBuf, pods: PathBuf) -> Self {
        Self { root, pods }
    }

    /// Creates a directory that every user may write to, unless it exists.
    pub fn make(&self, name: &str) -> Result<PathBuf, LocalPathError> {
        check(name)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        made.map_err(failed("create", &self.root))?;
        let path = self.root.join(name);
        // Renamed to its final name when it is complete.
        let draft = self.root.join(format!(".{name}"));
        if path.is_dir() {
            return Ok(path);
        }
        match DirBuilder::new().mode(0o700).create(&draft) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("create", &draft)(error)),
            Ok(()) | Err(_) => {}
        }
        fs::set_permissions(&draft, Permissions::from_mode(0o777)).map_err(failed("chmod", &draft))?;
        fs::rename(&draft, &path).map_err(failed("rename", &draft))?;
        let synced = File::open(&self.root).and_then(|root| root.sync_all());
        synced.map_err(failed("sync", &self.root))?;
        Ok(path)
    }

    /// Removes a directory tree unless a pod uses it; returns whether it existed.
    pub fn remove(&self, name: &str) -> Result<bool, LocalPathError> {
        check(name)?;
        let path = self.root.join(name);
        // An earlier removal may be incomplete.
        let grave = self.root.join(format!(".removed-{name}"));
        let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
        let there = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Ok(found) => {
                let users = claims::users::count(&self.pods, &found, None).map_err(failed("read", &self.pods))?;
                if users > 0 {
                    return Err(LocalPathError::Used(name.to_owned()));
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed("look at", &path)(error)),
        };
        let root = match File::open(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            root => root.map_err(failed("open", &self.root))?,
        };
        let remove = |path: &Path| {
            let name = path.file_name().unwrap_or(OsStr::new(""));
            trees::remove_in(&root, name).map_err(failed("remove", path))
        };
        remove(&grave)?;
        if there {
            fs::rename(&path, &grave).map_err(failed("rename", &path))?;
            remove(&grave)?;
        }
        Ok(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_3_only_names_of_volumes_are_made_and_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let root = home.path().join("local-path");
        let volumes = LocalPath::new(root.clone(), home.path().join("pods"));
        fs::write(home.path().join("pvc-outside"), "").expect("written");
        for name in [
            "",
            "pvc-",
            "../pvc-outside",
            "pvc-/../x",
            "pvc-A",
            ".",
            "pvc-a\0",
            "local",
            &"pvc-a".repeat(20),
        ] {
            assert!(volumes.make(name).is_err() && volumes.remove(name).is_err(), "{name:?}");
        }
        let path = volumes.make("pvc-1").expect("made");
        assert_eq!(path, root.join("pvc-1"));
        fs::write(path.join("file"), "").expect("written");
        std::os::unix::fs::symlink(home.path(), path.join("link")).expect("linked");
        assert_eq!(volumes.make("pvc-1").expect("found"), path);
        assert!(path.join("file").exists(), "what is there stays");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&root), mode(&path)), (0o700, 0o777));
        assert!(volumes.remove("pvc-1").expect("removed"));
        assert!(!volumes.remove("pvc-1").expect("it is gone"));
        assert!(home.path().join("pvc-outside").exists());
        assert_eq!(fs::read_dir(&root).expect("read").count(), 0);
    }
}
