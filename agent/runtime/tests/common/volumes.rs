//! Containers with a volume.

use std::path::Path;

use oci_spec::runtime::{Capability, LinuxCapabilitiesBuilder, MountBuilder};
use runtime::ContainerSpec;

use super::Machine;

/// Specification of a container with the directory at `/v`, which may mount.
pub(crate) fn with(machine: &Machine, id: &str, source: &Path, whole: &str, options: &[&str]) -> ContainerSpec {
    let mut spec = machine.shell(id, "exec sleep 1000");
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let volume = MountBuilder::default()
        .destination("/v")
        .typ("bind")
        .source(source)
        .options(options)
        .build()
        .unwrap();
    let mut mounts = spec.spec.mounts().clone().unwrap_or_default();
    mounts.push(volume);
    spec.spec.set_mounts(Some(mounts));
    let mut linux = spec.spec.linux().clone().unwrap_or_default();
    linux.set_rootfs_propagation(Some(whole.to_owned()));
    spec.spec.set_linux(Some(linux));
    let mut process = spec.spec.process().clone().unwrap();
    let admin = std::collections::HashSet::from([Capability::SysAdmin]);
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(admin.clone())
        .effective(admin.clone())
        .permitted(admin)
        .inheritable(std::collections::HashSet::new())
        .ambient(std::collections::HashSet::new())
        .build()
        .unwrap();
    process.set_capabilities(Some(capabilities));
    spec.spec.set_process(Some(process));
    spec
}

/// Names in a directory, sorted.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
