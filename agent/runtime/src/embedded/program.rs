//! Program of the supervisors: a read-only view of our own.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::files::overlay;

/// Program file that cannot be written through the descriptor that executes it.
///
/// A process that is entering a container still runs this program, and the container can open it by
/// `/proc/PID/exe`. Seen through an overlay without an upper layer, it cannot be overwritten by
/// that way.
pub(crate) struct Program {
    path: PathBuf,
    sealed: Option<OwnedFd>,
}

impl Program {
    /// Makes the program read-only, or uses it as it is if the machine refuses.
    pub(crate) fn seal(path: &Path, state: &Path) -> Self {
        let sealed = seal(path, &state.join("empty"));
        if let Err(error) = &sealed {
            tracing::warn!(%error, program = %path.display(), "the supervisors' program is not sealed");
        }
        Self {
            path: path.to_owned(),
            sealed: sealed.ok(),
        }
    }

    /// Path to execute.
    pub(crate) fn path(&self) -> OsString {
        match &self.sealed {
            Some(file) => OsString::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => self.path.clone().into_os_string(),
        }
    }
}

fn seal(path: &Path, empty: &Path) -> io::Result<OwnedFd> {
    let path = fs::canonicalize(path)?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::create_dir_all(empty)?;
    let layers = [empty.to_owned(), directory.to_owned()];
    let view = overlay::view(&layers, &empty.with_extension("view"))?;
    Ok(openat(&view, name, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?)
}
