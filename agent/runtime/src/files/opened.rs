//! Preparations on the machine that every runtime needs.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::spares::Spares;
use super::spread::spread;
use crate::Error;
use crate::cgroup::{self, Cgroups};
use crate::error::io_error;

/// Number of sandbox directories made ahead, enough for a large burst.
const SPARES: usize = 100;

/// State directory, by its real path, and the machine's cgroups.
pub(crate) struct Opened {
    pub(crate) state_dir: PathBuf,
    pub(crate) sandboxes: PathBuf,
    /// Directories made ahead for the sandboxes.
    pub(crate) spares: Spares,
    pub(crate) cgroups: Cgroups,
}

impl Opened {
    /// Opens the state directory. `folders` are made ahead in each sandbox's directory.
    pub(crate) fn at(state_dir: &Path, cgroup_root: &str, folders: &'static [&'static str]) -> Result<Self, Error> {
        cgroup::check(Path::new(cgroup_root)).map_err(|_invalid| Error::Invalid {
            what: "cgroup root",
            value: cgroup_root.to_owned(),
        })?;
        let make = |path: &Path| {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(io_error("create", path))
        };
        make(state_dir)?;
        let state_dir = fs::canonicalize(state_dir).map_err(io_error("find", state_dir))?;
        let cgroups = Cgroups::detect().map_err(io_error("read", Path::new("/proc/self/mountinfo")))?;
        let sandboxes = state_dir.join("sandboxes");
        let owned = cgroups.own(Path::new(cgroup_root), &state_dir, sandboxes.exists());
        let owned = owned.map_err(io_error("mark the control group", Path::new(cgroup_root)))?;
        owned.map_err(|owner| Error::GroupTaken {
            group: cgroup_root.to_owned(),
            owner,
        })?;
        make(&sandboxes)?;
        spread(&sandboxes);
        let spare = state_dir.join("spare");
        let spares = Spares::open(&spare, SPARES, folders).map_err(io_error("fill", &spare))?;
        Ok(Self {
            state_dir,
            sandboxes,
            spares,
            cgroups,
        })
    }
}
