//! `test-assets`: directory with the programs that envtest starts as a control plane.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::sibling;
use crate::terminal;

/// Links the names that envtest starts to the programs here, and prints the directory.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let control_plane = sibling("skiff-controlplane")?;
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let folder = folder.canonicalize().context("find the folder")?;
    for name in ["kube-apiserver", "etcd"] {
        link(&folder.join(name), &control_plane)?;
    }
    match kubectl(&folder) {
        Some(kubectl) => link(&folder.join("kubectl"), &kubectl)?,
        None => terminal::note("no kubectl is on PATH: tests that ask for one will not find it"),
    }
    terminal::line(folder.display().to_string())
}

/// Creates a link, or replaces an older one.
fn link(path: &Path, program: &Path) -> anyhow::Result<()> {
    if path.is_symlink() {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    match symlink(program, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            anyhow::bail!(
                "{} is there already and is no link: name another folder",
                path.display()
            )
        }
        made => made.with_context(|| format!("link {}", path.display())),
    }
}

/// Returns the kubectl on `PATH` outside of the directory itself.
fn kubectl(folder: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).filter(|other| other != folder);
    found.find_map(|other| Some(other.join("kubectl")).filter(|kubectl| kubectl.is_file()))
}
