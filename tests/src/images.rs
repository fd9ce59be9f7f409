//! The images that the tests run: built from the distribution's packages, no registry needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::machine::Machine;
use crate::process;

/// Imports the nginx image into the machine's node and returns its name.
///
/// # Errors
/// Fails if it cannot be built or imported.
pub fn nginx(machine: &Machine) -> anyhow::Result<String> {
    import(machine, "nginx")
}

/// Imports the busybox image into the machine's node and returns its name.
///
/// # Errors
/// Fails if it cannot be built or imported.
pub fn busybox(machine: &Machine) -> anyhow::Result<String> {
    import(machine, "busybox")
}

fn import(machine: &Machine, name: &str) -> anyhow::Result<String> {
    machine.import(&archive(name)?)?;
    let list = machine.skiff(["image", "list"])?;
    list.split_whitespace()
        .find(|word| word.contains(&format!("/{name}:")))
        .map(str::to_owned)
        .with_context(|| format!("{name} in the list of images: {list}"))
}

/// The OCI archive of an image, built where it is not there yet.
///
/// # Errors
/// Fails if the build script fails.
pub fn archive(name: &str) -> anyhow::Result<PathBuf> {
    // Path at run time: binaries built in another directory may run here.
    let tests = std::env::var("CARGO_MANIFEST_DIR").context("cargo says where the tests are")?;
    let script = Path::new(&tests).join("images/build");
    let path = process::run(Command::new(script).arg(name))?;
    Ok(PathBuf::from(path.lines().last().context("the path of the archive")?))
}
