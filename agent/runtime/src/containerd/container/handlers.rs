//! OCI runtimes under containerd, by the handlers of `RuntimeClass` objects: runc, other shims, and
//! other programs under the shim for runc. Only installed runtimes can be named: the author of a
//! `RuntimeClass` cannot choose any other program of the machine.

use std::fs;
use std::path::{Path, PathBuf};

use containerd_client::services::v1::container::Runtime;
use prost::Message;
use prost_types::Any;

/// Shim that every containerd has.
pub(in crate::containerd) const SHIM: &str = "io.containerd.runc.v2";
/// OCI runtimes that can replace runc under its shim.
const BINARIES: [&str; 2] = ["crun", "youki"];

/// `containerd.runc.v1.Options`, limited to the needed fields.
#[derive(Message)]
struct Options {
    #[prost(string, tag = "6")]
    binary_name: String,
}

/// Directories that are searched for programs.
pub(in crate::containerd) fn directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin".into());
    std::env::split_paths(&path).collect()
}

/// Returns containerd's runtime for a handler, if installed: `io.containerd.kata.v2` for `kata` if
/// there is a `containerd-shim-kata-v2`.
pub(in crate::containerd) fn find(handler: &str, directories: &[PathBuf]) -> Option<Runtime> {
    let runtime = |name: String, options: Option<Any>| Runtime { name, options };
    if ["", "runc"].contains(&handler) {
        return Some(runtime(SHIM.to_owned(), None));
    }
    if BINARIES.contains(&handler) {
        let mut places = directories.iter().map(|directory| directory.join(handler));
        let binary_name = places.find(|place| place.is_file())?.display().to_string();
        let options = Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            value: Options { binary_name }.encode_to_vec(),
        };
        return Some(runtime(SHIM.to_owned(), Some(options)));
    }
    let version = directories.iter().find_map(|directory| version(directory, handler))?;
    Some(runtime(format!("io.containerd.{handler}.v{version}"), None))
}

/// Newest version of a handler's shim in a directory.
fn version(directory: &Path, handler: &str) -> Option<u8> {
    let prefix = format!("containerd-shim-{handler}-v");
    fs::read_dir(directory)
        .ok()?
        .flatten()
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok())
}
