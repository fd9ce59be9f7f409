//! What a container binds from the machine.
//!
//! libcontainer has one answer for all mounts of a container about which later mounts it and the machine see of each other, and
//! does not look at what each one says. So each gets a mount of its own first, as open as it shall be.

use std::path::Path;

use oci_spec::runtime::{Mount as Wanted, Spec};

use nix::libc;

use super::late::{self, Late};
use super::stage;
use super::users::Users;
use super::{memory, shifted};
use crate::Refusal;
use crate::sys::Mount;

/// Mounts of what the machine has, by the number of the mount that wants them.
pub(super) struct Sources(Vec<(usize, Mount)>);

impl Sources {
    /// To be taken before this process leaves the machine's mounts.
    pub(super) fn take(spec: &mut Spec, users: Option<&Users>) -> Result<Self, Refusal> {
        let closed = !settle_whole(spec);
        let mut taken = Vec::new();
        for (number, mount) in spec.mounts().iter().flatten().enumerate() {
            let Some(source) = mount.source().as_deref().filter(|_| late::is_bound(mount)) else {
                continue;
            };
            let failed = |error: std::io::Error| Refusal::failed(format!("mount {}", source.display()), &error);
            let copy = if says(mount, "rbind") {
                Mount::copy_tree(source)
            } else {
                Mount::copy(source)
            };
            let copy = copy.map_err(failed)?;
            if !says(mount, "rshared") {
                let alone = closed || says(mount, "rprivate");
                let propagation = if alone { libc::MS_PRIVATE } else { libc::MS_SLAVE };
                copy.propagate(propagation).map_err(failed)?;
            }
            if let Some(users) = users {
                shifted::shift(users, &copy, source).map_err(|error| {
                    let (from, to) = (source.display(), mount.destination().display());
                    Refusal::failed(format!("map the ids of {from} for {to}"), &error)
                })?;
            }
            taken.push((number, copy));
        }
        Ok(Self(taken))
    }

    /// Puts them on the stage, `first` being the first free number there, and has the configuration find them; answers which are
    /// not for libcontainer.
    pub(super) fn put(self, first: usize, spec: &mut Spec) -> Result<Late, Refusal> {
        let mut held_back = Late::default();
        let late = late::is_wanted(spec);
        let mut mounts = spec.mounts().clone().unwrap_or_default();
        for (number, copy) in self.0 {
            let Some(mount) = mounts.get_mut(number) else { continue };
            if late && late::concerns(mount) {
                let added = held_back.add(mount, copy);
                added.map_err(|error| Refusal::failed(format!("mount {}", mount.destination().display()), &error))?;
                continue;
            }
            let put = stage::put(&copy, first + number);
            let put = put.map_err(|error| {
                let destination = mount.destination().display();
                Refusal::failed(format!("set apart what is mounted at {destination}"), &error)
            })?;
            mount.set_source(Some(put));
        }
        if late {
            let shared = |mount: &Wanted| {
                let there = mount.destination() == Path::new(memory::TARGET);
                there && mount.source().as_deref() == Some(Path::new(stage::MEMORY))
            };
            if mounts.iter().any(shared) {
                let added = held_back.add_memory();
                added.map_err(|error| Refusal::failed(format!("mount {}", memory::TARGET), &error))?;
            }
            mounts.retain(|mount| !late::concerns(mount));
        }
        spec.set_mounts(Some(mounts));
        Ok(held_back)
    }
}

/// Says of a configuration as a whole what libcontainer understands; returns whether any mount is open to the machine.
fn settle_whole(spec: &mut Spec) -> bool {
    let mut linux = spec.linux().clone().unwrap_or_default();
    let whole = linux.rootfs_propagation().clone().unwrap_or_default();
    let whole = whole.strip_prefix('r').unwrap_or("private").to_owned();
    let open = whole != "private";
    linux.set_rootfs_propagation(Some(whole));
    spec.set_linux(Some(linux));
    open
}

fn says(mount: &Wanted, option: &str) -> bool {
    mount.options().iter().flatten().any(|own| own == option)
}
