//! Which later mounts a container and the machine see of each other.
//!
//! libcontainer has one answer for all mounts of a container and does not look at what each one says. So where one of them is
//! open to the other side, each gets a mount of its own first, as open as it shall be, in the mount namespace of its creation.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use oci_spec::runtime::{Mount as Wanted, Spec};

use crate::Refusal;
use crate::sys::Mount;

/// The mounts, below the container's directory.
const FOLDER: &str = "apart";

/// What is shared with the machine, by its path there. To be taken before this process leaves the machine's mounts.
pub(super) struct Shared(Vec<(PathBuf, Mount)>);

impl Shared {
    pub(super) fn take(spec: &Spec) -> Result<Self, Refusal> {
        let mounts = spec.mounts().iter().flatten();
        let shared = mounts.filter(|mount| says(mount, "rshared"));
        let sources = shared.filter_map(|mount| mount.source().clone());
        let taken = sources.map(|source| {
            let doing = format!("share {}", source.display());
            let copy = Mount::copy_tree(&source).map_err(|error| Refusal::failed(doing, &error))?;
            Ok((source, copy))
        });
        taken.collect::<Result<_, Refusal>>().map(Self)
    }

    /// Gives the mounts of a configuration sources that are as open as they say, but for `except`.
    pub(super) fn settle(self, spec: &mut Spec, directory: &Path, except: &Path) -> Result<(), Refusal> {
        let mut linux = spec.linux().clone().unwrap_or_default();
        let whole = linux.rootfs_propagation().clone().unwrap_or_default();
        // It knows no other words.
        let whole = whole.strip_prefix('r').unwrap_or("private").to_owned();
        let apart = whole == "private";
        linux.set_rootfs_propagation(Some(whole));
        spec.set_linux(Some(linux));
        if apart {
            return Ok(());
        }
        let folder = directory.join(FOLDER);
        fs::create_dir(&folder).map_err(|error| Refusal::failed("make room for mounts", &error))?;
        let mut mounts = spec.mounts().clone().unwrap_or_default();
        let bound = mounts.iter_mut().filter(|mount| mount.typ().as_deref() == Some("bind"));
        for (number, mount) in bound.enumerate() {
            let Some(source) = mount.source().clone().filter(|source| source != except) else {
                continue;
            };
            let target = folder.join(number.to_string());
            let taken = self
                .0
                .iter()
                .find(|(path, _)| *path == source && says(mount, "rshared"));
            let staged = stage(&source, taken.map(|(_, copy)| copy), says(mount, "rprivate"), &target);
            staged.map_err(|error| Refusal::failed(format!("set {} apart", source.display()), &error))?;
            mount.set_source(Some(target));
        }
        spec.set_mounts(Some(mounts));
        Ok(())
    }
}

fn says(mount: &Wanted, option: &str) -> bool {
    mount.options().iter().flatten().any(|own| own == option)
}

fn stage(source: &Path, taken: Option<&Mount>, private: bool, target: &Path) -> io::Result<()> {
    if fs::metadata(source)?.is_dir() {
        fs::create_dir(target)?;
    } else {
        File::create(target)?;
    }
    match taken {
        Some(copy) => copy.attach(target)?,
        None => Mount::copy_tree(source)?.attach(target)?,
    }
    let none: Option<&str> = None;
    if private {
        mount(none, target, none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    }
    Ok(())
}
